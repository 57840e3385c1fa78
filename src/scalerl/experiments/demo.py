"""The main job, end to end: train a small model, fit half of its curve, check the forecast.

    supervised start → ScaleRL → curve.jsonl → fit of the first half → forecast against the second
                                                                     → table, report.html

Compute is device-seconds of generator and trainer, as the paper has GPU-hours; on a laptop that is
busy with other things the points scatter along that axis.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from scalerl import scaling
from scalerl.config import Config
from scalerl.errors import InputError
from scalerl.experiments.monitor import Monitor
from scalerl.experiments.report import write_report
from scalerl.pipeline.alarms import Listener
from scalerl.pipeline.loop import Ending
from scalerl.pipeline.session import run_new

FITTED_SHARE = 0.5


def run_demo(
    config: Config,
    path: Path,
    listener: Listener,
    *,
    on_start: Callable[[int, float], None],
) -> Ending:
    """Train a run in the fresh folder `path`; its start model is kept beside it."""
    starts = path.parent / "starts"
    return run_new(config, path, listener, starts=starts, on_start=on_start, make_judge=Monitor)


def fresh(folder: Path) -> Path:
    """The first of run-1, run-2 … that does not exist yet."""
    number = 1
    while (folder / f"run-{number}").exists():
        number += 1
    return folder / f"run-{number}"


def forecast_table(run: Path) -> str:
    """Fit the first half of a run's compute and hold the forecast against the rest, in words; one
    line where the curve cannot be read, or its first half has too few evaluations, or no gain."""
    try:
        curve = scaling.read_curve(run)
        half = FITTED_SHARE * float(curve.compute[-1])
        if curve.compute[0] > half:
            return "No forecast: the first half of the compute holds no evaluation after step 0."
        fitted = scaling.fit(curve, r0="step0", max_compute=half)
    except InputError as error:  # the run is done and its page written: why is all there is to say
        return f"No forecast: {error}"
    later = curve.select(curve.compute > half)
    band = fitted.predict(later.compute)
    if not np.isfinite(band.observation_low).all():
        return f"No forecast from the first half of the compute: {'; '.join(fitted.reasons)}."
    lines = [
        f"Fit of the first half ({half:.4f} of {curve.compute[-1]:.4f} device-hours)",
        fitted.summary(),
        "",
        "Forecast of the second half",
        f"{'device-hours':>12}  {'forecast':>8}  {'90 % band':>15}  {'measured':>8}",
    ]
    inside = (later.pass_rate >= band.observation_low) & (later.pass_rate <= band.observation_high)
    for i in range(len(later.compute)):
        bounds = f"{band.observation_low[i]:.3f} … {band.observation_high[i]:.3f}"
        mark = "inside" if inside[i] else "outside"
        lines.append(
            f"{later.compute[i]:12.4f}  {band.estimate[i]:8.3f}  {bounds:>15}  "
            f"{later.pass_rate[i]:8.3f}  {mark}"
        )
    lines += ["", f"{int(np.sum(inside))} of {len(inside)} later evaluations are inside the band."]
    return "\n".join(lines)


def write_page(run: Path) -> Path:
    """report.html of the run."""
    return write_report([run], run / "report.html", fit_share=FITTED_SHARE)
