"""Figures of fits that a paper could print, through matplotlib's objects: no global state.

Colours are Okabe and Ito's, which colour-blind readers tell apart; line styles and markers differ
too, so that a grey print works.
"""

# matplotlib's keyword arguments have no types.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from scalerl.errors import InputError
from scalerl.scaling.comparison import Comparison
from scalerl.scaling.curve import Curve
from scalerl.scaling.result import Fit
from scalerl.scaling.transform import f_transform

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def plot_fit(
    fit: Fit,
    *,
    later: Curve | None = None,
    to: float | None = None,
    size: tuple[float, float] = (5.5, 3.6),
) -> Figure:
    """One fit: points, curve (solid inside the window, dashed beyond), curve and observation band.

    `later` adds evaluations outside the window as hollow points; `to` is the highest compute drawn.
    `size` in inches.
    """
    figure, axes = _figure(size)
    end = to or max([2 * fit.window[1], *fit.settings.predict])
    if later is not None and len(later):
        end = max(end, float(later.compute[-1]))
    draw_fit(axes, fit, colour=COLOURS[0], marker=MARKERS[0], end=end, observation=True)
    if later is not None:
        _draw_unused(axes, fit, later, COLOURS[0], MARKERS[0])
    for compute, pass_rate in fit.left_out:
        axes.plot(compute, pass_rate, "x", color=COLOURS[1], markersize=6, zorder=4)
    if fit.A.estimate is not None:
        axes.axhline(fit.A.estimate, color="0.5", linewidth=0.8, linestyle=":")
    elif fit.A.low is not None:
        axes.axhline(fit.A.low, color="0.5", linewidth=0.8, linestyle=":")
    _dress(axes, fit.unit)
    axes.set_title(f"{fit.name}: {fit.status.replace('_', ' ')}", fontsize=9, loc="left")
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def draw_fit(
    axes: Axes,
    fit: Fit,
    *,
    colour: str,
    marker: str,
    end: float,
    observation: bool = False,
    label: str | None = None,
) -> None:
    """Points, curve and bands of one fit on axes that exist."""
    low, high = fit.window
    inside = np.geomspace(low, high, 160) if high > low else np.array([low])
    beyond = np.geomspace(high, max(end, high * 1.001), 120)
    both = np.concatenate([inside, beyond[1:]])
    band = fit.predict(both)
    if np.isfinite(band.low).any():
        if observation:
            axes.fill_between(
                both,
                band.observation_low,
                band.observation_high,
                color=colour,
                alpha=0.12,
                linewidth=0,
                label="90 %, one evaluation",
            )
        axes.fill_between(
            both,
            band.low,
            band.high,
            color=colour,
            alpha=0.28,
            linewidth=0,
            label="90 %, curve" if observation else None,
        )
    name = label or describe(fit)
    known = np.isfinite(band.estimate)
    if known.any():
        n = len(inside)
        axes.plot(inside, band.estimate[:n], color=colour, linewidth=1.6, label=name)
        forecast = "forecast" if observation else None
        axes.plot(
            beyond,
            band.estimate[n - 1 :],
            color=colour,
            linewidth=1.6,
            linestyle="--",
            label=forecast,
        )
    axes.plot(
        fit.data.compute,
        fit.data.pass_rate,
        marker,
        color=colour,
        markersize=3.8,
        linestyle="none",
        label="evaluations" if observation else (None if known.any() else name),
        zorder=3,
    )


def describe(fit: Fit) -> str:
    """The curve's parameters for a legend."""
    if fit.power_law is not None:
        return f"A = {fit.power_law.A:.3f}, B = {fit.power_law.B:.2f} (power law)"
    if fit.A.estimate is None:
        return f"A at least {fit.A.low:.3f}" if fit.A.low is not None else "no fit"
    parts = [f"A = {fit.A.estimate:.3f}"]
    if fit.A.width:
        parts[0] += f" [{fit.A.low:.3f}, {fit.A.high:.3f}]"
    if fit.B.estimate is not None:
        parts.append(f"B = {fit.B.estimate:.2f}")
    return ", ".join(parts)


def _draw_unused(axes: Axes, fit: Fit, later: Curve, colour: str, marker: str) -> None:
    used = np.isin(later.compute, fit.data.compute)
    gone = np.isin(later.compute, [c for c, _ in fit.left_out])
    rest = ~used & ~gone
    if rest.any():
        axes.plot(
            later.compute[rest],
            later.pass_rate[rest],
            marker,
            markerfacecolor="white",
            markeredgecolor=colour,
            markersize=3.8,
            linestyle="none",
            label="not fitted",
            zorder=3,
        )


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _dress(axes: Axes, unit: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(unit.replace("_", " "))
    axes.set_ylabel("pass rate")
    axes.grid(visible=True, which="major", color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)


def _tick(value: float, _position: int) -> str:
    """A compute for the axis: 2,000 or, where that gets long, 2 x 10^20."""
    if 0.001 <= value < 1e6:
        return f"{value:,g}"
    exponent = int(np.floor(np.log10(value) + 1e-9))
    lead = round(value / 10.0**exponent)
    power = f"10^{{{exponent}}}"
    return f"${power}$" if lead == 1 else rf"${lead} \times {power}$"


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format its file name ends in. Errors: InputError naming the file."""
    target = Path(path)
    known = figure.canvas.get_supported_filetypes()
    kind = target.suffix.lower().lstrip(".")
    if kind not in known:
        raise InputError(f"{path}: plots end in .png, .pdf or .svg")
    try:
        figure.savefig(target, dpi=180)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def plot_comparison(
    comparison: Comparison, *, to: float | None = None, size: tuple[float, float] = (6.0, 4.0)
) -> Figure:
    """All recipes on one pair of axes, one colour and marker each; replicates share them."""
    figure, axes = _figure(size)
    fits = [f for r in comparison.recipes for f in r.fits]
    end = to or 2 * max(f.window[1] for f in fits)
    for i, recipe in enumerate(comparison.recipes):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        for k, one in enumerate(recipe.fits):
            label = f"{recipe.name}: {describe(one)}" if k == 0 else "_replicate"
            draw_fit(axes, one, colour=colour, marker=marker, end=end, label=label)
    _dress(axes, comparison.unit)
    axes.legend(fontsize=7, frameon=False, loc="lower right")
    return figure


def plot_f_transform(fits: Sequence[Fit], *, size: tuple[float, float] = (5.5, 3.6)) -> Figure:
    """log F against compute with error bars: straight, of slope B, where the sigmoid holds.

    Evaluations at or above A, or at or below R0, have no log F; the legend counts them.
    """
    figure, axes = _figure(size)
    ends: list[float] = []
    for i, one in enumerate(fits):
        colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
        t = f_transform(one)
        missing = f", {t.undefined} undefined" if t.undefined else ""
        axes.errorbar(
            t.compute,
            t.log_F,
            yerr=t.se,
            fmt=marker,
            color=colour,
            markersize=3.8,
            elinewidth=0.8,
            capsize=1.5,
            label=f"{one.name}: slope B = {t.B:.2f}{missing}",
        )
        line = np.geomspace(*one.window, 50)
        straight = t.B * np.log(line)
        ends += [float(straight[0]), float(straight[-1])]
        axes.plot(line, straight, color=colour, linewidth=1.2)
    _dress(axes, fits[0].unit)
    # near the ceiling log F is nearly all noise: its error bars would flatten everything else
    axes.set_ylim(min(ends) - 1.5, max(ends) + 3.5)
    axes.set_ylabel("log F")
    axes.legend(fontsize=7, frameon=False, loc="upper left")
    return figure
