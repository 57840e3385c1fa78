"""Compare recipes by their compute curves: first the ceiling, then the speed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any, Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.comparison import Comparison, Pair, PaperRule, Recipe
from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import Draws, normal_scores
from scalerl.scaling.fit import fit
from scalerl.scaling.least_squares import solve
from scalerl.scaling.methods import observed
from scalerl.scaling.replicates import (
    RUN_SPEED_SD,
    RunSpread,
    Samples,
    equal_draws,
    recipe_ceiling,
    run_spread,
)
from scalerl.scaling.result import Fit, Interval
from scalerl.scaling.sigmoid import Floats, compute_to_target
from scalerl.scaling.special import linspace, ndtr

SURE = 0.95
"""Probability from which one recipe's ceiling counts as higher."""
PAPER_MARGIN = 0.02


def compare(
    curves: Sequence[Curve] | Mapping[str, Sequence[Curve]],
    *,
    target: float | None = None,
    run_sd: float | None = None,
    **settings: Any,
) -> Comparison:
    """Which recipe ends higher, which gets there faster, and whether the data can tell.

    `curves` are one run a recipe, or a mapping of recipe to its replicate runs, whose spread then
    says how far runs differ; without replicates the run-to-run SD of A is .0075 within a factor, or
    `run_sd`. `target` is the pass rate at which speeds are compared (default: three quarters of the
    least gain measured). `settings` go to `fit`. The paper's rule stands beside the posterior's.
    Errors: InputError for fewer than two recipes, a name used twice, or different units.
    """
    groups = _groups(curves)
    units = list(dict.fromkeys(c.unit for runs in groups.values() for c in runs))
    if len(units) > 1:
        raise InputError(f"curves are in different units: {', '.join(units)}; give one (--compute)")
    fits = {name: tuple(fit(c, **settings) for c in runs) for name, runs in groups.items()}
    spread = run_spread(list(fits.values()))
    if run_sd is not None:
        if run_sd < 0:
            raise InputError(f"run_sd is {run_sd:g}; a spread is at least 0")
        held = np.full_like(spread.draws, run_sd)
        spread = RunSpread(draws=held, interval=Interval(run_sd, run_sd, run_sd), replicates=0)
    ceilings = {
        name: recipe_ceiling(mine, spread, seed) for seed, (name, mine) in enumerate(fits.items())
    }
    goal = target if target is not None else _common_target(list(fits.values()))
    pairs = tuple(_pair(a, b, fits, ceilings, goal, spread) for a, b in combinations(fits, 2))
    recipes = [Recipe(name=n, fits=f, A=_ceiling(ceilings[n], f)) for n, f in fits.items()]
    order, verdicts = _rank(recipes, pairs)
    return Comparison(
        recipes=tuple(order),
        verdicts=tuple(verdicts),
        pairs=pairs,
        run_sd=spread.interval,
        run_sd_from=spread.replicates,
        unit=units[0],
    )


def _groups(curves: Sequence[Curve] | Mapping[str, Sequence[Curve]]) -> dict[str, list[Curve]]:
    if isinstance(curves, Mapping):
        groups = {name: list(runs) for name, runs in curves.items()}
    else:
        groups = {}
        for curve in curves:
            if curve.name in groups:
                raise InputError(
                    f"two curves are named {curve.name!r}; rename one, or give replicates of a "
                    "recipe together"
                )
            groups[curve.name] = [curve]
    empty = [name for name, runs in groups.items() if not runs]
    if empty:
        raise InputError(f"recipe {empty[0]!r} has no curve")
    if len(groups) < 2:
        raise InputError("a comparison needs at least two recipes")
    return groups


def _interval(draws: Floats | None) -> Interval:
    if draws is None:
        return Interval(None, None, None)
    low, mid, high = (float(q) for q in np.quantile(draws, (0.05, 0.5, 0.95)))
    return Interval(mid, low, high)


def _ceiling(draws: Floats | None, fits: Sequence[Fit]) -> Interval:
    """A recipe's ceiling, at most 1; without an estimate where no run has one."""
    A = _interval(None if draws is None else np.clip(draws, 0, 1))
    return Interval(None, A.low, A.high) if _unknown(fits) else A


def _common_target(groups: Sequence[Sequence[Fit]]) -> float | None:
    """Three quarters of the way from the highest R0 to the lowest pass rate at a window's end."""
    ends: list[float] = []
    starts: list[float] = []
    for f in (f for fits in groups for f in fits if f.draws is not None):
        ends.append(float(f.estimate([f.window[1]])[0]))
        start = f.R0.estimate if f.R0.estimate is not None else f.R0.low
        starts.append(start if start is not None else 0.0)
    if not ends or min(ends) <= max(starts):
        return None
    return max(starts) + 0.75 * (min(ends) - max(starts))


