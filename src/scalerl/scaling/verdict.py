"""The verdict on a fit: what the data can tell about the ceiling, with reasons in words."""

import numpy as np

from scalerl.scaling.draws import Draws, normal_scores
from scalerl.scaling.posterior import Observed, draw
from scalerl.scaling.result import Interval, Origin, Status
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.special import linspace, ndtr

IDENTIFIED_WIDTH, IDENTIFIED_REACHED = 0.05, 0.85
"""Width of A's 90 % interval at most, and share of the gain reached at least."""
WEAK_WIDTH, WEAK_REACHED = 0.08, 0.80
CEILING_NEAR = 0.01
"""An interval that ends this near 1 is narrow because of the bound, not because of the data."""
FEW_POINTS = 8
TREND_Z = 2.5
FALL_Z, DROP_Z = 2.0, 3.0
"""An end this many noise SD below the start, and below the best, is no flat curve."""
PLATEAU_Z, PLATEAU_KEPT = 3.0, 0.75
"""A plateau lies this many SD of its points above R0, and its end keeps this share of the gain."""
ORIGIN_SHARES = (0.5, 0.75)
"""First parts of the points that are refitted."""
ORIGIN_FITTED, ORIGIN_LATER = 6, 3
"""Points that a refit takes at least, and that it is checked on."""
ORIGIN_P, ORIGIN_ERROR = 0.01, 0.015
"""A rolling-origin check fails when its mean error is both this unlikely and this large."""


def trend(x: Floats, y: Floats) -> float:
    """z-score of the slope of y on x, its SE widened for lag-1 correlation of the residuals.

    x, y [n], n at least 3; infinite when the points lie on a line.
    """
    dx = x - x.mean()
    slope, residual = _line(x, y)
    rss = float(residual @ residual)
    if rss <= 1e-24 * max(1.0, float(y @ y)):
        return 0.0 if abs(slope) < 1e-12 else float(np.copysign(np.inf, slope))
    se = np.sqrt(rss / (len(x) - 2) / (dx @ dx)) * _widening(residual)
    return slope / float(se)


