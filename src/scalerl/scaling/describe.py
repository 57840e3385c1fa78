"""A fit in words, as a table and as a small plot in plain characters, for a terminal."""

from collections.abc import Sequence

import numpy as np

from scalerl.scaling.comparison import Comparison, Pair
from scalerl.scaling.pool import Pool
from scalerl.scaling.result import Fit, Interval, Prediction
from scalerl.scaling.special import linspace
from scalerl.scaling.window import WindowRow

VERDICTS = {
    "identified": "identified: the ceiling can be read off this curve",
    "weak": "weak: a ceiling, but less certain than the numbers suggest",
    "not_identified": "not identified: these data do not tell the ceiling",
    "unstable": "unstable: earlier parts of the curve forecast a different end",
    "no_gain": "no gain: there is no rise to fit",
}


def number(value: float | None, digits: int = 3) -> str:
    """A number for a table: pass rates with fixed digits, compute in 4 significant ones."""
    if value is None or not np.isfinite(value):
        return "-"
    return f"{value:.{digits}f}"


def amount(value: float | None) -> str:
    """A compute for a table: 2543, 1.204e+23."""
    if value is None or not np.isfinite(value):
        return "-"
    return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.4g}"


def span(interval: Interval) -> tuple[str, str]:
    """Estimate and interval of a pass rate as two cells."""
    return number(interval.estimate), _range(number(interval.low), number(interval.high))


def _range(low: str, high: str) -> str:
    if low == "-" and high == "-":
        return ""
    if low == high:
        return "held"
    return f"{low} ... {high if high != '-' else 'no limit'}"


def summary(fit: Fit) -> str:
    """Verdict, parameters, forecasts and reasons, a few lines each."""
    low, high = amount(fit.window[0]), amount(fit.window[1])
    how = {"step0": "from step 0", "free": "free", "value": "held"}[fit.r0_mode]
    head = [
        f"{fit.name}: {VERDICTS[fit.status] if fit.settings.fix_ceiling is None else _held(fit)}",
        f"{fit.n_points} {'evaluation' if fit.n_points == 1 else 'evaluations'}, {low} to {high} "
        f"{fit.unit}; R0 {how}; method {fit.method}",
        "",
        f"{'':<8}{'estimate':>10}   5 to 95 %",
    ]
    lines = [*head, *_rows(fit), *_bound(fit), *_forecasts(fit), *_targets(fit), ""]
    lines += [f"  - {reason}" for reason in fit.reasons]
    return "\n".join(lines)


def _rows(fit: Fit) -> list[str]:
    """The parameters; of a ceiling that is not identified its lower bound, and no B or C_mid."""
    R0 = _row("R0", *span(fit.R0))
    if fit.status == "not_identified" and fit.settings.fix_ceiling is None:
        return [_row("A", "-", _at_least(number(fit.A.low))), R0]
    B = _row("B", number(fit.B.estimate, 2), _range(number(fit.B.low, 2), number(fit.B.high, 2)))
    at = _range(amount(fit.C_mid.low), amount(fit.C_mid.high))
    return [_row("A", *span(fit.A)), B, _row("C_mid", amount(fit.C_mid.estimate), at), R0]


def _at_least(low: str) -> str:
    return "" if low == "-" else f"at least {low}"


def _held(fit: Fit) -> str:
    return f"{fit.status.replace('_', ' ')}, with the ceiling held at {fit.settings.fix_ceiling:g}"


def _row(name: str, estimate: str, interval: str) -> str:
    return f"{name:<8}{estimate:>10}   {interval}".rstrip()


def _bounded(fit: Fit) -> bool:
    """Whether all that is known of the ceiling is a lower bound."""
    return (
        fit.status == "not_identified"
        and fit.settings.fix_ceiling is None
        and fit.A.low is not None
    )


def _bound(fit: Fit) -> list[str]:
    if not _bounded(fit):
        return []
    return [f"The ceiling is at least {fit.A.low:.3f} (95 %); what it is, these data do not say."]


