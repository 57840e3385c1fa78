"""Forecasts of a study's runs, held against what then happened.

With an extension, the forecast is that of everything before it, written down before it begins.
Without one, the first share of each run's compute is fitted and the rest checks it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import fit
from scalerl.scaling.forecast import check_forecast
from scalerl.scaling.result import Fit

FILE = "forecasts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One run's forecast and how it met the evaluations that came later."""

    variant: str
    run: str
    status: str
    """Of the fit that forecast."""
    fitted_to: float
    """Greatest compute that was fitted."""
    n_later: int
    n_inside: int
    """Later evaluations inside the 90 % band of one evaluation."""
    mean_error: float
    """Mean of pass rate less forecast."""
    p_value: float
    end: float
    """Last pass rate, and what was forecast for it with its band."""
    forecast: float
    low: float
    high: float


def freeze(folder: Path, curves: Mapping[str, Sequence[Curve]]) -> None:
    """Write down the fits that forecast; the file appears whole."""
    fits = {name: {c.name: fit(c).to_dict() for c in runs} for name, runs in curves.items()}
    aside = folder / f"{FILE}.part"
    aside.write_text(json.dumps(fits, allow_nan=False) + "\n", "utf-8")
    os.replace(aside, folder / FILE)


def check(
    folder: Path, curves: Mapping[str, Sequence[Curve]], *, fit_share: float
) -> list[Forecast]:
    """Every forecast that later evaluations can check: frozen ones where there are any."""
    if not (folder / FILE).is_file():
        return check_first_part(curves, fit_share=fit_share)
    frozen: dict[str, dict[str, dict[str, Any]]] = json.loads((folder / FILE).read_text("utf-8"))
    found = [
        _checked(name, Fit.from_dict(frozen[name][curve.name]), curve)
        for name, runs in curves.items()
        for curve in runs
        if curve.name in frozen.get(name, {})
    ]
    return [one for one in found if one is not None]


def check_first_part(curves: Mapping[str, Sequence[Curve]], *, fit_share: float) -> list[Forecast]:
    """Forecasts from the first share of each run's compute, checked on the rest."""
    found = [
        _checked(name, _first_part(curve, fit_share), curve)
        for name, runs in curves.items()
        for curve in runs
    ]
    return [one for one in found if one is not None]


def _first_part(curve: Curve, share: float) -> Fit | None:
    try:
        return fit(curve, max_compute=share * float(curve.compute[-1]))
    except InputError:  # no evaluation inside the window
        return None


def _checked(name: str, fitted: Fit | None, curve: Curve) -> Forecast | None:
    if fitted is None or fitted.draws is None or curve.compute[-1] <= fitted.window[1]:
        return None
    found = check_forecast(fitted, curve)
    last = fitted.predict(curve.compute[-1:])
    return Forecast(
        variant=name,
        run=curve.name,
        status=fitted.status,
        fitted_to=fitted.window[1],
        n_later=found.n_later,
        n_inside=found.n_inside,
        mean_error=found.mean_error,
        p_value=found.p_value,
        end=float(curve.pass_rate[-1]),
        forecast=float(last.estimate[0]),
        low=float(last.observation_low[0]),
        high=float(last.observation_high[0]),
    )


def words(found: Sequence[Forecast]) -> list[str]:
    """One line on each variant's forecasts and one on all of them."""
    if not found:
        return []
    lines = ["Forecasts against what then happened (share inside the 90 % band, mean error):"]
    by_name: dict[str, list[Forecast]] = {}
    for one in found:
        by_name.setdefault(one.variant, []).append(one)
    wide = max(len(n) for n in [*by_name, "all"]) + 2
    for name, mine in [*by_name.items(), ("all", list(found))]:
        n = sum(f.n_later for f in mine)
        inside = sum(f.n_inside for f in mine)
        error = sum(f.mean_error * f.n_later for f in mine) / n
        ends = ", ".join(
            f"{f.forecast:.3f} [{f.low:.3f}, {f.high:.3f}] met {f.end:.3f}" for f in mine
        )
        tail = f"   at the end: {ends}" if name != "all" else ""
        lines.append(f"  {name:<{wide}}{inside:>4} of {n:<5}{error:+.4f}{tail}")
    return lines
