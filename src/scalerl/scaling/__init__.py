"""Compute curves of reinforcement learning: read, fit, forecast, warn, compare.

    from scalerl import scaling

    curve = scaling.read_curve("runs/one")
    fit = scaling.fit(curve, predict=[10_000])
    print(fit.summary())

numpy and scipy only; matplotlib is imported when a figure is first asked for.
"""

from typing import TYPE_CHECKING, Any

from scalerl.scaling.compare import compare
from scalerl.scaling.comparison import Comparison
from scalerl.scaling.curve import Curve, curve_from_points
from scalerl.scaling.describe import pool_summary, terminal_plot, window_lines
from scalerl.scaling.fit import fit
from scalerl.scaling.forecast import ForecastCheck, check_forecast
from scalerl.scaling.least_squares import PointFits, fit_points
from scalerl.scaling.pool import Pool, pool
from scalerl.scaling.readers.read import read_curve, read_curves
from scalerl.scaling.result import Band, Fit, Interval, Parameters, Prediction
from scalerl.scaling.sigmoid import compute_to_target, fraction_reached, sigmoid
from scalerl.scaling.transform import FTransform, f_transform
from scalerl.scaling.warn import warn
from scalerl.scaling.window import propose_window, window_table

if TYPE_CHECKING:
    from scalerl.scaling.plot import plot_comparison, plot_f_transform, plot_fit, save_figure

_FIGURES = ("plot_comparison", "plot_f_transform", "plot_fit", "save_figure")


def __getattr__(name: str) -> Any:
    """The plotting functions, whose module imports matplotlib."""
    if name in _FIGURES:
        from scalerl.scaling import plot

        return getattr(plot, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Band",
    "Comparison",
    "Curve",
    "FTransform",
    "Fit",
    "ForecastCheck",
    "Interval",
    "Parameters",
    "PointFits",
    "Pool",
    "Prediction",
    "check_forecast",
    "compare",
    "compute_to_target",
    "curve_from_points",
    "f_transform",
    "fit",
    "fit_points",
    "fraction_reached",
    "plot_comparison",
    "plot_f_transform",
    "plot_fit",
    "pool",
    "pool_summary",
    "propose_window",
    "read_curve",
    "read_curves",
    "save_figure",
    "sigmoid",
    "terminal_plot",
    "warn",
    "window_lines",
    "window_table",
]