def _forecasts(fit: Fit) -> list[str]:
    if not fit.predictions:
        return []
    lines = ["", f"{fit.unit:>14}{'pass rate':>12}   curve 5 to 95 %     one evaluation"]
    lines += [_forecast(p) for p in fit.predictions]
    if _bounded(fit) and any(p.estimate is None for p in fit.predictions):
        lines.append("  (beyond twice the window's end only a bound is given: no ceiling is known)")
    return lines


def _forecast(p: Prediction) -> str:
    if p.estimate is None and p.low is not None:
        low, seen = _at_least(number(p.low)), _at_least(number(p.observation_low))
        return f"{amount(p.compute):>14}{'-':>12}   {low:<18}  {seen}"
    curve = _range(number(p.low), number(p.high))
    seen = _range(number(p.observation_low), number(p.observation_high))
    return f"{amount(p.compute):>14}{number(p.estimate):>12}   {curve:<18}  {seen}".rstrip()


def _targets(fit: Fit) -> list[str]:
    if not fit.compute_to:
        return []
    lines = ["", f"{'pass rate':>14}{fit.unit[:14]:>16}   5 to 95 %"]
    for target, needed in fit.compute_to:
        within = _range(amount(needed.low), amount(needed.high))
        if _bounded(fit):
            within = _at_least(amount(needed.low))
        lines.append(f"{target:>14.3f}{amount(needed.estimate):>16}   {within}".rstrip())
    return lines


def pool_summary(pool: Pool) -> str:
    """The recipe's ceiling, the spread between its runs, and forecasts of the recipe and a run."""
    known = any(f.A.estimate is not None for f in pool.fits)
    lines = [
        f"{pool.name}: {len(pool.fits)} runs pooled",
        _row("A", *(span(pool.A) if known else ("-", _at_least(number(pool.A.low))))),
        _row(
            "run SD",
            number(pool.run_sd.estimate, 4),
            _range(number(pool.run_sd.low, 4), number(pool.run_sd.high, 4)),
        ),
    ]
    if pool.predictions:
        lines += ["", f"{pool.unit:>14}{'pass rate':>12}   recipe 5 to 95 %    one more run"]
    for p in pool.predictions:
        recipe, run = (
            _range(number(p.low), number(p.high)),
            _range(number(p.run_low), number(p.run_high)),
        )
        lines.append(f"{amount(p.compute):>14}{number(p.estimate):>12}   {recipe:<18}  {run}")
    return "\n".join(lines)


def window_lines(rows: Sequence[WindowRow], unit: str) -> str:
    """The sensitivity table: one line for each early cut."""
    lines = [
        f"{'from':>10} {unit[:16]:<16}{'points':>7}{'A':>8}   5 to 95 %        {'B':>6}  verdict"
    ]
    for row in rows:
        within = _range(number(row.A.low), number(row.A.high))
        if row.A.estimate is None:
            within = _at_least(number(row.A.low))
        lines.append(
            f"{amount(row.min_compute):>10} {'':<16}{row.n_points:>7}{number(row.A.estimate):>8}   "
            f"{within:<16}{number(row.B.estimate, 2):>7}  {row.status.replace('_', ' ')}"
        )
    return "\n".join(lines)


def terminal_plot(fit: Fit, *, width: int = 64, height: int = 14) -> str:
    """Evaluations `o` and the fitted curve `·` (beyond the window `-`) against log compute."""
    C, y = fit.data.compute, fit.data.pass_rate
    last = max([C[-1], *fit.settings.predict]) if fit.draws is not None else C[-1]
    edges = np.log([C[0], last]) if last > C[0] else np.log([C[0] / 2, C[0] * 2])
    columns = linspace(edges[0], edges[1], width)
    curve = fit.estimate(np.exp(columns))
    shown = np.concatenate([y, curve[np.isfinite(curve)]])
    low, high = float(shown.min()), float(shown.max())
    pad = 0.05 * (high - low) or 0.01
    low, high = max(0.0, low - pad), min(1.0, high + pad)
    canvas = [[" "] * width for _ in range(height)]

    def line(value: float) -> int:
        return int(np.clip(round((high - value) / (high - low) * (height - 1)), 0, height - 1))

    for k, value in enumerate(curve):
        if np.isfinite(value):
            canvas[line(value)][k] = "·" if columns[k] <= np.log(C[-1]) + 1e-9 else "-"
    for compute, value in zip(C, y, strict=True):
        k = round((np.log(compute) - edges[0]) / (edges[1] - edges[0]) * (width - 1))
        canvas[line(value)][int(np.clip(k, 0, width - 1))] = "o"
    labels = {0: f"{high:.3f}", height - 1: f"{low:.3f}"}
    body = [f"{labels.get(i, ''):>7} │{''.join(row).rstrip()}" for i, row in enumerate(canvas)]
    left, right = amount(float(np.exp(edges[0]))), amount(float(np.exp(edges[1])))
    axis = f"{left}{(fit.unit + ' (log)').center(width - len(left) - len(right))}{right}"
    return "\n".join([*body, f"{'':>7} └{'─' * width}", f"{'':>9}{axis}"])


