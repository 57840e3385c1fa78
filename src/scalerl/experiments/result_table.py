"""A study's result as text: one line a variant, then what stands beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scalerl.experiments import collapse, forecasts
from scalerl.scaling.result import Interval

if TYPE_CHECKING:
    from scalerl.experiments.result import StudyResult


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
        lines += ["", *forecasts.words(result.forecasts)]
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
        else "assumed as in the paper: no replicates have ceilings that can be told"
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
