"""The report of a run or of a study: one HTML file that needs nothing beside it.

    run folders → report_data, report_fits: values → report.html, .css, .js → one file

The page draws from one JSON block. Text of prompts, completions and settings reaches the document
only as text nodes; what runs is the page's own script, whose hash the page's policy names.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import scalerl
from scalerl.errors import InputError
from scalerl.experiments import report_data as data
from scalerl.experiments import report_fits as fits

SCRIPTS = (
    "report_draw.js",
    "report_chart.js",
    "report_panels.js",
    "report_tables.js",
    "report_study.js",
    "report.js",
)


def write_report(paths: Sequence[Path], out: Path, *, fit_share: float = 0.5) -> Path:
    """Write the page of every run in `paths` to `out`; the first `fit_share` of compute is fitted.

    A run that is still going on gives a page, too. Errors: InputError for a path without a run, a
    log that cannot be read, a share outside (0, 1] or a file that cannot be written.
    """
    if not 0 < fit_share <= 1:
        raise InputError(f"fit share {fit_share:g} is not above 0 and at most 1")
    found = data.find_runs(paths)
    title = found[0][0] if len(found) == 1 else _title(paths)
    study = data.study_result(paths)
    page = assemble(page_values(found, title=title, fit_share=fit_share, study=study))
    aside = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(page, "utf-8")
        os.replace(aside, out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error}") from error
    return out


def _title(paths: Sequence[Path]) -> str:
    return " · ".join(path.resolve().name for path in paths)


def page_values(
    found: Sequence[tuple[str, Path]],
    *,
    title: str,
    fit_share: float,
    study: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything the page shows, as JSON-ready values; `study` is a study's result.json."""
    records = [data.read_run(name, path) for name, path in found]
    runs: list[dict[str, Any]] = []
    warnings: list[dict[str, str]] = []
    for record in records:
        values, own = _run_values(record, fit_share, len(records))
        runs.append(values)
        warnings += own
    warnings.sort(key=lambda w: fits.LEVELS.index(w["level"]))
    return {
        "title": title,
        "version": scalerl.__version__,
        "fit_share": fit_share,
        "units": [{"key": key, "label": label} for key, label in fits.UNITS.items()],
        "warnings": warnings,
        "runs": runs,
        "study": study,
        "differences": data.differences([record.config for record in records]),
    }


def _run_values(
    record: data.RunRecord, fit_share: float, n_runs: int
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    fitted: dict[str, Any] = {}
    curve = None
    for unit in fits.UNITS:
        own, notes = fits.curve_of(record, unit)
        record.notes.extend(notes)
        if own is not None:
            fitted[unit] = fits.fits_of(own, fit_share)
        curve = curve or own
    values = {
        "name": record.name,
        "curve": data.evaluations(record.curve),
        "fits": fitted,
        "training": data.training(record.steps),
        "ledger": data.ledger(record.steps),
        "texts": data.completions(record, n_runs),
        "config": record.config_text,
    }
    first = next(iter(fitted.values()), None)  # device-hours, unless they were not logged
    return values, fits.warnings_of(record, curve, first, fit_share)


def assemble(values: dict[str, Any]) -> str:
    """The page as one string: style, values and script put into the frame."""
    script = "\n".join(_asset(name) for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}\n}})();'
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "TITLE": html.escape(values["title"]),
        "POLICY": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "STYLE": _asset("report.css"),
        "VALUES": embedded(values),
        "SCRIPT": script,
    }
    frame = _asset("report.html").split("%%")  # text, NAME, text, NAME, …, text
    return "".join(parts[p] if i % 2 else p for i, p in enumerate(frame))


def embedded(values: Any) -> str:
    """JSON that no HTML parser sees a tag or an end of script in."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _asset(name: str) -> str:
    return resources.files("scalerl.experiments").joinpath(name).read_text("utf-8")