def _pair(
    a: str,
    b: str,
    fits: dict[str, tuple[Fit, ...]],
    ceilings: dict[str, Floats | None],
    target: float | None,
    spread: RunSpread,
) -> Pair:
    A_a, A_b = ceilings[a], ceilings[b]
    nothing = Interval(None, None, None)
    delta, p_higher = nothing, None
    if A_a is not None and A_b is not None and not (_unknown(fits[a]) or _unknown(fits[b])):
        delta = _interval(A_a - A_b)
        p_higher = float(np.mean(A_a > A_b))
    runs_a = [s for s in map(_samples, fits[a], range(10, 60)) if s is not None]
    runs_b = [s for s in map(_samples, fits[b], range(60, 110)) if s is not None]
    ratio, crossing, p_crossing = nothing, nothing, None
    if runs_a and runs_b:
        if target is not None:
            ratio = _ratio(runs_a, runs_b, target, spread)
        low = min(f.window[0] for f in (*fits[a], *fits[b]))
        high = max(f.window[1] for f in (*fits[a], *fits[b]))
        crossing, p_crossing = _crossing(runs_a[0], runs_b[0], low, high)
    higher = "cannot tell"
    if p_higher is not None:
        higher = a if p_higher >= SURE else b if p_higher <= 1 - SURE else "cannot tell"
    faster = "cannot tell"
    if ratio.high is not None and ratio.high < 1:
        faster = a
    elif ratio.low is not None and ratio.low > 1:
        faster = b
    return Pair(
        a=a,
        b=b,
        delta_A=delta,
        p_higher=p_higher,
        crossing=crossing,
        p_crossing=p_crossing,
        target=target,
        compute_ratio=ratio,
        higher_ceiling=higher,
        faster=faster,
        paper=replace(
            paper_rule(fits[a][0], fits[b][0], a, b),
            false_positive=false_positive(fits[a][0], fits[b][0], spread),
        ),
    )


def _unknown(fits: Sequence[Fit]) -> bool:
    """Whether no run of a recipe has a ceiling to speak of."""
    return all(f.A.estimate is None for f in fits)


def _samples(f: Fit, seed: int) -> Samples | None:
    return None if f.draws is None else equal_draws(f.draws, seed)


def _ratio(
    runs_a: Sequence[Samples], runs_b: Sequence[Samples], target: float, spread: RunSpread
) -> Interval:
    """Compute to the target of a over b: geometric means over each recipe's runs.

    Another run of the same recipe would have its own ceiling and midpoint: both are spread.
    """
    scores = normal_scores(len(spread.draws))

    def log_compute(runs: Sequence[Samples], seed: int) -> Floats:
        rng = np.random.default_rng(seed)
        each: list[Floats] = []
        for s in runs:
            A = s.A + spread.draws * rng.permutation(scores)
            with np.errstate(over="ignore", divide="ignore"):
                unit = compute_to_target(target, A=A, B=s.B, C_mid=1.0, R0=s.R0)
                each.append(np.log(unit) + s.log_C_mid + RUN_SPEED_SD * rng.permutation(scores))
        # a ceiling below the target never gets there: keep infinities apart
        return np.clip(np.asarray(np.mean(each, axis=0)), -1e4, 1e4)

    a, b = log_compute(runs_a, 1), log_compute(runs_b, 2)
    difference = np.clip(a - b, -700, 700)
    low, mid, high = (float(np.exp(q)) for q in np.quantile(difference, (0.05, 0.5, 0.95)))

    def known(value: float) -> float | None:
        return value if 1e-12 < value < 1e12 else None

    return Interval(known(mid), known(low), known(high))


def _crossing(a: Samples, b: Samples, low: float, high: float) -> tuple[Interval, float]:
    """Last compute at which the curves cross, from the window's start to 30 times its end."""
    x = linspace(float(np.log(low)), float(np.log(30 * high)), 240)

    def curve(s: Samples) -> Floats:
        z = s.B[:, None] * (x - s.log_C_mid[:, None])
        return s.R0[:, None] + (s.A - s.R0)[:, None] / (1 + np.exp(np.clip(-z, -500, 500)))

    ahead = curve(a) > curve(b)
    change = ahead[:, 1:] != ahead[:, :-1]
    crosses = change.any(1)
    if not crosses.any():
        return Interval(None, None, None), 0.0
    last = change.shape[1] - 1 - np.argmax(change[:, ::-1], axis=1)
    at = np.exp(0.5 * (x[last] + x[last + 1]))[crosses]
    low_q, mid, high_q = (float(q) for q in np.quantile(at, (0.05, 0.5, 0.95)))
    return Interval(mid, low_q, high_q), float(crosses.mean())


