"""Fit a compute curve: parameters, intervals, forecasts and a verdict, as one frozen result."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import Draws
from scalerl.scaling.least_squares import PointFits, solve
from scalerl.scaling.methods import Core, fit_paper, fit_power_law, observed
from scalerl.scaling.posterior import Observed, draw
from scalerl.scaling.result import (
    Fit,
    Interval,
    Method,
    Parameters,
    Prediction,
    R0Mode,
    Settings,
)
from scalerl.scaling.robust import OUTLIER, SUSPECT, huber, outlier_weight, outliers
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.verdict import (
    FEW_POINTS,
    ORIGIN_SHARES,
    judge,
    no_gain,
    rolling_origins,
    unchecked,
)
from scalerl.scaling.warn import red_rows

NOTHING = Interval(None, None, None)
FAR = 2.0
"""A curve whose ceiling is not identified gives no estimate beyond this many windows' ends."""


def fit(
    curve: Curve,
    *,
    r0: float | Literal["step0", "free"] | None = None,
    min_compute: float | None = None,
    max_compute: float | None = None,
    predict: Sequence[float] = (),
    targets: Sequence[float] = (),
    fix_ceiling: float | None = None,
    method: Method = "posterior",
    prior_b: bool = True,
    paper_grid: tuple[float, float, int] = (100.0, 40000.0, 100),
    keep_red: bool = False,
) -> Fit:
    """Fit R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B) and say what it can be trusted for.

    Equation 1; `method="paper"` is the grid of A.5, `"power-law"` the form of A.4. `r0` holds R0 at
    a value, takes the step-0 evaluation as an observation of it, or leaves it free; None takes
    step 0 where there is one and is free otherwise. Compute is in `curve.unit` throughout. Points
    under a red drawdown or truncation warning are left out unless `keep_red`.

    Data too poor for a fit is a result with a status, not an error; without an identified ceiling
    there is no estimate of a pass rate beyond twice the window's end, only an interval.
    Errors: InputError for settings that contradict the data or each other.
    """
    mode, value = r0_choice(curve, r0)
    settings = Settings(
        r0_mode=mode,
        r0=value,
        method=method,
        fix_ceiling=fix_ceiling,
        prior_b=prior_b,
        predict=tuple(float(c) for c in predict),
        targets=tuple(float(t) for t in targets),
        paper_grid=paper_grid,
        min_compute=min_compute,
        max_compute=max_compute,
    )
    _check_settings(settings)
    data, left_out, notes = fitted_part(curve, settings, keep_red)
    if r0 is None and mode == "free":
        notes.append(
            "there is no step-0 evaluation, so R0 is free: A and B are less certain for it"
        )
    elif mode == "free":
        notes.append("R0 is free: A and B are less certain than with R0 known")
    if len(data) < FEW_POINTS:
        notes.append(f"only {len(data)} points; a verdict wants at least {FEW_POINTS}")
    match method:
        case "posterior":
            core = _fit_posterior(data, settings)
        case "paper":
            core = fit_paper(data, settings)
        case "power-law":
            core = fit_power_law(data, settings)
    return _assemble(data, settings, core, tuple(left_out), notes)


def r0_choice(
    curve: Curve, r0: float | Literal["step0", "free"] | None
) -> tuple[R0Mode, float | None]:
    """How R0 is treated, and the value it is held at. Errors: InputError where that cannot be."""
    if r0 is None:
        return ("free", None) if curve.r0_observed is None else ("step0", None)
    if r0 == "free":
        return "free", None
    if r0 == "step0":
        if curve.r0_observed is None:
            raise InputError(
                f"curve {curve.name!r} has no step-0 evaluation; give R0 a value (--r0 0.40) "
                "or leave it free (--r0 free)"
            )
        return "step0", None
    if isinstance(r0, str) or not 0 <= r0 < 1:
        raise InputError(
            f"r0 is {r0!r}; it must be 'step0', 'free' or a pass rate from 0 to below 1"
        )
    return "value", float(r0)


def _check_settings(s: Settings) -> None:
    if s.method not in ("posterior", "paper", "power-law"):
        raise InputError(f"method {s.method!r} is none of posterior, paper, power-law")
    if s.fix_ceiling is not None and not 0 < s.fix_ceiling <= 1:
        raise InputError(f"fix_ceiling is {s.fix_ceiling:g}; a ceiling is a pass rate in (0, 1]")
    if s.fix_ceiling is not None and s.r0 is not None and s.fix_ceiling <= s.r0:
        raise InputError(f"fix_ceiling {s.fix_ceiling:g} is not above R0 = {s.r0:g}")
    for compute in s.predict:
        if not (np.isfinite(compute) and compute > 0):
            raise InputError(f"predict: compute {compute:g} is not above 0")
    for target in s.targets:
        if not 0 < target < 1:
            raise InputError(f"target pass rate {target:g} is not between 0 and 1")
    low, high = s.min_compute, s.max_compute
    if low is not None and high is not None and low >= high:
        raise InputError(f"min_compute {low:g} is not below max_compute {high:g}")


