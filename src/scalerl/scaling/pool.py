"""Replicate runs of one recipe as one answer: its ceiling and where one more run may go."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import normal_scores
from scalerl.scaling.fit import fit
from scalerl.scaling.replicates import RunSpread, equal_draws, recipe_ceiling, run_spread
from scalerl.scaling.result import Fit, Interval
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.special import expit


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPrediction:
    """Pass rate of a recipe at one compute, and of one more run of it."""

    compute: float
    estimate: float
    low: float
    high: float
    run_low: float
    run_high: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pool:
    """Replicate runs of one recipe, pooled."""

    name: str
    fits: tuple[Fit, ...]
    A: Interval
    """Ceiling of the recipe: the mean over runs that could have been."""
    run_sd: Interval
    """SD of A between runs, with what is known of it beforehand."""
    degrees_of_freedom: int
    predictions: tuple[PoolPrediction, ...]
    unit: str

    def summary(self) -> str:
        """The recipe's ceiling, the spread between its runs, and forecasts, for a person."""
        from scalerl.scaling.describe import pool_summary

        return pool_summary(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "A": asdict(self.A),
            "run_sd": asdict(self.run_sd),
            "degrees_of_freedom": self.degrees_of_freedom,
            "predictions": [asdict(p) for p in self.predictions],
            "unit": self.unit,
            "fits": [f.to_dict() for f in self.fits],
        }


def pool(
    curves: Sequence[Curve], *, name: str = "pooled", predict: Sequence[float] = (), **settings: Any
) -> Pool:
    """Fit each replicate run and pool them, the spread between runs estimated from them.

        R_recipe(C) = mean_i R_i(C) + f(C) tau e / sqrt(m),   R_next(C) adds f(C) tau e'

    m runs; tau as in `run_spread`; f the share of the gain reached: runs differ in their ceilings.
    `settings` go to `fit`. Errors: InputError for fewer than two runs, different units, or no run
    with a posterior.
    """
    if len(curves) < 2:
        raise InputError(f"pooling takes at least two runs, not {len(curves)}")
    units = list(dict.fromkeys(c.unit for c in curves))
    if len(units) > 1:
        raise InputError(f"replicates are in different units: {', '.join(units)}")
    fits = tuple(fit(c, **settings) for c in curves)
    spread = run_spread([fits])
    ceiling = recipe_ceiling(fits, spread, seed=1)
    if ceiling is None:
        raise InputError(f"none of the {len(fits)} runs can be fitted: {fits[0].reasons[0]}")
    low, mid, high = (float(q) for q in np.quantile(ceiling, (0.05, 0.5, 0.95)))
    return Pool(
        name=name,
        fits=fits,
        A=Interval(mid, low, high),
        run_sd=spread.interval,
        degrees_of_freedom=spread.replicates,
        predictions=tuple(_predict(fits, spread, float(c)) for c in predict),
        unit=units[0],
    )


def _predict(fits: tuple[Fit, ...], spread: RunSpread, compute: float) -> PoolPrediction:
    if not (np.isfinite(compute) and compute > 0):
        raise InputError(f"predict: compute {compute:g} is not above 0")
    curves: list[Floats] = []
    shares: list[Floats] = []
    for i, one in enumerate(fits):
        if one.draws is None:
            continue
        s = equal_draws(one.draws, 300 + i, len(spread.draws))
        share = expit(s.B * (np.log(compute) - s.log_C_mid))
        shares.append(share)
        curves.append(s.R0 + (s.A - s.R0) * share)
    m, share = len(curves), np.mean(shares, axis=0)
    scores = normal_scores(len(spread.draws))
    rng = np.random.default_rng(5)
    between = share * spread.draws
    recipe = np.mean(curves, axis=0) + between * rng.permutation(scores) / np.sqrt(m)
    run = recipe + between * rng.permutation(scores)
    low, mid, high = (float(q) for q in np.quantile(recipe, (0.05, 0.5, 0.95)))
    run_low, run_high = (float(q) for q in np.quantile(run, (0.05, 0.95)))
    return PoolPrediction(
        compute=compute,
        estimate=mid,
        low=low,
        high=high,
        run_low=min(run_low, low),
        run_high=max(run_high, high),
    )
