"""What a study found: ceilings, speeds, who is better than the base, and how sure that is.

    run folders → curves → fits, comparison with the base → one row a variant → table, result.json

Statistics are those of `scalerl.scaling`; here they are put side by side and into words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scalerl.experiments import collapse
from scalerl.experiments.collapse import RunHealth
from scalerl.experiments.crossing import crossing
from scalerl.experiments.forecasts import Forecast
from scalerl.experiments.race import FEWEST, ceiling, p_best
from scalerl.experiments.result_table import amount, table
from scalerl.pipeline.records import current_rows
from scalerl.scaling.compare import SURE, Comparison, Pair, compare
from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import normal_scores
from scalerl.scaling.fit import fit
from scalerl.scaling.readers.read import read_curve
from scalerl.scaling.replicates import RUN_SPEED_SD, RunSpread, equal_draws, run_spread
from scalerl.scaling.result import Fit, Interval
from scalerl.scaling.sigmoid import Floats, compute_to_target

NEVER = 1e200
"""Compute from which a target counts as never reached."""
NOTHING = Interval(None, None, None)

Verdict = Literal[
    "the base", "raises the ceiling", "lowers the ceiling", "speeds up", "slows down",
    "cannot tell", "collapses",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """One variant against the base. Intervals are 90 %, of the variant, not of one run."""

    name: str
    about: str
    runs: int
    collapsed: int
    """Runs that lost what they had gained."""
    status: str
    """Of its runs' fits, each different one once."""
    start: float | None
    end: float | None
    """First and last held-out pass rate, mean over runs."""
    A: Interval
    B: Interval
    C_mid: Interval
    to_target: Interval
    """Compute to the common target; high is None where it may never get there."""
    delta_A: Interval
    """Ceiling less that of the base."""
    p_better: float | None
    """P(ceiling above the base's), spread between runs included."""
    p_best: float | None
    """P(the best ceiling of all)."""
    compute_ratio: Interval
    """Compute to the target over that of the base."""
    verdict: Verdict
    words: str
    paper: str
    """What the paper's rule would say."""
    crossing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Every variant, base first, and what the numbers rest on."""

    name: str
    unit: str
    target: float | None
    run_sd: Interval
    run_sd_from: int
    """Degrees of freedom of the spread between runs; 0: the paper's."""
    variants: tuple[VariantResult, ...]
    forecasts: tuple[Forecast, ...]
    health: tuple[RunHealth, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def write(self, folder: Path) -> None:
        """result.json and result.txt."""
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        (folder / "result.json").write_text(text + "\n", "utf-8")
        (folder / "result.txt").write_text(table(self) + "\n", "utf-8")


def read_run_curve(run: Path, unit: str, *, tokens: int = 0) -> Curve | None:
    """A run's held-out curve; only what was spent within a budget of tokens. None before the first
    evaluation after step 0."""
    rows = current_rows(run / "curve.jsonl")
    if not any(row["step"] > 0 and row["pass_rate"] is not None for row in rows):
        return None
    curve = read_curve(run, compute=unit, reward="pass_rate")
    if tokens and curve.step is not None:
        within = {row["step"] for row in rows if row["tokens_generated"] <= tokens}
        curve = curve.select(np.isin(curve.step, list(within)))
    return curve if len(curve) else None


def study_result(
    name: str,
    curves: Mapping[str, Sequence[Curve]],
    *,
    base: str,
    abouts: Mapping[str, str] | None = None,
    target: float | None = None,
    forecasts: Sequence[Forecast] = (),
    notes: Sequence[str] = (),
) -> StudyResult:
    """Compare every variant with the base.

    `curves` maps each variant to the curves of its runs. A variant without a curve is left out
    with a note, and so is one that computed what another did: its runs are no further evidence.
    Everything is left out if the base has none.
    """
    known = {n: list(c) for n, c in curves.items() if c}
    said = [*notes, *(f"{n}: no curve yet" for n in curves if n not in known)]
    same = twins(known)
    said += [
        f"{n} computed the same as {other}, evaluation by evaluation: what tells them apart never "
        "came to bear, so it has no row of its own"
        for n, other in same.items()
    ]
    known = {n: c for n, c in known.items() if n not in same}
    unit = next((c.unit for runs in known.values() for c in runs), "")
    found: Comparison | None = None
    goal = target if target is not None else base_target(known.get(base, []))
    if base in known and len(known) > 1:
        found = compare(known, target=goal)
        fits = {r.name: r.fits for r in found.recipes}
    else:
        fits = {n: tuple(fit(c) for c in runs) for n, runs in known.items()}
    fits = {n: fits[n] for n in known}  # in the study's order, not by rank
    spread = run_spread(list(fits.values()))
    best = p_best(fits)
    ceilings = {n: ceiling(fits[n], spread, seed) for seed, n in enumerate(fits, 1)}
    rows = [
        _variant(
            n, fits[n], known[n], ceilings[n], _pair(found, n, base), base=base,
            base_fits=fits.get(base, ()), base_ceiling=ceilings.get(base), spread=spread,
            target=goal, about=(abouts or {}).get(n, ""), p_best=best[n], seed=seed,
        )
        for seed, n in enumerate(fits, 1)
    ]  # fmt: skip
    return StudyResult(
        name=name,
        unit=unit,
        target=goal,
        run_sd=spread.interval,
        run_sd_from=spread.replicates,
        variants=tuple(rows),
        forecasts=tuple(f for f in forecasts if f.variant not in same),
        health=tuple(collapse.health(known)),
        notes=tuple(said),
    )


def twins(curves: Mapping[str, Sequence[Curve]]) -> dict[str, str]:
    """Variants whose runs are those of an earlier one, evaluation by evaluation, with its name.
    Settings may differ and never matter: a bound on the lag that no run comes near, say."""
    seen: dict[tuple[bytes, ...], str] = {}
    found: dict[str, str] = {}
    for name, runs in curves.items():
        key = tuple(c.pass_rate.tobytes() + c.compute.tobytes() for c in runs)
        if seen.setdefault(key, name) != name:
            found[name] = seen[key]
    return found


def _pair(found: Comparison | None, name: str, base: str) -> Pair | None:
    if found is None or name == base:
        return None
    return next(p for p in found.pairs if {p.a, p.b} == {name, base})


def _variant(
    name: str,
    fits: Sequence[Fit],
    curves: Sequence[Curve],
    own_ceiling: Floats | None,
    pair: Pair | None,
    *,
    base: str,
    base_fits: Sequence[Fit],
    base_ceiling: Floats | None,
    spread: RunSpread,
    target: float | None,
    about: str,
    p_best: float | None,
    seed: int,
) -> VariantResult:
    collapsed = sum(collapse.fell_at(c) is not None for c in curves)
    told = any(f.A.estimate is not None for f in fits)
    own = pooled(fits, spread, target, seed)
    A = _quantiles(own_ceiling, low=0.0, high=1.0)
    delta, p_better = NOTHING, None
    if pair is not None and own_ceiling is not None and base_ceiling is not None:
        delta = _quantiles(own_ceiling - base_ceiling)
        p_better = float(np.mean(own_ceiling > base_ceiling))
    ratio = NOTHING if pair is None else _ratio(pair, name)
    can_tell = _can_tell(fits) and _can_tell(base_fits)
    verdict, words = _verdict(pair, name, p_better if can_tell else None, ratio, fits, collapsed)
    crosses = crossing(name, fits, base, base_fits, spread) if pair else None
    starts = [c.r0_observed for c in curves if c.r0_observed is not None]
    return VariantResult(
        name=name,
        about=about,
        runs=len(fits),
        collapsed=collapsed,
        status=", ".join(dict.fromkeys(f.status for f in fits)),
        start=float(np.mean(starts)) if starts else None,
        end=float(np.mean([c.pass_rate[-1] for c in curves])),
        A=A if told else Interval(None, A.low, A.high),
        B=own["B"] if told else Interval(None, own["B"].low, own["B"].high),
        C_mid=own["C_mid"] if told else Interval(None, own["C_mid"].low, own["C_mid"].high),
        to_target=own["to_target"],
        delta_A=delta,
        p_better=p_better,
        p_best=p_best,
        compute_ratio=ratio,
        verdict=verdict,
        words=words,
        paper=_paper(pair),
        crossing="" if crosses is None else crosses.words(amount(crosses.at)),
    )


def pooled(
    fits: Sequence[Fit], spread: RunSpread, target: float | None, seed: int
) -> dict[str, Interval]:
    """B, C_mid and compute to the target of a variant: geometric means over its runs.

    Another run would have its own midpoint and ceiling; both are spread by what is known of it.
    """
    usable = [f.draws for f in fits if f.draws is not None]
    if not usable:
        return dict.fromkeys(("B", "C_mid", "to_target"), NOTHING)
    count, m = len(spread.draws), len(usable)
    scores = normal_scores(count)
    rng = np.random.default_rng(5000 + seed)
    B, C, T = [], [], []
    for i, draws in enumerate(usable):
        s = equal_draws(draws, 700 + 50 * seed + i, count)
        log_C = s.log_C_mid + RUN_SPEED_SD * rng.permutation(scores)
        B.append(np.log(s.B))
        C.append(log_C)
        if target is not None:
            A = s.A + spread.draws * rng.permutation(scores)
            with np.errstate(over="ignore", divide="ignore"):
                unit = compute_to_target(target, A=A, B=s.B, C_mid=1.0, R0=s.R0)
                T.append(np.log(unit) + log_C)
    out = {"B": _quantiles(np.exp(sum(B) / m)), "C_mid": _quantiles(np.exp(sum(C) / m))}
    out["to_target"] = NOTHING
    if T:
        out["to_target"] = _quantiles(np.exp(np.clip(np.mean(T, axis=0), -700, 700)))
    return out


def base_target(curves: Sequence[Curve]) -> float | None:
    """Three quarters of what the base has gained, mean over its runs; None without a gain."""
    if not curves:
        return None
    starts = [c.r0_observed if c.r0_observed is not None else c.pass_rate[0] for c in curves]
    ends = [float(c.pass_rate[-3:].mean()) for c in curves]
    start, end = float(np.mean(starts)), float(np.mean(ends))
    return start + 0.75 * (end - start) if end > start > 0 else None


def _quantiles(draws: Floats | None, *, low: float = -np.inf, high: float = np.inf) -> Interval:
    """Median with 5 and 95 %, kept between bounds; None for a compute that is never enough."""
    if draws is None:
        return NOTHING
    found = np.clip(np.quantile(draws, (0.5, 0.05, 0.95), method="nearest"), low, high)
    return Interval(*(float(q) if q < NEVER else None for q in found))


def _ratio(pair: Pair, name: str) -> Interval:
    """Compute of the variant to the target over that of the base."""
    r = pair.compute_ratio
    if pair.a == name:
        return r
    return Interval(_over(r.estimate), _over(r.high), _over(r.low))


def _over(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _can_tell(fits: Sequence[Fit]) -> bool:
    """Whether some run has a ceiling to speak of, or has long shown no gain at all."""
    return any(
        f.A.estimate is not None or (f.status == "no_gain" and f.n_points >= FEWEST) for f in fits
    )


def _verdict(
    pair: Pair | None,
    name: str,
    p_better: float | None,
    ratio: Interval,
    fits: Sequence[Fit],
    collapsed: int,
) -> tuple[Verdict, str]:
    tail = f"{collapsed} of {len(fits)} runs collapsed" if collapsed else ""
    if pair is None:
        return "the base", tail
    if 2 * collapsed > len(fits):
        return "collapses", tail
    tail = f"; {tail}" if tail else ""
    if p_better is not None and p_better >= SURE:
        return "raises the ceiling", f"P = {p_better:.3f}{tail}"
    if p_better is not None and p_better <= 1 - SURE:
        flat = "; it does not rise" if all(f.status == "no_gain" for f in fits) else ""
        return "lowers the ceiling", f"P = {1 - p_better:.3f}{flat}{tail}"
    if pair.faster != "cannot tell":
        factor = ratio.estimate
        words = f"{factor:.2f} of the base's compute to {pair.target:.3f}" if factor else ""
        return ("speeds up" if pair.faster == name else "slows down"), words + tail
    why = f"P(higher ceiling) = {p_better:.2f}" if p_better is not None else "no ceiling to compare"
    return "cannot tell", f"{why}; a verdict takes {SURE:g}{tail}"


def _paper(pair: Pair | None) -> str:
    if pair is None:
        return ""
    rule = pair.paper
    if rule.by == "nothing":
        return "no ceilings to compare"
    how = f"A {rule.delta_A:+.3f} ({pair.a} − {pair.b})" if rule.delta_A is not None else ""
    return f"{rule.winner}, by {rule.by}; {how}"
