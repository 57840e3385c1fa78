"""Writes functions.jsonl: Python functions of one line, described in words, with calls as tests.

    python examples/functions.py

Two steps of plus, minus or times a digit, 300 of the 729, drawn with a seed. `solution` is what
the embedded start model is shown; the tests are what counts.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
ROWS = 300
ARGUMENTS = (0, 1, 5, 12, -7)


def rows() -> list[dict[str, str]]:
    steps = list(itertools.product(SIGNS, range(1, 10)))
    chosen = random.Random(0).sample(list(itertools.product(steps, steps)), ROWS)
    return [row(*first, *second) for first, second in chosen]


def row(word: str, a: int, word_after: str, b: int) -> dict[str, str]:
    body = f"(x{SIGNS[word]}{a}){SIGNS[word_after]}{b}"
    tests = {
        "fn_name": "f",
        "inputs": [[x] for x in ARGUMENTS],
        "outputs": [apply(word_after, b, apply(word, a, x)) for x in ARGUMENTS],
    }
    return {
        "problem": f"python f(x): {word} {a}, {word_after} {b}",
        "tests": json.dumps(tests),
        "solution": f"f=lambda x:{body}",
    }


def apply(word: str, digit: int, value: int) -> int:
    match word:
        case "plus":
            return value + digit
        case "minus":
            return value - digit
        case _:
            return value * digit


if __name__ == "__main__":
    text = "".join(json.dumps(row) + "\n" for row in rows())
    Path(__file__).with_name("functions.jsonl").write_text(text, "utf-8")
