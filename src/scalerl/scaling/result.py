"""What a fit returns: frozen, printable, and the same again after JSON."""

from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import Draws, normal_scores
from scalerl.scaling.sigmoid import Floats, compute_to_target, sigmoid

Status = Literal["identified", "weak", "not_identified", "unstable", "no_gain"]
Method = Literal["posterior", "paper", "power-law"]
R0Mode = Literal["step0", "free", "value"]
Saved = TypeVar("Saved")
LEVELS = (0.05, 0.5, 0.95)
"""Quantiles of every interval: 90 % between low and high."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A quantity with its 90 % interval; None where the data do not give one."""

    estimate: float | None
    low: float | None
    high: float | None

    @property
    def width(self) -> float | None:
        """high - low."""
        return None if self.low is None or self.high is None else self.high - self.low


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Pass rate at one compute: the curve's 90 % interval, and that of one more evaluation."""

    compute: float
    estimate: float | None
    low: float | None
    high: float | None
    observation_low: float | None
    observation_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Band:
    """Predictions at k computes as arrays [k]; NaN where the method or the data give none."""

    compute: Floats
    estimate: Floats
    """The fitted curve: least squares, or the posterior median where that is all there is."""
    median: Floats
    low: Floats
    high: Floats
    observation_low: Floats
    observation_high: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """A point on the curve's parameter space and its weighted sum of squared residuals."""

    A: float
    B: float
    C_mid: float
    R0: float
    rss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """R = A - D / C^B and its weighted sum of squared residuals."""

    A: float
    B: float
    D: float
    rss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A refit on the first part of the curve, checked on the rest."""

    share: float
    """Share of the evaluations that were fitted."""
    n_fitted: int
    n_later: int
    error: float
    """Mean of (later pass rates - forecast)."""
    inside: float
    """Share of the later evaluations inside the 90 % observation band."""
    p_value: float
    """How likely so large a mean error is, if the forecast and its noise are right."""
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user asked for; with the data it determines the fit."""

    r0_mode: R0Mode
    r0: float | None = None
    method: Method = "posterior"
    fix_ceiling: float | None = None
    prior_b: bool = True
    predict: tuple[float, ...] = ()
    targets: tuple[float, ...] = ()
    paper_grid: tuple[float, float, int] = (100.0, 40000.0, 100)
    min_compute: float | None = None
    max_compute: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """A fitted compute curve, its verdict and everything needed to use or question it."""

    name: str
    status: Status
    reasons: tuple[str, ...]
    A: Interval
    B: Interval
    C_mid: Interval
    R0: Interval
    predictions: tuple[Prediction, ...]
    compute_to: tuple[tuple[float, Interval], ...]
    """(target pass rate, compute that reaches it) for each target asked for."""
    n_points: int
    window: tuple[float, float]
    """Lowest and highest compute used, in `unit`."""
    unit: str
    r0_mode: R0Mode
    reached: Interval
    """Share of the gain A - R0 reached at the end of the window."""
    sigma: Interval
    """Noise SD of one evaluation."""
    rho: Interval
    """Correlation of that noise between neighbouring evaluations."""
    least_squares: Parameters | None
    robust: Parameters | None
    """Huber fit, where a residual exceeds 4 MAD-sigma; the intervals then use its weights."""
    origins: tuple[Origin, ...]
    data: Curve
    """The evaluations used, inside the window."""
    left_out: tuple[tuple[float, float], ...]
    """(compute, pass rate) of evaluations that red warnings took out of the fit."""
    settings: Settings
    draws: Draws | None = field(repr=False)
    row_weight: Floats = field(repr=False)
    """[n], precision each evaluation had in the fit."""
    power_law: PowerLaw | None = None

    def __post_init__(self) -> None:
        weight = np.array(self.row_weight, dtype=np.float64)
        weight.setflags(write=False)
        object.__setattr__(self, "row_weight", weight)

    @property
    def method(self) -> Method:
        """Which method made it."""
        return self.settings.method

    @property
    def point(self) -> Parameters | None:
        """The point estimate that stands: robust where there is one, else least squares."""
        return self.robust or self.least_squares

    def estimate(self, compute: ArrayLike) -> Floats:
        """The fitted curve at each compute [k]; NaN where nothing could be fitted."""
        C = np.atleast_1d(np.asarray(compute, float))
        if self.power_law is not None:
            return self.power_law.A - self.power_law.D * C**-self.power_law.B
        p = self.point
        settled = self.status in ("identified", "weak", "unstable") and self.A.estimate == (
            p.A if p else None
        )
        if p is not None and (settled or self.draws is None):
            return sigmoid(C, A=p.A, B=p.B, C_mid=p.C_mid, R0=p.R0)
        if self.draws is not None:
            return self.draws.quantiles(self.draws.curve(C))[1]
        return np.full(len(C), np.nan)

    def predict(self, compute: ArrayLike) -> Band:
        """Curve band and observation band at each compute [k], 5, 50 and 95 %.

        The curve band holds R(C); the observation band holds one evaluation there, noise included.
        Errors: InputError for compute not above 0.
        """
        C = np.atleast_1d(np.asarray(compute, float))
        if C.ndim != 1 or not (np.isfinite(C).all() and (C > 0).all()):
            raise InputError(f"predict: compute must be finite and above 0, not {compute}")
        if self.draws is None:
            none = np.full(len(C), np.nan)
            low = median = high = seen_low = seen_high = none
        else:
            curve = self.draws.curve(C)
            low, median, high = self.draws.quantiles(curve, LEVELS)
            seen = curve + (self.draws.sigma * normal_scores(len(curve)))[:, None]
            seen_low, _, seen_high = self.draws.quantiles(seen, LEVELS)
            # noise only widens; the finite number of draws could say otherwise in the 4th digit
            seen_low, seen_high = np.minimum(seen_low, low), np.maximum(seen_high, high)
        return Band(
            compute=C,
            estimate=self.estimate(C),
            median=median,
            low=low,
            high=high,
            observation_low=seen_low,
            observation_high=seen_high,
        )

    def compute_to_target(self, target: float) -> Interval:
        """Compute at which the curve passes `target`, in `unit`; high is None when never is likely.

        Errors: InputError for a target outside (0, 1).
        """
        if not 0 < target < 1:
            raise InputError(f"target pass rate {target:g} is not between 0 and 1")
        p = self.point
        estimate = None
        if p is not None and self.A.estimate is not None:
            estimate = _finite(compute_to_target(target, A=p.A, B=p.B, C_mid=p.C_mid, R0=p.R0))
        if self.draws is None:
            return Interval(estimate, None, None)
        d = self.draws
        with np.errstate(over="ignore"):
            C = compute_to_target(target, A=d.A, B=d.B, C_mid=np.exp(d.log_C_mid), R0=d.R0)
        order = np.argsort(C)
        mass = np.cumsum(d.weight[order])
        low, high = (C[order][min(np.searchsorted(mass, q), len(C) - 1)] for q in (0.05, 0.95))
        return Interval(estimate, _finite(low), _finite(high))

    def summary(self) -> str:
        """The verdict, the parameters with their intervals and what was predicted, for a person."""
        from scalerl.scaling.describe import summary

        return summary(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the keys of `scalerl fit --json` first, then the data and settings."""
        names = ("A", "B", "C_mid", "R0")
        return {
            "status": self.status,
            "reasons": list(self.reasons),
            **{name: asdict(getattr(self, name)) for name in names},
            "predictions": [asdict(p) for p in self.predictions],
            "n_points": self.n_points,
            "window": list(self.window),
            "unit": self.unit,
            "r0_mode": self.r0_mode,
            "compute_to": [{"target": t, **asdict(i)} for t, i in self.compute_to],
            "name": self.name,
            "method": self.method,
            "reached": asdict(self.reached),
            "sigma": asdict(self.sigma),
            "rho": asdict(self.rho),
            "least_squares": None if self.least_squares is None else asdict(self.least_squares),
            "robust": None if self.robust is None else asdict(self.robust),
            "power_law": None if self.power_law is None else asdict(self.power_law),
            "origins": [asdict(o) for o in self.origins],
            "left_out": [list(p) for p in self.left_out],
            "settings": asdict(self.settings),
            "row_weight": self.row_weight.tolist(),
            "data": curve_to_dict(self.data),
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The fit again; its draws are drawn anew from data and settings, and come out the same.

        Errors: InputError naming the key that is missing or unknown.
        """
        from scalerl.scaling.fit import redraw

        try:
            settings = _settings_from_dict(saved["settings"])
            data, weight = curve_from_dict(saved["data"]), np.array(saved["row_weight"], float)
            fit = cls(
                name=saved["name"],
                status=saved["status"],
                n_points=saved["n_points"],
                unit=saved["unit"],
                r0_mode=saved["r0_mode"],
                A=rebuilt(Interval, saved["A"]),
                B=rebuilt(Interval, saved["B"]),
                C_mid=rebuilt(Interval, saved["C_mid"]),
                R0=rebuilt(Interval, saved["R0"]),
                reached=rebuilt(Interval, saved["reached"]),
                sigma=rebuilt(Interval, saved["sigma"]),
                rho=rebuilt(Interval, saved["rho"]),
                reasons=tuple(saved["reasons"]),
                predictions=tuple(rebuilt(Prediction, p) for p in saved["predictions"]),
                compute_to=tuple(
                    (t["target"], Interval(t["estimate"], t["low"], t["high"]))
                    for t in saved["compute_to"]
                ),
                window=(saved["window"][0], saved["window"][1]),
                least_squares=_optional(Parameters, saved["least_squares"]),
                robust=_optional(Parameters, saved["robust"]),
                power_law=_optional(PowerLaw, saved["power_law"]),
                origins=tuple(rebuilt(Origin, o) for o in saved["origins"]),
                left_out=tuple((p[0], p[1]) for p in saved["left_out"]),
                data=data,
                settings=settings,
                row_weight=weight,
                draws=redraw(data, settings, weight) if saved["sigma"]["low"] is not None else None,
            )
        except KeyError as missing:
            raise InputError(f"saved fit: key {missing} is missing") from missing
        return fit


def rebuilt(kind: type[Saved], saved: dict[str, Any]) -> Saved:
    """A dataclass from its saved fields. Errors: KeyError with the missing one; InputError with an
    unknown one."""
    known = {f.name: f for f in fields(kind)}  # pyright: ignore[reportArgumentType]
    for name, f in known.items():
        if name not in saved and f.default is MISSING:
            raise KeyError(name)
    for name in saved:
        if name not in known:
            raise InputError(f"saved {kind.__name__}: key {name!r} is unknown")
    return kind(**saved)


def _optional(kind: type[Saved], saved: dict[str, Any] | None) -> Saved | None:
    return None if saved is None else rebuilt(kind, saved)


def _settings_from_dict(saved: dict[str, Any]) -> Settings:
    tuples = ("predict", "targets", "paper_grid")
    return rebuilt(Settings, {k: tuple(v) if k in tuples else v for k, v in saved.items()})


def _finite(value: ArrayLike) -> float | None:
    number = float(np.asarray(value, float))
    return number if np.isfinite(number) else None


def curve_to_dict(curve: Curve) -> dict[str, Any]:
    """A curve as JSON-ready values; NaN becomes null."""

    def values(array: Floats | None) -> list[float | None] | None:
        return None if array is None else [_finite(v) for v in array]

    arrays = ("compute", "pass_rate", "weight", "pass_rate_se", "step", "truncation_rate")
    plain = ("name", "unit", "r0_observed", "first_epoch", "source")
    return {
        **{k: getattr(curve, k) for k in plain},
        "notes": list(curve.notes),
        **{k: values(getattr(curve, k)) for k in arrays},
    }


def curve_from_dict(saved: dict[str, Any]) -> Curve:
    """The inverse of `curve_to_dict`."""
    arrays = ("compute", "pass_rate", "weight", "pass_rate_se", "step", "truncation_rate")
    fields: dict[str, Any] = {
        k: None
        if saved[k] is None
        else np.array([np.nan if v is None else v for v in saved[k]], float)
        for k in arrays
    }
    plain = ("name", "unit", "r0_observed", "first_epoch", "source")
    return Curve(**{k: saved[k] for k in plain}, notes=tuple(saved["notes"]), **fields)
