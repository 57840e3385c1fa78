"""A study as small files to commit or to send: tables, every curve's data, a figure, what it took.

    run folders, study.sqlite → result.json, result.txt, curves/VARIANT.seed-N.jsonl, curves.png,
                                study.toml, cost.json, race.txt (what a race would have saved)

Each curve is a file that `scalerl fit` and `scalerl compare` read, so that the whole result can be
had again from them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from scalerl.errors import InputError
from scalerl.experiments.result_table import amount
from scalerl.experiments.study import curves_of, replay_race, result_of
from scalerl.experiments.study_file import Study
from scalerl.experiments.study_state import FILE, RunRow, StudyState
from scalerl.pipeline.records import current_rows
from scalerl.scaling.curve import Curve
from scalerl.scaling.plot import COLOURS, save_figure

COLUMNS = (
    "attempt", "step", "pass_rate", "pass_rate_se", "n_prompts", "n_samples", "entropy",
    "truncation_rate", "interruption_rate", "mean_length", "device_hours", "tokens_generated",
    "tokens_trained", "flops", "epoch",
)  # fmt: skip
DIGITS = 6
"""Significant digits that are kept of a float."""
PANELS_A_ROW = 4


def export(study: Study, folder: Path, out: Path) -> list[Path]:
    """Write a study's small files; returns them. What is not finished is told in result.txt.

    Raises:
        InputError: nothing has been started in `folder`, or `out` cannot be written.
    """
    if not (folder / FILE).is_file():
        raise InputError(f"{folder}: no study has been started there")
    state = StudyState(folder)
    try:
        rows = state.runs()
        result, curves = result_of(study, state), curves_of(study, state)
    finally:
        state.close()
    try:
        written = _write_curves(rows, folder, out / "curves")
        result.write(out)
        (out / "cost.json").write_text(json.dumps(cost(rows), indent=1) + "\n", "utf-8")
        (out / "race.txt").write_text(replay_race(study, folder) + "\n", "utf-8")
        shutil.copyfile(study.file, out / "study.toml")
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from error
    figure = plot_panels(curves, base=study.base.name, unit=study.plan.compute)
    save_figure(figure, out / "curves.png")
    return [out / "result.txt", out / "result.json", out / "curves.png", *written]


def cost(rows: Sequence[RunRow]) -> dict[str, Any]:
    """What a study took: runs, process seconds (one core a run), tokens, finished and failed."""
    return {
        "runs": len(rows),
        "done": sum(r.state == "done" for r in rows),
        "failed": {r.name: r.reason for r in rows if r.state == "failed"},
        "process_seconds": round(sum(r.seconds for r in rows)),
        "median_seconds_a_run": round(float(np.median([r.seconds for r in rows] or [0]))),
        "tokens_generated": sum(r.tokens_generated for r in rows),
    }


def _write_curves(rows: Sequence[RunRow], folder: Path, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for row in rows:
        found = current_rows(folder / row.folder / "curve.jsonl")
        if found:
            file = out / f"{row.variant}.seed-{row.seed}.jsonl"
            file.write_text("".join(json.dumps(_slim(one)) + "\n" for one in found), "utf-8")
            written.append(file)
    return written


def _slim(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: row[k] for k in COLUMNS if k in row}
    return {k: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for k, v in kept.items()}


def plot_panels(curves: Mapping[str, Sequence[Curve]], *, base: str, unit: str) -> Figure:
    """One panel a variant: its runs in colour over the base's runs in grey, axes shared."""
    names = [n for n, runs in curves.items() if runs]
    across = min(PANELS_A_ROW, max(1, len(names)))
    down = max(1, -(-len(names) // across))
    figure = Figure(figsize=(2.5 * across, 1.9 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    for panel, name in zip(panels, names, strict=False):
        for curve in curves.get(base, ()):
            panel.plot(*_points(curve), color="0.7", linewidth=0.9)
        colour = "0.35" if name == base else COLOURS[0]
        for curve in curves[name]:
            panel.plot(*_points(curve), color=colour, linewidth=1.2)
        panel.set_title(name, fontsize=7.5, loc="left")
        panel.grid(visible=True, color="0.92", linewidth=0.6)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda v, _: amount(v)))
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    for panel in panels[: len(names)][-across:]:  # the lowest of each column
        panel.tick_params(labelbottom=True)
    figure.supxlabel(unit.replace("_", " "), fontsize=8)
    figure.supylabel("held-out pass rate", fontsize=8)
    return figure


def _points(curve: Curve) -> tuple[list[float], list[float]]:
    """Compute and pass rate, step 0 first where it was observed."""
    compute, rates = list(map(float, curve.compute)), list(map(float, curve.pass_rate))
    if curve.r0_observed is not None:
        compute, rates = [0.0, *compute], [curve.r0_observed, *rates]
    return compute, rates
