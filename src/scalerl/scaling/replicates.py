"""Replicate runs of one recipe: pooled ceilings, and how far runs differ beyond their noise."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.scaling.draws import Draws, normal_scores
from scalerl.scaling.result import Fit, Interval
from scalerl.scaling.sigmoid import Floats

RUN_SD = 0.0075
"""SD of A between runs of one recipe: three ScaleRL runs differed by at most +-.015 (A.5)."""
RUN_SD_SPREAD = 0.4
"""Scale of log(run SD) beforehand: three runs tell an SD no better than that."""
RUN_SPEED_SD = 0.05
"""SD of log C_mid between runs of one recipe: an assumption, for the paper gives no figure."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunSpread:
    """SD of A between runs of a recipe, as equally likely draws [D] and an interval."""

    draws: Floats
    interval: Interval
    replicates: int
    """Degrees of freedom it was estimated from; 0: assumed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """Equally likely draws of a fit's parameters, in an order of their own; every array [D]."""

    A: Floats
    B: Floats
    log_C_mid: Floats
    R0: Floats


def equal_draws(draws: Draws, seed: int, count: int = 2000) -> Samples:
    """Weighted draws made equally likely by systematic resampling, then shuffled.

    The shuffle (a fixed one a seed) makes draws of different fits independent of each other.
    """
    at = (np.arange(count) + 0.5) / count
    pick = np.minimum(np.searchsorted(np.cumsum(draws.weight), at), len(draws.weight) - 1)
    pick = np.random.default_rng(seed).permutation(pick)
    return Samples(
        A=draws.A[pick], B=draws.B[pick], log_C_mid=draws.log_C_mid[pick], R0=draws.R0[pick]
    )


def run_spread(groups: Sequence[Sequence[Fit]], *, count: int = 2000) -> RunSpread:
    """Posterior of the SD of A between runs, from all groups of two or more usable fits.

        A_i ~ Normal(A_recipe, s_i^2 + tau^2),  log(tau / .0075) / .4 ~ Student t, 3 df

    s_i is the SD of A that the fit of run i leaves; A_recipe is integrated out of each group.
    Without replicates the prior itself comes back.
    """
    tau = np.geomspace(0.0005, 0.15, 160)
    log_p = -2.0 * np.log1p((np.log(tau / RUN_SD) / RUN_SD_SPREAD) ** 2 / 3)
    freedom = 0
    for fits in groups:
        usable = [f for f in fits if f.draws is not None and f.A.estimate is not None]
        if len(usable) < 2:
            continue
        freedom += len(usable) - 1
        A = np.array([mean_and_sd(f.draws)[0] for f in usable if f.draws is not None])
        s = np.array([mean_and_sd(f.draws)[1] for f in usable if f.draws is not None])
        v = s**2 + tau[:, None] ** 2  # [160, runs]
        w = 1 / v
        centre = (w * A).sum(1) / w.sum(1)
        log_p -= 0.5 * np.log(v).sum(1) + 0.5 * np.log(w.sum(1))
        log_p -= 0.5 * (w * (A - centre[:, None]) ** 2).sum(1)
    mass = np.cumsum(np.exp(log_p - log_p.max()))
    mass /= mass[-1]
    at = np.random.default_rng(7).permutation((np.arange(count) + 0.5) / count)
    draws = np.exp(np.interp(at, mass, np.log(tau)))
    low, mid, high = (float(q) for q in np.quantile(draws, (0.05, 0.5, 0.95)))
    return RunSpread(draws=draws, interval=Interval(mid, low, high), replicates=freedom)


def mean_and_sd(draws: Draws) -> tuple[float, float]:
    """Posterior mean and SD of A."""
    mean = float(draws.weight @ draws.A)
    return mean, float(np.sqrt(draws.weight @ (draws.A - mean) ** 2))


def recipe_ceiling(fits: Sequence[Fit], spread: RunSpread, seed: int) -> Floats | None:
    """Draws [D] of a recipe's ceiling: its runs' ceilings averaged by precision, run spread added.

        A_recipe = sum_i w_i (A_i + tau e_i),  w_i ~ 1 / (s_i^2 + tau^2)

    None when no run has a posterior.
    """
    usable = [f.draws for f in fits if f.draws is not None]
    if not usable:
        return None
    count = len(spread.draws)
    A = np.stack([equal_draws(d, seed * 101 + i, count).A for i, d in enumerate(usable)])
    s = np.array([mean_and_sd(d)[1] for d in usable])
    weight = 1 / (s[:, None] ** 2 + spread.draws**2)
    weight /= weight.sum(0)
    scores = np.stack(
        [
            np.random.default_rng(seed * 101 + 50 + i).permutation(normal_scores(count))
            for i in range(len(usable))
        ]
    )
    return np.asarray((weight * (A + spread.draws * scores)).sum(0))