def _line(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Slope of y on x, and what is left of y: [n]."""
    dx, dy = x - x.mean(), y - y.mean()
    slope = float(dx @ dy / (dx @ dx))
    return slope, dy - slope * dx


def _widening(residual: Floats) -> float:
    """Factor on the SD of a mean, or of a slope, for the lag-1 correlation of residuals [n]."""
    rho = float(np.clip(residual[1:] @ residual[:-1] / (residual @ residual), 0.0, 0.8))
    return float(np.sqrt((1 + rho) / (1 - rho)))


def no_gain(data: Observed) -> str | None:
    """Why there is no gain to fit: the curve falls, or is flat at R0; None when it rises."""
    z = trend(data.x, data.y)
    first, last = float(data.y[0]), float(data.y[-1])
    if z <= -TREND_Z:
        return f"the pass rate falls over the window, from {first:.3f} to {last:.3f}"
    if z >= TREND_Z:
        return None
    start = data.R0 if data.R0 is not None else data.step0
    if start is not None and _on_plateau(data.y, start):
        return None  # its height is known, its approach is not
    if _ends_lower(data.x, data.y):
        return (
            f"the pass rate ends below where it began: {first:.3f} at first, {data.y.max():.3f} at "
            f"best, {last:.3f} at last"
        )
    level, spread = float(data.y.mean()), float(data.y.std(ddof=1))
    above = "" if start is None else f" and not clearly above R0 = {start:.3f}"
    return f"the pass rate is flat over the window ({level:.3f} ± {spread:.3f} SD){above}"


def _on_plateau(y: Floats, start: float) -> bool:
    """Whether y [n] lies clearly above the start and its last third keeps the gain."""
    level, spread = float(y.mean()), float(y.std(ddof=1))
    if level - start <= max(PLATEAU_Z * spread, 1e-9):
        return False
    means = _thirds(y)
    return means[-1] - start >= PLATEAU_KEPT * (float(means.max()) - start)


def _thirds(y: Floats) -> Floats:
    """Mean of every run of a third of the points, in order; the first and last are its ends."""
    k = max(len(y) // 3, 1)
    return np.convolve(y, np.full(k, 1 / k), mode="valid")


def _ends_lower(x: Floats, y: Floats) -> bool:
    """Whether the last third lies below the first and the best by more than the noise.

    The noise is that of second differences; against the best, which noise alone can lift, it is
    widened for the correlation of neighbours.
    """
    if len(y) < 5:
        return False
    noise = float(np.sqrt(np.mean(np.diff(y, 2) ** 2) / 6) * np.sqrt(2 / (len(y) // 3)))
    means = _thirds(y)
    fall, drop = float(means[0] - means[-1]), float(means.max() - means[-1])
    if fall <= max(FALL_Z * noise, 1e-9):
        return False
    return drop > DROP_Z * noise * _widening(_line(x, y)[1])


def judge(
    A: Interval,
    B: Interval,
    reached: float,
    *,
    fixed: bool,
    at_ceiling: bool,
    origins: tuple[Origin, ...],
) -> tuple[Status, list[str]]:
    """Status of a posterior fit: width of A, share of the gain reached, refits."""
    reasons: list[str] = []
    if fixed:
        ratio = (B.high or np.inf) / (B.low or 1e-9)
        status: Status = "identified" if ratio <= 2 else "weak" if ratio <= 4 else "not_identified"
        reasons.append(f"A is held by you; B is known within a factor of {ratio:.2g}")
    else:
        width = A.width if A.width is not None else np.inf
        facts = (
            f"the 90 % interval of A is {width:.3f} wide and {reached:.0%} of the gain is reached"
        )
        capped = at_ceiling or (A.high is not None and A.high > 1 - CEILING_NEAR)
        if width <= IDENTIFIED_WIDTH and reached >= IDENTIFIED_REACHED:
            status = "identified"
        elif reached >= WEAK_REACHED or (width <= WEAK_WIDTH and not capped):
            status = "weak"
            facts += f"; identified takes {IDENTIFIED_WIDTH} and {IDENTIFIED_REACHED:.0%}"
        else:
            status = "not_identified"
            facts += ": the ceiling cannot be told, only bounded"
        reasons.append(facts)
    for origin in origins:
        if origin.failed:
            status = "unstable" if status != "not_identified" else status
            reasons.append(
                f"a refit on the first {origin.share:.0%} ({origin.n_fitted} points) misses the "
                f"later {origin.n_later} by {origin.error:+.3f} on average"
            )
    return status, reasons


def unchecked(made: tuple[Origin, ...]) -> str:
    """Which rolling-origin checks could not be made, and why."""
    done = {o.share for o in made}
    shares = " and ".join(f"{s:.0%}" for s in ORIGIN_SHARES if s not in done)
    return (
        f"not checked by a refit on the first {shares}: that takes {ORIGIN_FITTED} points with a "
        f"rise, and {ORIGIN_LATER} after them"
    )


def rolling_origins(data: Observed) -> tuple[Origin, ...]:
    """Refit the first part of the points and check the rest, for each share that leaves enough."""
    out: list[Origin] = []
    n = len(data.x)
    for share in ORIGIN_SHARES:
        k = int(np.ceil(share * n))
        if k < ORIGIN_FITTED or n - k < ORIGIN_LATER:
            continue
        part = Observed(
            x=data.x[:k],
            y=data.y[:k],
            w=data.w[:k],
            R0=data.R0,
            step0=data.step0,
            A=data.A,
            prior_b=data.prior_b,
        )
        if no_gain(part) is not None:
            continue
        d = draw(part, draws=512, shape=(24, 24))
        out.append(_check_origin(d, data, share, k))
    return tuple(out)


def _check_origin(d: Draws, data: Observed, share: float, k: int) -> Origin:
    x, y = data.x[k:], data.y[k:]
    error, p, inside = forecast_error(d, np.exp(x), y)
    return Origin(
        share=share,
        n_fitted=k,
        n_later=len(x),
        error=error,
        inside=inside,
        p_value=p,
        failed=bool(p < ORIGIN_P and abs(error) > ORIGIN_ERROR),
    )


def mean_error(d: Draws, compute: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Mean of y [k] minus the curve under each draw, and the SD that AR(1) noise gives it: [D]."""
    k = len(y)
    lags = linspace(1, k - 1, k - 1)
    inflation: Floats = 1 + 2 * ((1 - lags / k) * d.rho[:, None] ** lags).sum(1)
    return np.asarray((y - d.curve(compute)).mean(1)), d.sigma * np.sqrt(inflation / k)


def forecast_error(d: Draws, compute: Floats, y: Floats) -> tuple[float, float, float]:
    """Mean error of a forecast on later evaluations y [k], two-sided p-value, share inside 90 %.

    The spread of the mean error counts both the parameters' uncertainty and AR(1) noise.
    """
    off, spread = mean_error(d, compute, y)
    curve = d.curve(compute)
    above = float(d.weight @ ndtr(off / spread))
    seen = curve + (d.sigma * normal_scores(len(curve)))[:, None]
    low, high = d.quantiles(seen, (0.05, 0.95))
    error = float((y - d.quantiles(curve, (0.5,))[0]).mean())
    return error, 2 * min(above, 1 - above), float(((y >= low) & (y <= high)).mean())