def paper_rule(fit_a: Fit, fit_b: Fit, a: str = "a", b: str = "b") -> PaperRule:
    """The rule of A.5: ceilings .02 apart decide; else B decides, refitted at their mean.

    It calls identical recipes different more often than one would think (`false_positive`), for
    runs of one recipe differ by an SD of about .0075 in A; and refitting at a common A ranks B
    right about 70 % of the time.
    """
    A_a, A_b = (f.point.A if f.point is not None else None for f in (fit_a, fit_b))
    nothing = PaperRule(
        winner="cannot tell", by="nothing", delta_A=None, common_A=None, B_a=None, B_b=None
    )
    if A_a is None or A_b is None:
        return nothing
    if abs(A_a - A_b) > PAPER_MARGIN:
        return replace(nothing, winner=a if A_a > A_b else b, by="ceiling", delta_A=A_a - A_b)
    common = 0.5 * (A_a + A_b)
    B_a, B_b = (_steepness_at(f, common) for f in (fit_a, fit_b))
    return replace(
        nothing,
        winner=a if B_a > B_b else b,
        by="B at a common ceiling",
        delta_A=A_a - A_b,
        common_A=common,
        B_a=B_a,
        B_b=B_b,
    )


def false_positive(fit_a: Fit, fit_b: Fit, spread: RunSpread) -> float | None:
    """How often |A_a - A_b| exceeds .02 for two runs of one recipe measured as well as these two.

        P(|Normal(0, s_a^2 + s_b^2 + 2 tau^2)| > .02)

    Simulated: a quarter in runs to 3 C_mid, a tenth in runs to 5 C_mid (scaling_compare.json).
    """
    if fit_a.draws is None or fit_b.draws is None:
        return None
    run_sd = float(np.median(spread.draws))
    noise = sum(_central_sd(f) ** 2 for f in (fit_a.draws, fit_b.draws))
    return float(2 * ndtr(-PAPER_MARGIN / np.sqrt(noise + 2 * run_sd**2)))


def _central_sd(draws: Draws) -> float:
    """Half the distance of the 16 and 84 % quantiles of A: the SD without the long upper tail."""
    low, high = draws.quantiles(draws.A, (0.16, 0.84))
    return 0.5 * float(high - low)


def _steepness_at(f: Fit, ceiling: float) -> float:
    data = observed(f.data, replace(f.settings, fix_ceiling=ceiling), f.row_weight)
    return float(solve(data.problem()).B[0])


def _rank(recipes: list[Recipe], pairs: tuple[Pair, ...]) -> tuple[list[Recipe], list[str]]:
    """Ceiling first; recipes whose ceilings cannot be told apart go by speed."""
    table = {(p.a, p.b): p for p in pairs}

    def between(x: str, y: str) -> Pair:
        return table[x, y] if (x, y) in table else table[y, x]

    def wins(x: Recipe, kind: Literal["higher_ceiling", "faster"]) -> int:
        others = [r for r in recipes if r.name != x.name]
        return sum(getattr(between(x.name, o.name), kind) == x.name for o in others) - sum(
            getattr(between(x.name, o.name), kind) == o.name for o in others
        )

    def key(r: Recipe) -> tuple[bool, int, int, float]:
        level = r.A.estimate if r.A.estimate is not None else -1.0
        return (_unknown(r.fits), -wins(r, "higher_ceiling"), -wins(r, "faster"), -level)

    order = sorted(recipes, key=key)
    verdicts = [
        _verdict(upper, lower, between(upper.name, lower.name)) for upper, lower in pairwise(order)
    ]
    return order, verdicts


def _verdict(upper: Recipe, lower: Recipe, pair: Pair) -> str:
    names = f"{upper.name} and {lower.name}"
    for recipe in (lower, upper):
        if _unknown(recipe.fits):
            if all(f.status == "no_gain" for f in recipe.fits):
                return f"{names}: {recipe.name} shows no gain, so there is no ceiling to compare"
            return f"{names}: the ceiling of {recipe.name} is not identified"
    p = pair.p_higher if pair.p_higher is not None else 0.5
    sure = max(p, 1 - p)
    if pair.higher_ceiling != "cannot tell":
        return f"{pair.higher_ceiling} has the higher ceiling (P = {sure:.3f})"
    tied = f"{names}: the data cannot tell whose ceiling is higher (P = {sure:.2f})"
    if pair.faster == "cannot tell":
        return f"{tied}, nor which is faster"
    ratio = pair.compute_ratio.estimate or 1.0
    factor = ratio if pair.faster == pair.b else 1 / ratio
    return f"{tied}; {pair.faster} is faster, by a factor of {factor:.2f} to {pair.target:.3f}"