def fitted_part(
    curve: Curve, s: Settings, keep_red: bool
) -> tuple[Curve, list[tuple[float, float]], list[str]]:
    """The evaluations to fit, those that red warnings took out, and what to say of it."""
    red, why = red_rows(curve)
    if keep_red:
        red[:] = False
    within = np.ones(len(curve), bool)
    if s.min_compute is not None:
        within &= curve.compute >= s.min_compute
    if s.max_compute is not None:
        within &= curve.compute <= s.max_compute
    if not within.any():
        span = "none at all"
        if len(curve):
            span = f"{curve.compute[0]:g} to {curve.compute[-1]:g} {curve.unit}"
        raise InputError(
            f"curve {curve.name!r}: no evaluation inside the window "
            f"(min_compute {s.min_compute}, max_compute {s.max_compute}); it has {span}"
        )
    out = within & red
    inside = curve.select(within & ~red)
    if not out.any():
        return inside, [], []
    if len(inside) < min(FEW_POINTS, within.sum()):
        note = f"too few evaluations are free of red warnings to fit without the others: {why}"
        return curve.select(within), [], [note]
    left_out = [
        (float(c), float(r)) for c, r in zip(curve.compute[out], curve.pass_rate[out], strict=True)
    ]
    note = f"{len(left_out)} evaluations between {curve.unit} {left_out[0][0]:.6g} and "
    note += f"{left_out[-1][0]:.6g} are left out of the fit: {why}"
    return inside, left_out, [note]


def redraw(data: Curve, s: Settings, weight: Floats) -> Draws:
    """The draws of a posterior fit again, from what determines them."""
    return draw(observed(data, s, weight))


def _needed(data: Observed) -> int:
    """Evaluations besides step 0 that leave a degree of freedom for the noise."""
    return 3 + data.unknown - int(data.step0 is not None)


def _parameters(f: PointFits) -> Parameters:
    return Parameters(
        A=float(f.A[0]),
        B=float(f.B[0]),
        C_mid=float(f.C_mid[0]),
        R0=float(f.R0[0]),
        rss=float(f.rss[0]),
    )


def _fit_posterior(curve: Curve, s: Settings) -> Core:
    data = observed(curve, s)
    need = _needed(data)
    if len(curve) < need:
        reason = (
            f"{len(curve)} points cannot tell {2 + data.unknown} unknowns and the noise; at least "
            f"{need} are needed"
        )
        return Core(status="not_identified", reasons=[reason], weight=data.w)
    why_not = no_gain(data)
    if why_not is not None:
        return Core(status="no_gain", reasons=[why_not], weight=data.w)
    point = solve(data.problem())
    robust, reasons = None, list[str]()
    best = point
    if outliers(data, point, SUSPECT).any():
        robust_fit = huber(data)
        far = outliers(data, robust_fit)
        if far.any():
            best, robust = robust_fit, _parameters(robust_fit)
            data = replace(data, w=data.w * outlier_weight(far))
            reasons.append(_outlier_reason(curve, far, point, robust_fit))
    draws = draw(data)
    reached = float(draws.quantiles(draws.fraction(curve.compute[-1:]))[1, 0])
    origins = rolling_origins(data)
    A, B = interval(draws, draws.A), interval(draws, draws.B)
    status, words = judge(
        A,
        B,
        reached,
        fixed=s.fix_ceiling is not None,
        at_ceiling=bool(best.at_ceiling[0]),
        origins=origins,
    )
    reasons = words + reasons
    if len(curve) < FEW_POINTS and status == "identified":
        status = "weak"
        reasons.append(f"fewer than {FEW_POINTS} points identify no ceiling, however well they fit")
    if len(origins) < len(ORIGIN_SHARES):
        reasons.append(unchecked(origins))
    if best.at_ceiling[0]:
        reasons.append("least squares runs into the upper bound A = 1")
    if best.at_edge[0]:
        reasons.append("least squares runs into the edge of where C_mid or B are looked for")
    return Core(
        status=status,
        reasons=reasons,
        weight=data.w,
        least_squares=_parameters(point),
        robust=robust,
        draws=draws,
        origins=origins,
        at_edge=bool(best.at_edge[0] or best.at_ceiling[0]),
    )


