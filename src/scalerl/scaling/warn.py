"""Early warnings on a compute curve: the pass rate drawing down, the truncation rate climbing.

A decline inside the window looks like an efficient recipe with a low ceiling (A down by .02 to .06,
B up to 3.2), and truncations beyond 10 % come before a collapse (Appendix A.6). Points under a red
warning are therefore left out of a fit.

Shapes: `N` runs, `n` evaluations.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.sigmoid import Floats

DRAWDOWN_AMBER, DRAWDOWN_RED = 2.5, 3.4
"""How far the mean of 3 evaluations lies below its running maximum, in noise SD of one."""
TRUNCATION_AMBER, TRUNCATION_RED = 0.05, 0.10
TRUNCATION_RISE = 0.5
"""A truncation rate counts only once it has risen by this share of the limit above its lowest."""
MIN_EVALUATIONS = 8
"""A drawdown warning needs this many evaluations, to know the noise."""
SIGMA_LEAST = 0.001

Level = Literal["amber", "red"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warning_:
    """One warning, at the evaluation where it was first due."""

    level: Level
    kind: Literal["drawdown", "truncation"]
    compute: float
    step: float | None
    rows: tuple[int, ...]
    """Positions in the curve of the evaluations the warning is about."""
    message: str


def noise_sd(pass_rate: Floats) -> Floats:
    """Noise SD of one evaluation from second differences at lags 2 and 3, trend or no trend: [N].

        d_i = (y_i - (y_{i-l} + y_{i+l}) / 2) / sqrt(1.5)

    The largest tenth is trimmed (glitches, kinks) and the loss made good for normal noise. Lags of
    2 and 3 so that the correlation of neighbours hides little of it. `pass_rate` [N, n], n >= 7.
    """
    parts = [
        (pass_rate[:, lag:-lag] - (pass_rate[:, 2 * lag :] + pass_rate[:, : -2 * lag]) / 2)
        / np.sqrt(1.5)
        for lag in (2, 3)
    ]
    d = np.sort(np.abs(np.concatenate(parts, 1)), 1)
    d = d[:, : int(np.ceil(0.9 * d.shape[1]))]
    z = 1.6449  # 90 % of a normal lies within
    kept = 1 - 2 * z * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / 0.9
    return np.maximum(np.sqrt((d**2).mean(1) / kept), SIGMA_LEAST)


def drawdown(pass_rate: Floats) -> Floats:
    """Running maximum of the 3-evaluation mean, minus that mean: [N, n - 2], from the third on."""
    mean = (pass_rate[:, 2:] + pass_rate[:, 1:-1] + pass_rate[:, :-2]) / 3
    return np.maximum.accumulate(mean, axis=1) - mean


def drawdown_score(pass_rate: Floats) -> Floats:
    """Drawdown in noise SD at each evaluation, from what was known then: [N, n]; 0 before the 8th.

    This is the alarm as it would have sounded during the run: the noise is estimated anew from the
    evaluations up to each one.
    """
    N, n = pass_rate.shape
    score = np.zeros((N, n))
    if n < MIN_EVALUATIONS:
        return score
    depth = drawdown(pass_rate)
    for k in range(MIN_EVALUATIONS, n + 1):
        score[:, k - 1] = depth[:, k - 3] / noise_sd(pass_rate[:, :k])
    return score


def warn(curve: Curve) -> tuple[Warning_, ...]:
    """Every warning of a curve in order of compute; amber is silent where red is due at once."""
    found = [*_drawdown_warnings(curve), *_truncation_warnings(curve)]
    red = {(w.kind, w.compute) for w in found if w.level == "red"}
    told = [w for w in found if w.level == "red" or (w.kind, w.compute) not in red]
    return tuple(sorted(told, key=lambda w: (w.compute, w.level)))


def red_rows(curve: Curve) -> tuple[np.ndarray, str]:
    """Which evaluations [n] stand under a red warning, and why in words."""
    red = [w for w in warn(curve) if w.level == "red"]
    rows = np.zeros(len(curve), bool)
    for warning in red:
        rows[list(warning.rows)] = True
    return rows, "; ".join(w.message for w in red)


def _spells(high: np.ndarray, low: np.ndarray) -> list[tuple[int, int]]:
    """(first, end) of each spell that starts where `high` is true and lasts while `low` is."""
    spells: list[tuple[int, int]] = []
    i = 0
    while i < len(high):
        if high[i]:
            end = i + 1
            while end < len(low) and low[end]:
                end += 1
            spells.append((i, end))
            i = end
        else:
            i += 1
    return spells


def _drawdown_warnings(curve: Curve) -> list[Warning_]:
    if len(curve) < MIN_EVALUATIONS:
        return []
    score = drawdown_score(curve.pass_rate[None])[0]
    mean = np.convolve(curve.pass_rate, np.ones(3) / 3, "valid")  # of evaluations i, i+1, i+2
    out: list[Warning_] = []
    levels: tuple[tuple[Level, float], ...] = (("amber", DRAWDOWN_AMBER), ("red", DRAWDOWN_RED))
    for level, limit in levels:
        for first, end in _spells(score > limit, score > DRAWDOWN_AMBER):
            peak = int(np.argmax(mean[: first - 1])) + 1  # middle of the best three
            depth = float(mean[: first - 1].max() - mean[first - 2 : end - 2].min())
            out.append(
                Warning_(
                    level=level,
                    kind="drawdown",
                    compute=float(curve.compute[first]),
                    step=None if curve.step is None else float(curve.step[first]),
                    rows=tuple(range(peak + 1, end)),
                    message=(
                        f"drawdown {level}: the pass rate has fallen by {depth:.3f} from its best, "
                        f"at {curve.unit} {curve.compute[peak]:.6g} "
                        f"({score[first:end].max():.1f} noise SD)"
                    ),
                )
            )
    return out


def _truncation_warnings(curve: Curve) -> list[Warning_]:
    if curve.truncation_rate is None:
        return []
    rate = np.where(np.isfinite(curve.truncation_rate), curve.truncation_rate, -np.inf)
    lowest = np.minimum.accumulate(np.where(np.isfinite(rate), rate, np.inf))
    out: list[Warning_] = []
    levels: tuple[tuple[Level, float], ...] = (
        ("amber", TRUNCATION_AMBER),
        ("red", TRUNCATION_RED),
    )
    for level, limit in levels:
        over = (rate >= limit) & (rate - lowest >= TRUNCATION_RISE * limit)
        for first, end in _spells(over, over):
            out.append(
                Warning_(
                    level=level,
                    kind="truncation",
                    compute=float(curve.compute[first]),
                    step=None if curve.step is None else float(curve.step[first]),
                    rows=tuple(range(first, end)),
                    message=(
                        f"truncation {level}: {rate[first:end].max():.0%} of completions cut at "
                        f"the length limit, up from {lowest[first]:.0%}"
                    ),
                )
            )
    return out
