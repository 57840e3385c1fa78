"""Whether two formulas have the same value: high precision, at several points where they have
letters.

Two formulas are equal when they agree to 50 digits (single numbers: to 380) wherever both are
defined over the reals, at no fewer than `ENOUGH` of some fixed points of both signs, far out too
where a formula may bend (|x + 100| is x + 100 near zero); formulas with an imaginary unit, or
hardly ever real, are compared over the complex numbers. Very large or small terms get as many
digits more (`magnitude`); beyond its bound nothing is known. Values are bounded before they are
worked out. Runs in a worker.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import mpmath

from scalerl.rewards.expression import Tree
from scalerl.rewards.magnitude import MOST_BITS, bits

POINT_DIGITS, POINT_AGREEMENT = 120, 50  # at each point, where there are letters
CONSTANT_DIGITS, CONSTANT_AGREEMENT = 400, 380  # a single number: √(10^60 + 1) is not 10^30
POINTS, ENOUGH = 12, 3
FAR = (9, 120, 1_500, 40_000)  # how far out the far points lie
_BENDING = frozenset(["abs", "root", "pow", "max", "min"])
_BENDING_CALLS = frozenset(["floor", "ceil", "asin", "acos", "atan"])
LARGEST_LOG2 = 2_000_000  # of a power
LARGEST_FACTORIAL = 100_000
_BASE = "log base"  # log without a base: the same unknown base on both sides

Point = dict[str, Any]


class Undefined(Exception):
    """The formula has no value at this point."""


class TooLarge(Exception):
    """The value is beyond what is worked out; nothing is known about it."""


def same_value(left: Tree, right: Tree) -> bool | None:
    """Whether the two are equal; None where that cannot be told."""
    return _compare(left, right, _agree)


def proportional(left: Tree, right: Tree, *, positive: bool = False) -> bool | None:
    """Whether left = c · right for one constant c ≠ 0 (c > 0 on demand): the same equation."""
    ratios: list[Any] = []

    def constant(a: Any, b: Any, tolerance: Any) -> bool:
        if abs(a) < tolerance or abs(b) < tolerance:
            return bool(abs(a) < tolerance and abs(b) < tolerance)
        ratio = a / b
        if positive and not (abs(mpmath.im(ratio)) < tolerance and mpmath.re(ratio) > 0):
            return False
        ratios.append(ratio)
        return _agree(ratio, ratios[0], tolerance)

    return bool(_compare(left, right, constant)) and bool(ratios)


def letters(tree: Tree) -> frozenset[str]:
    """Variables of a formula; an unstated base of a logarithm is one."""
    if tree[0] == "var":
        return frozenset([tree[1]])
    found = frozenset([_BASE]) if tree[:2] == ("log", None) else frozenset()
    return found.union(*(letters(part) for part in tree[1:] if isinstance(part, tuple)))


def variables(tree: Tree) -> frozenset[str]:
    return letters(tree) - {_BASE}


def _compare(left: Tree, right: Tree, agree: Callable[[Any, Any, Any], bool]) -> bool | None:
    names = sorted(letters(left) | letters(right))
    size = max(bits(left), bits(right))
    if size >= MOST_BITS:
        return None
    digits = 2 * size * 3 // 10 + (POINT_DIGITS if names else CONSTANT_DIGITS)
    agreement = size * 3 // 10 + (POINT_AGREEMENT if names else CONSTANT_AGREEMENT)
    near = _points(names)
    far = _far_points(names) if _bends(left) or _bends(right) else []
    points = near + far
    tolerance = mpmath.mpf(10) ** -agreement
    modes = [True] if _imaginary(left) or _imaginary(right) else [False, True]
    try:
        for allow_complex in modes:
            seen = 0
            for point in points:
                pair = _pair(left, right, point, allow_complex, digits, tolerate=point in far)
                if pair is None:
                    continue
                with mpmath.workdps(digits):
                    agreed, near_zero = agree(*pair, tolerance), abs(pair[0] - pair[1]) < tolerance
                if not agreed:
                    if not near_zero:
                        return False
                    finer = _pair(left, right, point, allow_complex, 4 * digits)
                    if not _noise(finer, tolerance):
                        return False
                seen += 1
            if seen >= min(ENOUGH, len(points)):
                return True
    except TooLarge:
        return None
    return None


def _pair(
    left: Tree, right: Tree, point: Point, allow_complex: bool, digits: int, tolerate: bool = False
) -> tuple[Any, Any] | None:
    """Both values; None where one is undefined, or too large and that is tolerated."""
    with mpmath.workdps(digits):
        try:
            return value(left, point, allow_complex), value(right, point, allow_complex)
        except (Undefined, ZeroDivisionError, ValueError):
            return None
        except TooLarge:
            if tolerate:
                return None
            raise


def _noise(finer: tuple[Any, Any] | None, tolerance: Any) -> bool:
    """A difference that vanishes with more digits is rounding about zero."""
    return finer is not None and bool(abs(finer[0] - finer[1]) < tolerance**4)


def _agree(a: Any, b: Any, tolerance: Any) -> bool:
    return bool(a == b or abs(a - b) <= tolerance * max(abs(a), abs(b)))


def _points(names: list[str]) -> list[Point]:
    if not names:
        return [{}]
    rng = random.Random("points")
    points: list[Point] = []
    for index in range(POINTS):
        point = {}
        for name in names:
            size = mpmath.mpf(rng.randrange(1_000, 30_000)) / 8_192
            positive = index % 3 == 0 or name == _BASE or rng.random() < 0.5
            point[name] = (size if positive else -size) + (name == _BASE)
        points.append(point)
    return points


def _far_points(names: list[str]) -> list[Point]:
    """At each distance: all positive, all negative, mixed."""
    rng = random.Random("far points")
    points: list[Point] = []
    for distance in FAR if names else ():
        for signs in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
            point = {}
            for index, name in enumerate(names):
                size = distance * (1 + mpmath.mpf(rng.randrange(8_192)) / 8_192)
                point[name] = size if name == _BASE else signs[index % 2] * size
            points.append(point)
    return points


def _bends(tree: Tree) -> bool:
    """Whether it may be one analytic function here and another one there."""
    kind, *parts = tree
    bent = kind in _BENDING or (kind == "call" and parts[0] in _BENDING_CALLS)
    if kind == "pow":  # whole powers and exponentials do not bend
        whole = parts[1][0] == "num" and parts[1][1].denominator == 1
        bent = not whole and parts[0][0] not in ("num", "const")
    return bent or any(_bends(part) for part in parts if isinstance(part, tuple))


def _imaginary(tree: Tree) -> bool:
    return tree == ("const", "i") or any(
        _imaginary(part) for part in tree[1:] if isinstance(part, tuple)
    )


def value(tree: Tree, point: Point, allow_complex: bool) -> Any:
    """The value at a point, to the working precision.

    Raises:
        Undefined: there is none, or none over the reals where these are asked for.
        TooLarge: it is not worked out.
    """
    found = _value(tree, point, allow_complex)
    if isinstance(found, mpmath.mpc):
        if not allow_complex:
            raise Undefined
    elif not mpmath.isfinite(found):
        raise Undefined
    return found


def _value(tree: Tree, point: Point, allow_complex: bool) -> Any:
    def of(part: Tree) -> Any:
        return value(part, point, allow_complex)

    match tree:
        case ("num", x):
            return mpmath.mpf(x.numerator) / x.denominator
        case ("var", name):
            return point[name]
        case ("const", "pi"):
            return +mpmath.pi
        case ("const", "e"):
            return +mpmath.e
        case ("const", "i"):
            return mpmath.mpc(0, 1)
        case ("neg", x):
            return -of(x)
        case ("abs", x):
            return abs(of(x))
        case ("add", x, y):
            return of(x) + of(y)
        case ("mul", x, y):
            return of(x) * of(y)
        case ("div", x, y):
            return of(x) / of(y)
        case ("pow", x, y):
            return _power(of(x), of(y))
        case ("root", degree, x):
            return _root(of(x), of(degree), allow_complex)
        case ("log", base, x):
            logarithm = mpmath.log(of(x))
            return logarithm / mpmath.log(of(base) if base is not None else point[_BASE])
        case _:
            return _named(tree, of)


def _named(tree: Tree, of: Callable[[Tree], Any]) -> Any:
    match tree:
        case ("fact", x):
            n = of(x)
            if abs(n) > LARGEST_FACTORIAL:
                raise TooLarge
            return mpmath.gamma(n + 1)
        case ("binom", n, k):
            top, bottom = of(n), of(k)
            if max(abs(top), abs(bottom)) > LARGEST_FACTORIAL:
                raise TooLarge
            return mpmath.binomial(top, bottom)
        case (("max" | "min") as name, *parts):
            found = [of(part) for part in parts]
            if any(isinstance(x, mpmath.mpc) for x in found):
                raise Undefined
            return max(found) if name == "max" else min(found)
        case ("call", name, x):
            argument = of(x)
            if abs(argument) > mpmath.mpf(2) ** LARGEST_LOG2:
                raise TooLarge
            return getattr(mpmath, name)(argument)
        case _:
            raise Undefined


def _power(base: Any, exponent: Any) -> Any:
    if base == 0:
        if mpmath.re(exponent) <= 0:
            raise Undefined
        return mpmath.mpf(0)
    if abs(exponent) * abs(mpmath.log(abs(base), 2)) > LARGEST_LOG2:
        raise TooLarge
    return base**exponent


def _root(x: Any, degree: Any, allow_complex: bool) -> Any:
    if degree == 0:
        raise Undefined
    odd = degree == mpmath.floor(degree) and degree % 2 == 1
    if not allow_complex and odd and x < 0:
        return -((-x) ** (1 / degree))
    return _power(x, 1 / degree) if x != 0 else mpmath.mpf(0)
