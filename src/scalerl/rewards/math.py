r"""Mathematical answers: extract, compare as written, compare exactly, and only then ask a worker.

    text ─extract─▶ answer ─same tokens?─▶ both exact numbers? ─▶ worker: `symbolic`
             │            └ correct             └ correct, wrong      └ correct, wrong,
             └ no_answer                                                timeout, error

The first three steps run in the caller: bounded, without libraries, about 10⁴ answers a second.
"""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.rewards.exact import Outcome
from scalerl.rewards.extraction import Mode, final_answer
from scalerl.rewards.rational import exact_value
from scalerl.rewards.tokens import tokenize
from scalerl.rewards.workers import Workers

PRELOAD = ("scalerl.rewards.symbolic", "latex2sympy2_extended.latex2sympy2", "math_verify")


def quick_outcome(answer: str | None, golds: Sequence[str]) -> Outcome | None:
    """The outcome where it can be told at once; None where a worker has to look.

    Args:
        golds: right answers; any of them will do.
    """
    if answer is None:
        return "no_answer"
    tokens = tokenize(answer)
    if not tokens:
        return "no_answer"
    gold_tokens = [tokenize(gold) for gold in golds]
    if tokens in gold_tokens:
        return "correct"
    value = exact_value(tokens)
    if value is None:
        return None
    values = [exact_value(gold) for gold in gold_tokens]
    if value in values:
        return "correct"
    return "wrong" if None not in values else None


def math_job(answer: str, golds: Sequence[str]) -> dict[str, object]:
    """What a worker is asked."""
    return {"kind": "math", "golds": list(golds), "answer": answer}


def math_outcome(
    text: str,
    golds: str | Sequence[str],
    workers: Workers,
    *,
    mode: Mode = "strict",
    thinking_open: bool = False,
) -> Outcome:
    """The outcome of a completion, waiting for a worker where one is needed.

    Raises:
        RunError: the workers do not start.
    """
    golds = [golds] if isinstance(golds, str) else golds
    answer = final_answer(text, mode=mode, thinking_open=thinking_open)
    outcome = quick_outcome(answer, golds)
    if outcome is not None or answer is None:
        return outcome or "no_answer"
    return workers.check(math_job(answer, golds))["outcome"]
