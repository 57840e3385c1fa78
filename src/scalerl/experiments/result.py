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
from scalerl.experiments.forecasts import words as forecast_words
from scalerl.experiments.race import ceiling, p_best
from scalerl.pipeline.records import current_rows
from scalerl.scaling.compare import SURE, Comparison, Pair, compare
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import fit
from scalerl.scaling.posterior import normal_scores
from scalerl.scaling.readers.read import read_curve
from scalerl.scaling.replicates import RUN_SPEED_SD, RunSpread, equal_draws, run_spread
from scalerl.scaling.result import Fit, Interval
from scalerl.scaling.sigmoid import Floats, compute_to_target

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
    with a note; so is everything if the base has none.
    """
    known = {n: list(c) for n, c in curves.items() if c}
    said = [*notes, *(f"{n}: no curve yet" for n in curves if n not in known)]
    unit = next((c.unit for runs in known.values() for c in runs), "")
    found: Comparison | None = None
    if base in known and len(known) > 1:
        found = compare(known, target=target)
        fits = {r.name: r.fits for r in found.recipes}
    else:
        fits = {n: tuple(fit(c) for c in runs) for n, runs in known.items()}
    fits = {n: fits[n] for n in known}  # in the study's order, not by rank
    spread = run_spread(list(fits.values()))
    best = p_best(fits)
    goal = target
    if found is not None:
        goal = found.pairs[0].target
    rows = [
        _variant(
            n, fits[n], known[n], _pair(found, n, base), base=base,
            base_fits=fits.get(base, ()), spread=spread, target=goal,
            about=(abouts or {}).get(n, ""), p_best=best[n], seed=seed,
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
        forecasts=tuple(forecasts),
        health=tuple(collapse.health(known)),
        notes=tuple(said),
    )


def _pair(found: Comparison | None, name: str, base: str) -> Pair | None:
    if found is None or name == base:
        return None
    return next(p for p in found.pairs if {p.a, p.b} == {name, base})


def _variant(
    name: str,
    fits: Sequence[Fit],
    curves: Sequence[Curve],
    pair: Pair | None,
    *,
    base: str,
    base_fits: Sequence[Fit],
    spread: RunSpread,
    target: float | None,
    about: str,
    p_best: float | None,
    seed: int,
) -> VariantResult:
    collapsed = sum(collapse.fell_at(c) is not None for c in curves)
    told = any(f.A.estimate is not None for f in fits)
    own = pooled(fits, spread, target, seed)
    A = _quantiles(ceiling(fits, spread, seed), limit=1.0)
    delta, p_better, ratio = _against_base(pair, name)
    verdict, words = _verdict(pair, name, base, p_better, ratio, collapsed, len(fits), fits)
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


def _quantiles(draws: Floats | None, *, limit: float = np.inf) -> Interval:
    """Median with 5 and 95 %, at most `limit` and at least 0."""
    if draws is None:
        return NOTHING
    low, mid, high = (float(q) for q in np.quantile(draws, (0.05, 0.5, 0.95), method="nearest"))
    low, mid, high = (min(max(q, 0.0), limit) for q in (low, mid, high))
    return Interval(_known(mid), _known(low), _known(high))


def _known(value: float | None) -> float | None:
    """None for what is beyond any compute: a target that is never reached."""
    return value if value is not None and value < 1e200 else None


def _against_base(pair: Pair | None, name: str) -> tuple[Interval, float | None, Interval]:
    """Difference of ceilings, P(better) and ratio of computes, each of the variant to the base."""
    if pair is None:
        return NOTHING, None, NOTHING
    if pair.a == name:
        return pair.delta_A, pair.p_higher, pair.compute_ratio
    d, r = pair.delta_A, pair.compute_ratio
    turned = Interval(_minus(d.estimate), _minus(d.high), _minus(d.low))
    p = None if pair.p_higher is None else 1 - pair.p_higher
    return turned, p, Interval(_over(r.estimate), _over(r.high), _over(r.low))


def _minus(value: float | None) -> float | None:
    return None if value is None else -value


def _over(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _verdict(
    pair: Pair | None,
    name: str,
    base: str,
    p_better: float | None,
    ratio: Interval,
    collapsed: int,
    runs: int,
    fits: Sequence[Fit],
) -> tuple[Verdict, str]:
    if pair is None:
        return "the base", f"{collapsed} of {runs} runs collapsed" if collapsed else ""
    tail = f"; {collapsed} of {runs} runs collapsed" if collapsed else ""
    if 2 * collapsed > runs:
        return "collapses", f"{collapsed} of {runs} runs collapsed"
    if pair.higher_ceiling == name:
        return "raises the ceiling", f"P = {p_better:.3f}{tail}"
    if pair.higher_ceiling == base:
        return "lowers the ceiling", f"P = {1 - (p_better or 0.0):.3f}{tail}"
    if pair.faster != "cannot tell":
        factor = ratio.estimate
        words = f"{factor:.2f} of the base's compute to {pair.target:.3f}" if factor else ""
        return ("speeds up" if pair.faster == name else "slows down"), words + tail
    why = f"P(higher ceiling) = {p_better:.2f}" if p_better is not None else "no ceiling to compare"
    if all(f.status == "no_gain" for f in fits):
        why = "its pass rate does not rise"
    return "cannot tell", f"{why}; a verdict takes {SURE:g}{tail}"


def _paper(pair: Pair | None) -> str:
    if pair is None:
        return ""
    rule = pair.paper
    if rule.by == "nothing":
        return "no ceilings to compare"
    how = f"A {rule.delta_A:+.3f} ({pair.a} − {pair.b})" if rule.delta_A is not None else ""
    return f"{rule.winner}, by {rule.by}; {how}"


def table(result: StudyResult) -> str:
    """The result for a terminal."""
    wide = max(8, *(len(v.name) for v in result.variants), 0) + 2 if result.variants else 10
    target = f"C to {result.target:.3f}" if result.target is not None else "C to target"
    lines = [
        f"{result.name}: ceilings and speeds, compute in {result.unit}; 90 % intervals",
        "",
        f"{'variant':<{wide}}{'runs':>5}  {'held-out':<13}{'A':<22}{'B':<18}{'C_mid':<24}"
        f"{target:<24}{'P(>base)':>9}{'P(best)':>9}  verdict",
    ]
    for v in result.variants:
        lines.append(
            f"{v.name:<{wide}}{v.runs:>5}  {_rate(v.start)} → {_rate(v.end):<6}"
            f"{_span(v.A, '.3f'):<22}{_span(v.B, '.2f'):<18}{_span(v.C_mid, ''):<24}"
            f"{_span(v.to_target, ''):<24}{_p(v.p_better):>9}{_p(v.p_best):>9}  "
            + v.verdict + (f" ({v.words})" if v.words else "")
        )  # fmt: skip
    if any(v.paper for v in result.variants):
        lines += ["", "The paper's rule (ceilings .02 apart, else B at a common ceiling) says:"]
        lines += [f"  {v.name:<{wide}}{v.paper}" for v in result.variants if v.paper]
    crossings = [v for v in result.variants if v.crossing]
    if crossings:
        lines += ["", "Curves that cross:"]
        lines += [f"  {v.name:<{wide}}{v.crossing}" for v in crossings]
    if result.forecasts:
        lines += ["", *forecast_words(result.forecasts)]
    if said := collapse.words(result.health):
        lines += ["", *said]
    lines += ["", _spread_words(result), *(f"note: {n}" for n in result.notes)]
    return "\n".join(lines)


def _spread_words(result: StudyResult) -> str:
    if not result.variants:
        return "There is no curve yet."
    sd = result.run_sd
    whence = (
        f"estimated from this study's replicates ({result.run_sd_from} degrees of freedom)"
        if result.run_sd_from
        else "assumed as in the paper: there are no replicates"
    )
    return f"Run-to-run SD of A: {_span(sd, '.4f')}, {whence}."


def amount(value: float) -> str:
    """A compute for a table: 0.0123, 17.8G, 1.2P."""
    for power, sign in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g}{sign}"
    return f"{value:.3g}"


def _span(i: Interval, form: str) -> str:
    def shown(value: float) -> str:
        return f"{value:{form}}" if form else amount(value)

    if i.low is None and i.high is None:
        return "–" if i.estimate is None else shown(i.estimate)
    low = "–" if i.low is None else shown(i.low)
    high = "…" if i.high is None else shown(i.high)
    middle = "" if i.estimate is None else f"{shown(i.estimate)} "
    return f"{middle}[{low}, {high}]"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
