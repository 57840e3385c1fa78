"""Exact values: a formula of rational numbers is worked out to a fraction, or not at all.

No rounding and no tolerance: 33.3 is not 100/3, and 1/2004! is not 1/2006!. Work is bounded by the
size of the numbers (`MOST_BITS`), judged before each operation.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from scalerl.rewards.expression import Tree, number, parse
from scalerl.rewards.tokens import is_number

MOST_BITS = 40_000  # of a numerator or denominator; 2006! has 19,116
LARGEST_FACTORIAL = 3_500


class NotRational(Exception):
    """The formula has no exact rational value, or one that is too large to work out."""


@lru_cache(maxsize=4096)
def exact_value(tokens: tuple[str, ...]) -> Fraction | None:
    """The rational value of a formula, or None where it has none or is too large."""
    if len(tokens) == 1:
        return number(tokens[0]) if is_number(tokens[0]) else None
    tree = parse(tokens)
    return None if tree is None else evaluate(tree)


def evaluate(tree: Tree) -> Fraction | None:
    try:
        return _value(tree)
    except (NotRational, ZeroDivisionError):  # an undefined value equals nothing
        return None


def _value(tree: Tree) -> Fraction:
    match tree:
        case ("num", value):
            return value
        case ("neg", x):
            return -_value(x)
        case ("abs", x):
            return abs(_value(x))
        case ("add", x, y):
            return _bounded(_value(x) + _value(y))
        case ("mul", x, y):
            return _bounded(_value(x) * _value(y))
        case ("div", x, y):
            return _bounded(_value(x) / _value(y))
        case ("pow", x, y):
            return _power(_value(x), _value(y))
        case ("root", degree, x):
            return _power(_value(x), 1 / _value(degree))
        case ("fact", x):
            n = _natural(_value(x))
            return Fraction(math.factorial(n))
        case ("binom", n, k):
            return Fraction(math.comb(_natural(_value(n)), _natural(_value(k))))
        case ("call", "floor", x):
            return Fraction(math.floor(_value(x)))
        case ("call", "ceil", x):
            return Fraction(math.ceil(_value(x)))
        case ("log", base, x) if base is not None:
            return _logarithm(_value(base), _value(x))
        case (("gcd" | "lcm" | "max" | "min") as name, *parts):
            return _of_several(name, [_value(part) for part in parts])
        case _:
            raise NotRational


def _of_several(name: str, values: list[Fraction]) -> Fraction:
    if name in ("max", "min"):
        return max(values) if name == "max" else min(values)
    if any(value.denominator != 1 for value in values):
        raise NotRational
    if name == "gcd":
        return Fraction(math.gcd(*(value.numerator for value in values)))
    multiple = Fraction(1)
    for value in values:
        multiple = _bounded(Fraction(math.lcm(multiple.numerator, value.numerator)))
    return multiple


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MOST_BITS:
        raise NotRational
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _natural(value: Fraction) -> int:
    if value.denominator != 1 or not 0 <= value <= LARGEST_FACTORIAL:
        raise NotRational
    return value.numerator


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if exponent.denominator > 64:
            raise NotRational
        base = _perfect_root(base, exponent.denominator)
    n = exponent.numerator
    if base == 0 and n <= 0:
        raise NotRational
    if base in (0, 1, -1):
        return base if n % 2 else abs(base)
    if abs(n) * _bits(base) > MOST_BITS:
        raise NotRational
    return base**n


def _perfect_root(base: Fraction, degree: int) -> Fraction:
    if base < 0 and degree % 2 == 0:
        raise NotRational
    sign = -1 if base < 0 else 1
    top, bottom = (_integer_root(abs(n), degree) for n in (base.numerator, base.denominator))
    return Fraction(sign * top, bottom)


def _integer_root(n: int, degree: int) -> int:
    if degree == 2:
        root = math.isqrt(n)
    else:
        low, high = 0, 1 << (n.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= n else (low, middle - 1)
        root = low
    if root**degree != n:
        raise NotRational
    return root


def _logarithm(base: Fraction, x: Fraction) -> Fraction:
    """log_2 8 = 3, where it is an integer."""
    if base <= 0 or base == 1 or x <= 0:
        raise NotRational
    guess = round(_log2(x) / _log2(base))
    if _power(base, Fraction(guess)) != x:
        raise NotRational
    return Fraction(guess)


def _log2(value: Fraction) -> float:
    return math.log2(value.numerator) - math.log2(value.denominator)
