r"""The intervals that an inequality of one variable stands for.

    x > 5            (5, ∞)                 |x - 1| \le 3    [-2, 4]
    1 < x \le 2      (1, 2]                 |x| > 2          (-∞, -2) and (2, ∞)
    x \ne 0          (-∞, 0) and (0, ∞)

Ends that have to be worked out or put in order are rational, of `MOST_BITS` at most; other
inequalities stand for no interval here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from scalerl.rewards.rational import exact_value
from scalerl.rewards.tokens import is_letter

Tokens = tuple[str, ...]

MOST_BITS = 1_000
FLIPPED = {">": "<", r"\ge": r"\le"}
_INFINITY: Tokens = (r"\infty",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """An interval of one variable."""

    brackets: str  # "(]": open below, closed above
    low: Tokens
    high: Tokens
    variable: str


def spans(sides: Sequence[Tokens], signs: Sequence[str]) -> list[Span]:
    r"""Intervals of `side sign side …`, none where it is no inequality of one variable.

    Args:
        signs: one fewer than sides; only `<`, `\le`, `>`, `\ge` make an interval.
    """
    if all(sign in FLIPPED for sign in signs):
        sides, signs = sides[::-1], [FLIPPED[sign] for sign in reversed(signs)]
    if not all(sign in ("<", r"\le") for sign in signs):
        return []
    match list(sides):
        case [low, (name,), high] if is_letter(name):
            found = [_span(name, low, high, signs[0] == "<", signs[1] == "<")]
        case [(name,), high] if is_letter(name):
            found = [_span(name, ("-", *_INFINITY), high, True, signs[0] == "<")]
        case [low, (name,)] if is_letter(name):
            found = [_span(name, low, _INFINITY, signs[0] == "<", True)]
        case [("|", *inside, "|"), radius]:
            return _about(inside, radius, within=True, strict=signs[0] == "<")
        case [radius, ("|", *inside, "|")]:
            return _about(inside, radius, within=False, strict=signs[0] == "<")
        case _:
            return []
    return [s for s in found if s.variable not in (*s.low, *s.high)]


def without_points(points: Sequence[Tokens], variable: str = "") -> list[Span]:
    """All reals but these points, in order; none where a point is not rational."""
    values = sorted({value for point in points if (value := _small(point)) is not None})
    if not values or any(_small(point) is None for point in points):
        return []
    ends = [("-", *_INFINITY), *map(_written, values), _INFINITY]
    return [_span(variable, low, high, True, True) for low, high in pairwise(ends)]


def _about(inside: list[str], radius: Tokens, *, within: bool, strict: bool) -> list[Span]:
    r"""|x - 3| < 2, or > 2 where not within. z and w may be complex."""
    name, shift = inside[0] if inside else "", tuple(inside[1:])
    centre = Fraction(0)
    if shift:
        found = _small(shift) if shift[0] in ("+", "-") else None
        if found is None:
            return []
        centre = -found
    size = _small(radius)
    if size is None or size <= 0 or not is_letter(name) or name in ("z", "w"):
        return []
    low, high = _written(centre - size), _written(centre + size)
    if within:
        return [_span(name, low, high, strict, strict)]
    return [
        _span(name, ("-", *_INFINITY), low, True, strict),
        _span(name, high, _INFINITY, strict, True),
    ]


def _span(variable: str, low: Tokens, high: Tokens, open_low: bool, open_high: bool) -> Span:
    brackets = ("(" if open_low else "[") + (")" if open_high else "]")
    return Span(brackets=brackets, low=low, high=high, variable=variable)


def _small(tokens: Tokens) -> Fraction | None:
    value = exact_value(tokens)
    if value is None or max(value.numerator.bit_length(), value.denominator.bit_length()) > (
        MOST_BITS
    ):
        return None
    return value


def _written(value: Fraction) -> Tokens:
    size = (str(abs(value.numerator)), "/", str(value.denominator))
    return ("-", *size) if value < 0 else size
