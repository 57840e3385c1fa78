"""How many bits apart the terms of a formula may lie: what a comparison has to resolve.

(1 - 4^-2024)·√3 differs from √3 in the 4,048th bit: digits for that are chosen from the formula,
before anything is worked out. An estimate from above, for letters between 1/8 and 4.
"""

from __future__ import annotations

import math

from scalerl.rewards.expression import Tree
from scalerl.rewards.rational import evaluate

MOST_BITS = 60_000
_LETTER = 3  # bits
_LARGEST = float(1 << 17)
_BOUNDED = frozenset(["sin", "cos", "asin", "acos", "atan", "tanh"])


def bits(tree: Tree) -> int:
    """At most `MOST_BITS`, which stands for more as well."""
    return min(MOST_BITS, _bits(tree))


def _bits(tree: Tree) -> int:
    match tree:
        case ("num", value):
            return value.numerator.bit_length() + value.denominator.bit_length() - 1
        case ("var" | "const", _):
            return _LETTER
        case ("add", x, y):
            return 1 + max(bits(x), bits(y))
        case ("pow", x, y):
            return int(max(1, bits(x)) * _size(y)) + 1
        case ("fact", x):
            return int(_size(x)) * int(_size(x)).bit_length()
        case ("binom", n, k):
            return int(max(_size(n), _size(k))) + 1
        case ("call", "sinh" | "cosh", x):
            return int(2 * _size(x)) + 1
        case _:
            return sum(bits(part) for part in tree[1:] if isinstance(part, tuple))


def _size(tree: Tree) -> float:
    """How large its absolute value may be, 1 at least and `_LARGEST` at most."""
    value = evaluate(tree)
    if value is not None:
        return float(min(max(abs(value), 1), int(_LARGEST)))
    match tree:
        case ("add", x, y):
            found = _size(x) + _size(y)
        case ("mul", x, y):
            found = _size(x) * _size(y)
        case ("div", x, y):
            divisor = evaluate(y)
            found = _size(x) * (8 if divisor is None else float(min(1 / abs(divisor), 1 << 17)))
        case ("pow", x, y):
            found = 2 ** min(17.0, _size(y) * math.log2(_size(x) + 1))
        case ("var" | "const", _):
            found = 4.0
        case ("call", name, _) if name in _BOUNDED:
            found = 4.0
        case ("fact" | "binom" | "call", *_):
            found = 2 ** min(17.0, float(bits(tree)))
        case _:
            found = max(_size(part) for part in tree[1:] if isinstance(part, tuple))
    return min(max(found, 1.0), _LARGEST)
