"""The table of answer pairs with the right verdicts: some written by hand, some by construction.

    python benchmarks/math_pairs.py     prints how many there are

Those by hand lie in math_pairs_by_hand.jsonl and follow the rules of docs/rewards.md.

By construction: a value is drawn and written in two ways that a known rewriting makes equal, and
one small change makes an unequal twin. The truth comes from the construction, never from a checker.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

Pair = tuple[str, str, bool, str]

BY_HAND = Path(__file__).with_name("math_pairs_by_hand.jsonl")


def by_hand() -> Iterator[Pair]:
    for line in BY_HAND.read_text("utf-8").splitlines():
        row = json.loads(line)
        yield row["gold"], row["answer"], row["equal"], row["rule"]


def by_construction(seed: int = 0) -> Iterator[Pair]:
    rng = random.Random(seed)
    for _ in range(25):
        yield from _rationals(rng)
        yield from _surds(rng)
        yield from _polynomials(rng)
        yield from _intervals(rng)
        yield from _several(rng)
        yield from _lines(rng)


def _rationals(rng: random.Random) -> Iterator[Pair]:
    value = Fraction(rng.randrange(1, 400), rng.choice([2, 4, 5, 8, 10, 20, 25, 40]))
    factor = rng.randrange(2, 9)
    gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    same = rf"\dfrac{{{value.numerator * factor}}}{{{value.denominator * factor}}}"
    yield gold, same, True, "built: fractions"
    yield gold, f"{float(value)}", True, "built: fractions"
    yield gold, f"{float(value + Fraction(1, 1000))}", False, "built: fractions"
    yield gold, rf"-{same}", False, "built: fractions"


def _surds(rng: random.Random) -> Iterator[Pair]:
    a, b, c = rng.randrange(2, 12), rng.choice([2, 3, 5, 6, 7, 10]), rng.randrange(1, 9)
    gold = rf"{c} + {a}\sqrt{{{b}}}"
    yield gold, rf"\sqrt{{{a * a * b}}}+{c}", True, "built: surds"
    yield gold, rf"\sqrt{{{a * a * b + 1}}}+{c}", False, "built: surds"
    yield gold, rf"{c} - {a}\sqrt{{{b}}}", False, "built: surds"


def _polynomials(rng: random.Random) -> Iterator[Pair]:
    p, q = rng.randrange(1, 9), rng.randrange(1, 9)
    gold = f"(x+{p})(x-{q})"
    yield gold, f"x^2{p - q:+d}x-{p * q}", True, "built: polynomials"
    yield gold, f"x^2{p - q:+d}x+{p * q}", False, "built: polynomials"


def _intervals(rng: random.Random) -> Iterator[Pair]:
    low = rng.randrange(-9, 9)
    high = low + rng.randrange(1, 9)
    yield f"[{low},{high})", rf"{low} \le x < {high}", True, "built: intervals"
    yield f"[{low},{high})", rf"\left[{low}, {high}\right]", False, "built: intervals"
    yield f"[{low},{high})", f"[{low},{high + 1})", False, "built: intervals"


def _several(rng: random.Random) -> Iterator[Pair]:
    members = rng.sample(range(-20, 20), 4)
    shuffled = rng.sample(members, 4)
    gold = ", ".join(map(str, members))
    yield gold, r"\{" + ",".join(map(str, shuffled)) + r"\}", True, "built: several"
    shuffled[0] += 40
    yield gold, ", ".join(map(str, shuffled)), False, "built: several"
    yield gold, ", ".join(map(str, members[:3])), False, "built: several"


def _lines(rng: random.Random) -> Iterator[Pair]:
    a, b = rng.randrange(2, 9), rng.randrange(1, 9)
    yield f"y = {a}x + {b}", f"{2 * a}x - 2y + {2 * b} = 0", True, "built: lines"
    yield f"y = {a}x + {b}", f"{2 * a}x - 2y + {b} = 0", False, "built: lines"


def pairs() -> list[Pair]:
    return list(dict.fromkeys([*by_hand(), *by_construction()]))


if __name__ == "__main__":
    print(f"{len(list(by_hand()))} by hand, {len(set(by_construction()))} by construction")