def comparison_summary(c: Comparison) -> str:
    """Ranking, verdicts and the evidence of every pair."""
    wide = max(8, *(len(r.name) for r in c.recipes)) + 2
    lines = [f"{'recipe':<{wide}}{'A':>7}   5 to 95 %         {'B':>6}{'C_mid':>12}   verdict"]
    for recipe in c.recipes:
        first = recipe.fits[0]
        runs = "" if len(recipe.fits) == 1 else f" ({len(recipe.fits)} runs)"
        status = ", ".join(dict.fromkeys(f.status.replace("_", " ") for f in recipe.fits))
        known = any(f.A.estimate is not None for f in recipe.fits)
        low = number(recipe.A.low)
        within = _range(low, number(recipe.A.high)) if known else _at_least(low)
        lines.append(
            f"{recipe.name:<{wide}}{number(recipe.A.estimate) if known else '-':>7}   {within:<17}"
            f"{number(first.B.estimate, 2):>7}{amount(first.C_mid.estimate):>12}   {status}{runs}"
        )
    origin = (
        f"estimated from replicates (degrees of freedom: {c.run_sd_from})"
        if c.run_sd_from
        else "assumed: no replicates were given"
    )
    lines += ["", *(f"  {i + 1}. {v}" for i, v in enumerate(c.verdicts)), ""]
    lines += [f"Intervals of A include run-to-run SD {number(c.run_sd.estimate, 4)}, {origin}."]
    for pair in c.pairs:
        lines += ["", *_pair_lines(pair, c.unit)]
    return "\n".join(lines)


def _pair_lines(p: Pair, unit: str) -> list[str]:
    lines = [f"{p.a} against {p.b}"]
    if p.p_higher is not None:
        within = _range(number(p.delta_A.low), number(p.delta_A.high))
        lines.append(
            f"  difference of ceilings {number(p.delta_A.estimate)} ({within}), "
            f"P(higher) = {p.p_higher:.3f}"
        )
    if p.target is not None and p.compute_ratio.estimate is not None:
        r = p.compute_ratio
        within = _range(number(r.low, 2), number(r.high, 2))
        lines.append(
            f"  to reach {p.target:.3f}, {p.a} takes {number(r.estimate, 2)} ({within}) of the "
            f"compute of {p.b}"
        )
    if p.p_crossing:
        at = _range(amount(p.crossing.low), amount(p.crossing.high))
        lines.append(
            f"  the curves cross with P = {p.p_crossing:.2f}, near {amount(p.crossing.estimate)} "
            f"{unit} ({at})"
        )
    rule = p.paper
    if p.p_higher is None:
        return [
            *lines,
            "  paper's rule (.02): a ceiling is not identified, so there is none to compare",
        ]
    if rule.by == "ceiling":
        how = f"ceilings {rule.delta_A:+.3f} apart"
    elif rule.by == "nothing":
        how = "no ceilings to compare"
    else:
        how = f"B {number(rule.B_a, 2)} and {number(rule.B_b, 2)} at A = {number(rule.common_A)}"
    errs = ""
    if rule.false_positive is not None:
        errs = f"; its margin calls {rule.false_positive:.0%} of identical recipes different"
    lines.append(f"  paper's rule (.02): {rule.winner} ({how}){errs}")
    return lines
