"""When a run's figures are alarming: the judge that the command line brings to a run.

truncation   share of completions cut at the limit, mean of 3 steps: amber 5 %, red 10 %
             (arXiv 2510.13786, A.15: 10–15 % destabilised training)
interruption share of completions whose thinking was cut short, likewise, but never above amber:
             interruptions are ScaleRL's length control at work. A sound run in which the longest
             chains do not fit has 17 to 34 % of them to its end (docs/curve.jsonl,
             docs/study/axes), so they must neither stop a run nor roll it back
drawdown     held-out pass rate below its best, as `scaling.warn` has it
mismatch     |log π_train − log π_gen| at equal weights, mean of a step
entropy      of the held-out completions, against its value before RL
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

import numpy as np

from scalerl.pipeline.alarms import Alarm
from scalerl.scaling.warn import (
    DRAWDOWN_AMBER,
    DRAWDOWN_RED,
    MIN_EVALUATIONS,
    TRUNCATION_AMBER,
    TRUNCATION_RED,
    drawdown_score,
)

# Mean mismatch in nats at equal weights: a bfloat16 model on both sides has about 1e-3.
MISMATCH_AMBER, MISMATCH_RED = 0.01, 0.05
# Held-out entropy as a multiple of its first value: a policy that dissolves rises, one that has
# collapsed before it is right (pass rate below COLLAPSED_BELOW) falls to almost nothing.
ENTROPY_AMBER, ENTROPY_RED = 1.5, 3.0
COLLAPSE_AMBER, COLLAPSE_RED = 0.05, 0.01
COLLAPSED_BELOW = 0.9
SMOOTHED_STEPS = 3

Level = Literal["amber", "red"]
Kind = Literal["truncation", "interruption", "drawdown", "mismatch", "entropy"]


class Monitor:
    """Raises each alarm once, and again only after its figure has been in order."""

    def __init__(self) -> None:
        self._truncation: deque[float] = deque(maxlen=SMOOTHED_STEPS)
        self._interruption: deque[float] = deque(maxlen=SMOOTHED_STEPS)
        self._curve: list[dict[str, Any]] = []
        self._raised: dict[str, Level | None] = {}
        self._since: dict[str, int] = {}

    def on_step(self, row: dict[str, Any]) -> list[Alarm]:
        """Truncation, interruption and mismatch of one optimiser step."""
        rate = _mean_with(self._truncation, row.get("truncation_rate"))
        alarms = self._judge(
            "truncation",
            _above(rate, TRUNCATION_AMBER, TRUNCATION_RED),
            row["step"],
            f"{rate:.1%} of completions are cut at the length limit; the paper saw instability "
            "at 10-15 %",
        )
        rate = _mean_with(self._interruption, row.get("interruption_rate"))
        alarms += self._judge(
            "interruption",
            _above(rate, TRUNCATION_AMBER, TRUNCATION_RED),
            row["step"],
            f"the thinking of {rate:.1%} of completions is cut short at its budget",
            acts=False,
        )
        gap = row.get("equal_weights_mismatch_mean")
        if gap is not None:
            alarms += self._judge(
                "mismatch",
                _above(gap, MISMATCH_AMBER, MISMATCH_RED),
                row["step"],
                f"trainer and generator differ by {gap:.3g} nats a token at equal weights",
            )
        return alarms

    def on_evaluation(self, row: dict[str, Any]) -> list[Alarm]:
        """Drawdown and entropy of one evaluation."""
        self._curve = [r for r in self._curve if r["step"] < row["step"]] + [row]
        return self._drawdown(row) + self._entropy(row)

    def _drawdown(self, row: dict[str, Any]) -> list[Alarm]:
        rates = np.array([[r["pass_rate"] for r in self._curve]])
        if rates.shape[1] < MIN_EVALUATIONS:
            return []
        score = float(drawdown_score(rates)[0, -1])
        best = int(np.argmax(rates[0]))
        return self._judge(
            "drawdown",
            _above(score, DRAWDOWN_AMBER, DRAWDOWN_RED),
            row["step"],
            f"held-out pass rate {row['pass_rate']:.3f} is {score:.1f} noise SD below its best, "
            f"{rates[0, best]:.3f} at step {self._curve[best]['step']}",
            since=self._curve[best]["step"],
        )

    def _entropy(self, row: dict[str, Any]) -> list[Alarm]:
        first = self._curve[0]["entropy"]
        if not first:
            return []
        share = row["entropy"] / first
        level = _above(share, ENTROPY_AMBER, ENTROPY_RED)
        if level is None and row["pass_rate"] < COLLAPSED_BELOW:
            level = _above(-share, -COLLAPSE_AMBER, -COLLAPSE_RED)
        return self._judge(
            "entropy",
            level,
            row["step"],
            f"held-out entropy is {row['entropy']:.3g} nats, {share:.2g} times what it was",
        )

    def _judge(
        self,
        kind: Kind,
        level: Level | None,
        step: int,
        message: str,
        *,
        since: int | None = None,
        acts: bool = True,
    ) -> list[Alarm]:
        """An alarm if this level is new for the kind; a return to order arms it again. One that
        may not act on the run is amber at either level."""
        before = self._raised.get(kind)
        self._raised[kind] = level
        if level is None:
            self._since[kind] = step
            return []
        if level == before or (before == "red" and level == "amber"):
            return []
        began = since if since is not None else self._since.get(kind, 0)
        told = level if acts else "amber"
        return [
            Alarm(kind=kind, level=told, step=step, since_step=min(began, step), message=message)
        ]


def _mean_with(recent: deque[float], rate: float | None) -> float:
    """The mean of the last steps, this one among them."""
    recent.append(rate or 0.0)
    return sum(recent) / len(recent)


def _above(value: float, amber: float, red: float) -> Level | None:
    if value > red:
        return "red"
    return "amber" if value > amber else None
