"""Verdicts on pairs of answers: the whole table, and what must hold for any text."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.rewards.math import quick_outcome
from scalerl.rewards.symbolic import equal_answers
from scalerl.rewards.tokens import tokenize

TABLE = Path(__file__).parents[3] / "benchmarks" / "math_pairs.py"


def table():
    spec = importlib.util.spec_from_file_location("math_pairs", TABLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pairs()


NEEDS_EXTRA = (r"\sum", r"\int")
HAS_EXTRA = importlib.util.find_spec("math_verify") is not None


def test_no_wrong_answer_of_the_table_is_accepted_and_no_right_one_rejected():
    pairs = table()
    assert len(pairs) >= 300
    wrong = [
        (gold, answer, equal)
        for gold, answer, equal, _ in pairs
        for one, other in ((gold, answer), (answer, gold))
        if HAS_EXTRA or not any(sign in gold for sign in NEEDS_EXTRA)
        if equal_answers(one, other) != equal
    ]
    assert wrong == []


def test_what_the_caller_decides_at_once_agrees_with_the_worker():
    decided = 0
    for gold, answer, equal, _ in table():
        outcome = quick_outcome(answer, [gold])
        if outcome is not None:
            assert outcome == (
                "correct" if equal else ("wrong" if tokenize(answer) else "no_answer")
            )
            decided += 1
    assert decided > 200


TEXT = st.text(
    alphabet=st.sampled_from([*r"0123456789.,+-*/^_(){}[]\<>=!%|$'&: xyei", "π", "√", "é", "²"]),
    max_size=40,
)


@given(TEXT)
def test_every_text_equals_itself_and_never_raises(text):
    assert equal_answers(text, text) is bool(tokenize(text))


@given(TEXT, TEXT)
def test_the_verdict_does_not_depend_on_which_side_is_gold(one, other):
    assert equal_answers(one, other) == equal_answers(other, one)


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_integers_are_equal_when_they_are(a, b):
    assert quick_outcome(str(a), [f"0{b}" if b >= 0 else str(b)]) == (
        "correct" if a == b else "wrong"
    )


@given(st.fractions(), st.fractions())
def test_fractions_are_compared_exactly(a, b):
    gold = rf"\frac{{{a.numerator}}}{{{a.denominator}}}"
    answer = f"{b.numerator * 3}/{b.denominator * 3}"
    assert quick_outcome(answer, [gold]) == ("correct" if a == b else "wrong")
    assert quick_outcome(f"{a.numerator * 7}/{a.denominator * 7}", [gold]) == "correct"


@pytest.mark.parametrize(
    "text", ["(" * 100_000, r"\frac{1}{" * 5_000, "9" * 100_000, "9^" * 5_000 + "9", "-" * 50_000]
)
def test_very_long_text_is_wrong_and_quick(text):
    assert not equal_answers("7", text)
    assert not equal_answers(text + "1", text)
