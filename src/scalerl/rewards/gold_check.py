"""Whether a gold answer can be checked at all, before a run depends on it."""

from __future__ import annotations

import json

from scalerl.errors import InputError
from scalerl.rewards.code_tests import Tests, read_livecodebench, read_tests
from scalerl.rewards.expression import parse
from scalerl.rewards.rational import exact_value
from scalerl.rewards.structure import (
    Answer,
    Formula,
    Matrix,
    Ordered,
    Relation,
    Unstructured,
    Values,
    read,
)
from scalerl.rewards.tokens import is_word, tokenize
from scalerl.rewards.units import without_unit


def gold_fault(reward: str, gold: str) -> str | None:
    """What is wrong with a gold answer, or None.

    A math gold that cannot be read is right only where it is written alike; a code task without
    usable tests can never be right.
    """
    match reward:
        case "math":
            return _math_fault(gold)
        case "code":
            try:
                code_tests(gold)
            except InputError as error:
                return f"no usable tests ({error}): mend or remove the row"
            return None
        case _:
            return None


def code_tests(text: str) -> Tests:
    """The tests of a code task: in a shape of `read_tests`, or fields of a LiveCodeBench row.

    Raises:
        InputError: there are none that prove anything.
    """
    if '"public_test_cases"' in text[:1000]:
        return read_livecodebench(json.loads(text))
    return read_tests(text)


def _math_fault(gold: str) -> str | None:
    tokens = tokenize(gold)
    if not tokens:
        return f"{gold!r} holds nothing to compare: write an answer"
    try:
        readable = _readable(read(tokens))
    except Unstructured:
        readable = False
    if readable:
        return None
    return f"{gold!r} cannot be read: only the same text will count as right; mend it if it can be"


def _readable(answer: Answer) -> bool:
    match answer:
        case Formula(tokens):
            bare, _ = without_unit(tokens)
            words = all(is_word(token) for token in tokens)
            infinite = tokens[-1] == r"\infty" and len(tokens) <= 2
            return words or infinite or exact_value(bare) is not None or parse(bare) is not None
        case Values(members) | Ordered(_, members):
            return all(_readable(member) for member in members)
        case Matrix(_, rows):
            return all(_readable(cell) for row in rows for cell in row)
        case Relation(_, left, right):
            return parse(right) is not None or parse(left) is not None
