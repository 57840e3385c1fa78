"""Exact answers: what stands between the answer tags, after the thinking, equals the gold."""

from __future__ import annotations

from typing import Literal

Outcome = Literal["correct", "wrong", "no_answer", "timeout", "error"]

THINK_END, ANSWER, ANSWER_END = "</think>", "<answer>", "</answer>"


def exact_outcome(text: str, gold: str) -> Outcome:
    """Compare the last closed answer after the end of thinking with `gold`, white space apart.

    Strict on purpose: an answer given while still thinking, or outside the tags, is no answer, so
    that naming candidates earns nothing. Text that never ends its thinking has no answer.
    """
    _, ended, solution = text.rpartition(THINK_END)
    if not ended:
        return "no_answer"
    before, closed, _ = solution.rpartition(ANSWER_END)
    _, opened, answer = before.rpartition(ANSWER)
    if not closed or not opened or not answer.strip():
        return "no_answer"
    return "correct" if answer.split() == gold.split() else "wrong"
