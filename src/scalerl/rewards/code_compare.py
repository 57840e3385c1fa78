"""Whether a program's output, or a function's value, is the expected one.

**Printed output.** White space at line ends and empty lines at the end do not count; runs of white
space within a line are one. Lines are compared in order, and token by token:

- the same text is the same token; case counts;
- an expected whole number is also met by a decimal of exactly that value (``3`` by ``3.0``), never
  by other digits (``10`` is not ``0010``);
- an expected decimal (a point or an exponent) is met by any number within one part in a million,
  plus half a unit of its last printed place where that is finer than one in a million; so
  ``0.333333`` is met by ``0.3333333333`` and ``0.33`` is not.

There is no other leniency: where any order or any of several answers is right, the task needs a
checker of its own.

**Function values.** Both sides are JSON values: lists in order, objects by key, strings exactly,
``true`` is not ``1``. A whole number is met by a float of exactly that value, a float by any
number within one part in a million.

Nothing here runs or evaluates what it is given. Comparison uses exact decimals, never binary
floats, and refuses tokens too long to be worth reading as numbers.
"""

from __future__ import annotations

import re
from decimal import Decimal, localcontext
from typing import Any

RELATIVE = Decimal("1e-6")
_LONGEST_NUMBER = 400  # characters; longer tokens are equal as text or not at all
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_DEEPEST_VALUE = 100  # nesting of a function's value


def same_output(got: str, expected: str) -> bool:
    """Whether printed text meets the expected text under the rules above."""
    got_lines, expected_lines = _lines(got), _lines(expected)
    if len(got_lines) != len(expected_lines):
        return False
    return all(map(_same_line, got_lines, expected_lines))


def same_value(got: Any, expected: Any, depth: int = 0) -> bool:
    """Whether one JSON value meets another under the rules above."""
    if depth > _DEEPEST_VALUE:
        return False
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        return type(got) is type(expected) and got == expected
    if isinstance(expected, int | float):
        if isinstance(got, bool) or not isinstance(got, int | float):
            return False
        return _same_number(got, expected)
    if isinstance(expected, list):
        return (
            isinstance(got, list)
            and len(got) == len(expected)
            and all(same_value(g, e, depth + 1) for g, e in zip(got, expected, strict=True))
        )
    return (
        isinstance(got, dict)
        and got.keys() == expected.keys()
        and all(same_value(got[key], expected[key], depth + 1) for key in expected)
    )


def _lines(text: str) -> list[list[str]]:
    lines = [line.split() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_line(got: list[str], expected: list[str]) -> bool:
    return len(got) == len(expected) and all(map(_same_token, got, expected))


def _same_token(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if max(len(got), len(expected)) > _LONGEST_NUMBER:
        return False
    if not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    if _WHOLE.fullmatch(expected):
        return _WHOLE.fullmatch(got) is None and _exactly(got, expected)
    return _near(Decimal(got), Decimal(expected), _rounding(expected))


def _exactly(got: str, expected: str) -> bool:
    if expected.lstrip("+-") != "0" and expected.lstrip("+-").startswith("0"):
        return False  # leading zeros are text, as in a binary string
    return Decimal(got) == Decimal(expected)


def _rounding(expected: str) -> Decimal:
    """Half a unit of the last printed place, at most 1e-6; none for numbers with an exponent."""
    if "e" in expected.lower():
        return Decimal(0)
    places = len(expected.partition(".")[2])
    return min(Decimal(5).scaleb(-places - 1), RELATIVE)


def _near(got: Decimal, expected: Decimal, slack: Decimal = Decimal(0)) -> bool:
    with localcontext() as context:
        context.prec = 2 * _LONGEST_NUMBER
        return abs(got - expected) <= abs(expected) * RELATIVE + slack


def _same_number(got: int | float, expected: int | float) -> bool:
    if isinstance(expected, int):
        return got == expected  # int against float compares exactly
    if got == expected or (got != got and expected != expected):
        return True
    if isinstance(got, int) and abs(got) >= 1 << 1024:
        return False  # beyond every float
    got_d, expected_d = Decimal(got), Decimal(expected)
    if not (got_d.is_finite() and expected_d.is_finite()):
        return False
    return _near(got_d, expected_d)
