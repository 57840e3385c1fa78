"""Curves that cross: a variant ahead of the base early and behind it late, or the other way round.

    D(C) = R_variant(C) − R_base(C), each the mean over its runs, spread between runs included
    early: where the base has a third of its gain;  late: where the shorter window ends; last: A

Two equal curves cross somewhere in most draws; a crossing is told only when the sign of D turns in
SURE of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.scaling.draws import normal_scores
from scalerl.scaling.replicates import RunSpread, equal_draws
from scalerl.scaling.result import Fit
from scalerl.scaling.sigmoid import Floats

SURE = 0.8
EARLY = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Who is ahead early and who late."""

    ahead_early: str
    ahead_late: str
    p: float
    at: float
    """Compute at which the median curves cross."""
    seen: bool
    """Within what both have been measured at; else it is the ceilings that are the other way."""

    def words(self, form: str) -> str:
        where = "" if self.seen else ", beyond what was measured"
        return (
            f"{self.ahead_early} ahead early, {self.ahead_late} late: they cross near {form}"
            f" (P = {self.p:.2f}{where})"
        )


def crossing(
    name: str, fits: Sequence[Fit], base: str, base_fits: Sequence[Fit], spread: RunSpread
) -> Crossing | None:
    """The crossing of a variant with its base, or None where there is none to be sure of."""
    mine = [f for f in fits if f.draws is not None]
    other = [f for f in base_fits if f.draws is not None]
    if not mine or not other:
        return None
    end = min(max(f.window[1] for f in fs) for fs in (mine, other))
    start = max(min(f.window[0] for f in fs) for fs in (mine, other))
    if start >= end:
        return None
    C = np.geomspace(start, end * 30, 200)
    a, A_a = _curves(mine, C, spread, 1)
    b, A_b = _curves(other, C, spread, 2)
    middle = np.median(b, axis=0)
    gained = (middle - middle[0]) / max(float(np.median(A_b)) - middle[0], 1e-9)
    early = int(np.clip(np.searchsorted(gained, EARLY), 0, len(C) - 2))
    late = int(np.searchsorted(C, end, side="right")) - 1
    for seen, last in ((True, (a - b)[:, late]), (False, A_a - A_b)):
        if seen and early >= late:
            continue
        first = (a - b)[:, early]
        for early_name, late_name, turned in (
            (name, base, (first > 0) & (last < 0)),
            (base, name, (first < 0) & (last > 0)),
        ):
            p = float(np.mean(turned))
            if p >= SURE:
                return Crossing(
                    ahead_early=early_name, ahead_late=late_name, p=p, seen=seen,
                    at=_where(np.median(a - b, axis=0), C, early),
                )  # fmt: skip
    return None


def _where(difference: Floats, C: Floats, early: int) -> float:
    """First change of sign after `early`; the last compute looked at where there is none."""
    sign = np.sign(difference[early:])
    change = np.flatnonzero(sign != sign[0])
    return float(C[early + change[0]] if len(change) else C[-1])


def _curves(fits: Sequence[Fit], C: Floats, spread: RunSpread, seed: int) -> tuple[Floats, Floats]:
    """Draws of a variant's curve [D, C] and ceiling [D]: mean over its runs, and their spread."""
    count, m = len(spread.draws), len(fits)
    extra = np.random.default_rng(9000 + seed).permutation(normal_scores(count))
    extra = spread.draws * extra / np.sqrt(m)
    curves = np.zeros((count, len(C)))
    A = np.zeros(count)
    for i, f in enumerate(fits):
        assert f.draws is not None
        s = equal_draws(f.draws, 9100 + 50 * seed + i, count)
        z = s.B[:, None] * (np.log(C) - s.log_C_mid[:, None])
        share = 1 / (1 + np.exp(np.clip(-z, -500, 500)))
        curves += (s.R0[:, None] + (s.A - s.R0 + extra)[:, None] * share) / m
        A += (s.A + extra) / m
    return curves, A
