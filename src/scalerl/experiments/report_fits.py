"""Fits, forecast checks and warnings of one run for the report page, for each choice of compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.experiments.report_data import RunRecord, short
from scalerl.pipeline.records import Row
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import fit
from scalerl.scaling.forecast import ForecastCheck, check_forecast
from scalerl.scaling.result import Fit, Interval
from scalerl.scaling.warn import warn

UNITS = {
    "device_hours": "device-hours",
    "tokens_generated": "tokens generated",
    "tokens_trained": "tokens trained",
    "flops": "FLOPs",
    "step": "optimiser steps",
}
STATUS_WORDS = {
    "identified": "the ceiling is identified",
    "weak": "the ceiling is known only weakly",
    "not_identified": "the ceiling cannot be told, only bounded",
    "unstable": "the fit is unstable: refits on fewer evaluations forecast something else",
    "no_gain": "there is no gain to fit",
}
GRID = 96
MISS_P = 0.01
"""A forecast whose mean error is less likely than this is warned of."""


def curve_of(run: RunRecord, unit: str) -> tuple[Curve | None, list[str]]:
    """The run's evaluations against one unit of compute, and what had to be left out, in words.

    None where there is no evaluation after compute 0.
    """
    rows = [r for r in run.curve if r.get(unit) is not None and r.get("pass_rate") is not None]
    missing = len(run.curve) - len(rows)
    notes = [f"{missing} evaluations have no pass rate or no {UNITS[unit]}"] if missing else []
    zero = [r["pass_rate"] for r in rows if r[unit] == 0]
    rising: list[Row] = []
    for row in rows:
        if row[unit] > (rising[-1][unit] if rising else 0):
            rising.append(row)
    stalled = len(rows) - len(zero) - len(rising)
    if stalled:
        notes.append(f"{stalled} evaluations came without any new {UNITS[unit]} and are not fitted")
    if not rising:
        return None, notes

    def column(key: str) -> np.ndarray:
        return np.array([np.nan if r.get(key) is None else r[key] for r in rising], float)

    curve = Curve(
        name=run.name,
        compute=column(unit),
        pass_rate=column("pass_rate"),
        unit=unit,
        pass_rate_se=column("pass_rate_se"),
        step=column("step"),
        truncation_rate=column("truncation_rate"),
        r0_observed=float(np.mean(zero)) if zero else None,
    )
    return curve, notes


def fits_of(curve: Curve, fit_share: float) -> dict[str, Any]:
    """The fit of the first part with its forecast check, and that of the whole curve, for JSON."""
    out = {"whole": _fit(curve, None)}
    if fit_share < 1:
        out["first"] = _fit(curve, fit_share * float(curve.compute[-1]))
    return out


def _fit(curve: Curve, limit: float | None) -> dict[str, Any]:
    try:
        fitted = fit(curve, max_compute=limit)
    except InputError as error:  # no evaluation inside the window
        return {"status": "none", "reasons": [str(error)], "n": 0}
    beyond = curve.compute > fitted.window[1]
    check = None
    if limit is not None and beyond.any() and fitted.draws is not None:
        check = check_forecast(fitted, curve)
    return {
        "status": fitted.status,
        "reasons": list(fitted.reasons),
        **{k: _triple(getattr(fitted, k)) for k in ("A", "B", "C_mid", "R0", "reached")},
        "n": fitted.n_points,
        "window": [short(v, 7) for v in fitted.window],
        "left_out": [[short(c, 7), short(r)] for c, r in fitted.left_out],
        "grid": _grid(fitted, curve),
        "check": _check(check, fitted, curve),
        "later": [short(c, 7) for c in curve.compute[beyond]] if limit is not None else [],
    }


def _grid(fitted: Fit, curve: Curve) -> dict[str, list[Any]] | None:
    """Curve and 90 % observation band on a grid in log compute, a little beyond the evaluations."""
    first, last = float(curve.compute[0]), float(curve.compute[-1])
    band = fitted.predict(np.geomspace(first / 2, last * 2, GRID))
    if not np.isfinite(band.estimate).any():
        return None
    return {
        "c": [short(float(v), 7) for v in band.compute],
        "e": [short(float(v)) for v in band.estimate],
        "lo": [short(float(v)) for v in band.observation_low],
        "hi": [short(float(v)) for v in band.observation_high],
    }


def _check(check: ForecastCheck | None, fitted: Fit, curve: Curve) -> dict[str, Any] | None:
    if check is None:
        return None
    band = fitted.predict(check.compute)
    later = curve.pass_rate[curve.compute > fitted.window[1]]
    inside = (later >= band.observation_low) & (later <= band.observation_high)
    end = fitted.predict(curve.compute[-1:])
    return {
        "n": check.n_later,
        "inside": check.n_inside,
        "each": [bool(v) for v in inside],
        "mean_error": short(check.mean_error),
        "rmse": short(check.rmse),
        "p_value": short(check.p_value),
        "end": {
            "compute": short(float(curve.compute[-1]), 7),
            "seen": short(float(curve.pass_rate[-1])),
            "estimate": short(float(end.estimate[0])),
            "low": short(float(end.observation_low[0])),
            "high": short(float(end.observation_high[0])),
        },
    }


def _triple(interval: Interval) -> list[Any]:
    return [short(v) for v in (interval.estimate, interval.low, interval.high)]


LEVELS = ("red", "amber", "note")
"""Of warnings, gravest first."""


def warnings_of(
    run: RunRecord, curve: Curve | None, fits: dict[str, Any] | None, fit_share: float
) -> list[dict[str, str]]:
    """What a reader must know before the figures, gravest first."""
    found: list[tuple[str, str]] = []
    if curve is None:
        found.append(("note", "no evaluation after step 0 yet, so there is nothing to fit"))
    else:
        seen = warn(curve)
        red = {w.kind for w in seen if w.level == "red"}
        found += [(w.level, w.message) for w in seen if w.level == "red" or w.kind not in red]
    if fits is not None:
        found += _fit_warnings(fits, fit_share)
    found += _training_warnings(run)
    found += [("amber", note) for note in run.notes]
    found.sort(key=lambda w: LEVELS.index(w[0]))
    return [{"level": level, "run": run.name, "text": text} for level, text in found]


def _fit_warnings(fits: dict[str, Any], fit_share: float) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    first = f"first {100 * fit_share:.0f} % of the compute"
    for part, words in (("first", first), ("whole", "whole run")):
        found = fits.get(part)
        if found is None or found["status"] == "identified":
            continue
        level = "red" if found["status"] == "no_gain" and part == "whole" else "amber"
        said = _said(found)
        reasons = "; ".join(found["reasons"]).replace(f": {said}", "")
        out.append((level, f"fit of the {words}: {said} ({reasons})"))
    check = fits.get("first", {}).get("check")
    if check and check["p_value"] < MISS_P:
        out.append(("amber", _missed(check)))
    return out


def _said(found: dict[str, Any]) -> str:
    if found["status"] == "not_identified" and found["A"][1] is None:
        return "there is too little to tell a ceiling from"
    return STATUS_WORDS.get(found["status"], "nothing could be fitted")


def _missed(check: dict[str, Any]) -> str:
    return (
        f"the forecast missed: {check['inside']} of {check['n']} later evaluations lie in its 90 % "
        f"band, mean error {check['mean_error']:+.3f}"
    )


def _training_warnings(run: RunRecord) -> list[tuple[str, str]]:
    steps = run.steps

    def where(test: Callable[[Row], bool]) -> str | None:
        found = [row["step"] for row in steps if test(row)]
        return _steps(found, steps) if found else None

    bound = run.config.get("regime.k", math.inf)
    reasons = dict.fromkeys(str(r["skip_reason"]) for r in steps if r.get("skip_reason"))
    out: list[tuple[str, str]] = []
    if at := where(lambda r: r.get("truncation_level") == "red"):
        out.append(("red", f"more than 10 % of completions cut at the length limit in {at}"))
    if at := where(lambda r: r.get("interruption_level") == "red"):
        out.append(("amber", f"more than 10 % of completions interrupted in {at}"))
    if at := where(lambda r: bool(r.get("skip_reason"))):
        out.append(("amber", f"no update in {at}: {', '.join(reasons)}"))
    if at := where(lambda r: r.get("applied") is False):
        out.append(("amber", f"an update was not applied in {at}"))
    if at := where(lambda r: (r.get("staleness_max") or 0) > bound):
        out.append(("red", f"staleness above the bound k = {bound} in {at}"))
    return out + _progress(run)


def _progress(run: RunRecord) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    planned, done = run.config.get("steps"), run.steps[-1]["step"] if run.steps else 0
    if isinstance(planned, int) and done < planned:
        out.append(("note", f"step {done} of {planned}: the run is going on, or was stopped"))
    attempts = max((r["attempt"] for r in [*run.steps, *run.curve]), default=0)
    if attempts:
        times = "once" if attempts == 1 else f"{attempts} times"
        out.append(("note", f"resumed {times}; each step is shown as it was last run"))
    return out


def _steps(found: Sequence[int], rows: Sequence[Row]) -> str:
    where = f"step {found[0]}" if len(found) == 1 else f"steps {found[0]} to {found[-1]}"
    return f"{len(found)} of {len(rows)} steps ({where})"