def _outlier_reason(curve: Curve, far: Floats, plain: PointFits, robust: PointFits) -> str:
    i = int(np.argmax(np.abs(far)))
    count = int(np.count_nonzero(far))
    others = "" if count == 1 else f" and {count - 1} more"
    return (
        f"the evaluation at {curve.unit} {curve.compute[i]:.6g} is {far[i]:+.1f} MAD-sigma "
        f"off{others} (limit {OUTLIER:g}): least squares gives A = {plain.A[0]:.3f}, Huber "
        f"{robust.A[0]:.3f}; Huber is used"
    )


def interval(draws: Draws, values: Floats, estimate: float | None = None) -> Interval:
    """5 to 95 % of values [D]; the median where no estimate is given."""
    low, median, high = (float(v) for v in draws.quantiles(values))
    return Interval(median if estimate is None else estimate, low, high)


def _assemble(
    data: Curve,
    s: Settings,
    core: Core,
    left_out: tuple[tuple[float, float], ...],
    notes: list[str],
) -> Fit:
    point = core.robust or core.least_squares
    A, B, C_mid, R0 = _intervals(data, s, core, point)
    d = core.draws
    bare = Fit(
        name=data.name,
        status=core.status,
        reasons=(*core.reasons, *notes),
        A=A,
        B=B,
        C_mid=C_mid,
        R0=R0,
        predictions=(),
        compute_to=(),
        n_points=len(data),
        window=(float(data.compute[0]), float(data.compute[-1])),
        unit=data.unit,
        r0_mode=s.r0_mode,
        reached=NOTHING if d is None else interval(d, d.fraction(data.compute[-1:])[:, 0]),
        sigma=NOTHING if d is None else interval(d, d.sigma),
        rho=NOTHING if d is None else interval(d, d.rho),
        least_squares=core.least_squares,
        robust=core.robust,
        origins=core.origins,
        data=data,
        left_out=left_out,
        settings=s,
        draws=d,
        row_weight=core.weight,
        power_law=core.power_law,
    )
    return replace(
        bare,
        predictions=_predictions(bare, s.predict),
        compute_to=tuple((t, bare.compute_to_target(t)) for t in s.targets),
    )


def _intervals(
    data: Curve, s: Settings, core: Core, point: Parameters | None
) -> tuple[Interval, Interval, Interval, Interval]:
    """A, B, C_mid and R0: the point that stands if it lies inside the intervals, else medians."""
    R0_given = s.r0 if s.r0_mode == "value" else None
    if core.power_law is not None:
        law = core.power_law
        return Interval(law.A, None, None), Interval(law.B, None, None), NOTHING, NOTHING
    if core.draws is None or point is None:
        if point is None or core.status in ("no_gain", "not_identified"):
            return NOTHING, NOTHING, NOTHING, Interval(R0_given, R0_given, R0_given)
        A, B, C_mid, R0 = (
            Interval(v, None, None) for v in (point.A, point.B, point.C_mid, point.R0)
        )
        return A, B, C_mid, R0
    d = core.draws
    told = core.status != "not_identified"
    bounds = [interval(d, v) for v in (d.A, d.B, np.exp(d.log_C_mid), d.R0)]
    values = (point.A, point.B, point.C_mid, point.R0)
    held = (s.fix_ceiling, None, None, R0_given)
    fits = not core.at_edge and all(
        h is not None or (b.low or 0.0) - 1e-6 * abs(v) <= v <= (b.high or 0.0) + 1e-6 * abs(v)
        for h, b, v in zip(held, bounds, values, strict=True)
    )
    out: list[Interval] = []
    for h, b, v in zip(held, bounds, values, strict=True):
        if h is not None:
            out.append(Interval(h, h, h))
        elif not told and b is not bounds[3]:
            out.append(Interval(None, b.low, b.high))
        elif fits:
            out.append(Interval(v, min(b.low or v, v), max(b.high or v, v)))
        else:
            out.append(b)
    return out[0], out[1], out[2], out[3]


def _predictions(bare: Fit, computes: tuple[float, ...]) -> tuple[Prediction, ...]:
    if not computes:
        return ()
    band = bare.predict(computes)

    def number(value: float) -> float | None:
        return float(value) if np.isfinite(value) else None

    told = bare.status != "not_identified" or bare.settings.fix_ceiling is not None
    return tuple(
        Prediction(
            compute=c,
            estimate=number(band.estimate[i]) if told or c <= FAR * bare.window[1] else None,
            low=number(band.low[i]),
            high=number(band.high[i]),
            observation_low=number(band.observation_low[i]),
            observation_high=number(band.observation_high[i]),
        )
        for i, c in enumerate(computes)
    )
