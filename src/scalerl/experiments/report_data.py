"""What the report page shows of runs, read from their folders: plain values, ready for JSON."""

from __future__ import annotations

import itertools
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.config.load import flatten
from scalerl.errors import InputError
from scalerl.pipeline.records import Row, current_rows

MARKS = ("curve.jsonl", "steps.jsonl")
STUDY_KEYS = ("unit", "target", "run_sd", "run_sd_from", "variants", "forecasts", "notes")
DEEPEST = 4
"""Folders between a study and a run; a link that leads back up ends there."""
STEPS_SHOWN = 300
"""Points of a training panel; longer runs are thinned to means of neighbouring steps."""
TEXT_BUDGET = 2_500_000
"""Characters of completions in one page, all runs together."""
TEXT_LEAST, TEXT_MOST = 400, 20_000
EVALUATIONS_READ = (("start", 0.0), ("early", 0.25), ("middle", 0.5), ("late", 0.75), ("end", 1.0))

MEANS = (
    "pass_rate", "reward_mean", "entropy", "length_mean", "truncation_rate", "interruption_rate",
    "staleness_mean", "mismatch_mean", "gradient_norm", "ess_share", "capped_share",
)  # fmt: skip
MAXIMA = ("length_max", "staleness_max", "mismatch_max")
LASTS = (
    "step", "device_hours", "tokens_generated", "tokens_trained", "flops", "prompts_retired",
)  # fmt: skip
EVALUATED = (
    "step", "pass_rate", "pass_rate_se", "entropy", "truncation_rate", "interruption_rate",
    "mean_length", "device_hours", "tokens_generated", "tokens_trained", "flops",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run as read: each step and each evaluation once, in order of step."""

    name: str
    path: Path
    curve: list[Row]
    steps: list[Row]
    config_text: str
    config: dict[str, Any]
    """Dotted keys; empty where config.toml is missing or cannot be read."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, in words."""


def find_runs(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Name and folder of every run in the paths; a folder of runs gives each of them, by name.

    Errors: InputError for a path that is no folder, or holds no run.
    """
    found: list[tuple[str, Path]] = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; give a run folder, or one that holds runs")
        runs = _below(path)
        if not runs:
            raise InputError(
                f"{path}: no run in it (no {' or '.join(MARKS)}); give the --run-dir of a run"
            )
        for run in runs:
            inner = run.relative_to(path).as_posix()
            name = path.resolve().name if inner == "." else inner
            if all(run.resolve() != other.resolve() for _, other in found):
                found.append((name, run))
    return _distinct(found)


def study_result(paths: Sequence[Path]) -> dict[str, Any] | None:
    """The result.json of the one folder that is a study's; None where there is none.

    Errors: InputError for a file that is not one.
    """
    file = paths[0] / "result.json"
    if len(paths) != 1 or not file.is_file():
        return None
    try:
        result = json.loads(file.read_text("utf-8"))
        return {key: result[key] for key in STUDY_KEYS}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}: no result of a study ({error}); `scalerl study` writes it anew"
        ) from None


def _below(path: Path, depth: int = 0) -> list[Path]:
    """`path` if it is a run, else the runs among its folders, in order of name."""
    if any((path / mark).is_file() for mark in MARKS):
        return [path]
    if depth == DEEPEST:
        return []
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    return [run for folder in folders for run in _below(folder, depth + 1)]


def _distinct(found: list[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """Names that occur twice get the folder above in front, or else a number."""
    names = [name for name, _ in found]
    if len(set(names)) == len(names):
        return found
    longer = [
        f"{path.resolve().parent.name}/{name}" if names.count(name) > 1 else name
        for name, path in found
    ]
    return [
        (name if longer.count(name) == 1 else f"{name} ({i})", path)
        for i, (name, (_, path)) in enumerate(zip(longer, found, strict=True), start=1)
    ]


def read_run(name: str, path: Path) -> RunRecord:
    """Everything the page needs of one run folder but the completions.

    Errors: InputError naming file and line for a log that is not one of a run.
    """
    notes: list[str] = []
    text = ""
    flat: dict[str, Any] = {}
    try:
        text = (path / "config.toml").read_text("utf-8")
        flat = flatten(tomllib.loads(text))
    except FileNotFoundError:
        notes.append("config.toml is missing: the settings of this run are not known")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        notes.append(f"config.toml cannot be read: {error}")
    return RunRecord(
        name=name,
        path=path,
        curve=_rows(path / "curve.jsonl"),
        steps=_rows(path / "steps.jsonl"),
        config_text=text,
        config=flat,
        notes=notes,
    )


def _rows(file: Path) -> list[Row]:
    try:
        return sorted(current_rows(file), key=lambda row: row["step"])
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{file}: a line lacks 'attempt' or 'step' ({error}); it is no log of a scalerl run"
        ) from None


def evaluations(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The held-out curve as columns; pass@k beside it under the largest k."""
    columns: dict[str, list[Any]] = {
        key: [short(row.get(key), 7) for row in rows] for key in EVALUATED
    }
    columns["pass_at_k"] = [
        {k: short(v) for k, v in (row.get("pass_at_k") or {}).items()} for row in rows
    ]
    columns["samples"] = [[row.get("n_prompts"), row.get("n_samples")] for row in rows]
    return columns


def training(rows: Sequence[Row]) -> dict[str, Any]:
    """The step log as columns for the panels, thinned, and how many steps one point stands for."""
    size = max(1, math.ceil(len(rows) / STEPS_SHOWN))
    buckets = [rows[i : i + size] for i in range(0, len(rows), size)]
    columns: dict[str, list[Any]] = {}
    for key in MEANS:
        columns[key] = [short(_mean([row.get(key) for row in b])) for b in buckets]
    for key in MAXIMA:
        columns[key] = [short(_over(max, [row.get(key) for row in b])) for b in buckets]
    for key in LASTS:
        columns[key] = [short(b[-1].get(key), 7) for b in buckets]
    columns["kept"] = [_share(b, "groups_trained") for b in buckets]
    columns["no_variance"] = [_share(b, "groups_zero_variance") for b in buckets]
    return {"per_point": size, "columns": columns | _rates([b[-1] for b in buckets])}


def _share(rows: Sequence[Row], counted: str) -> float | None:
    """Groups counted under a name, of all groups of the steps that count them."""
    rows = [r for r in rows if short(r.get(counted)) is not None and r.get("groups")]
    return short(sum(r[counted] for r in rows) / sum(r["groups"] for r in rows)) if rows else None


def _rates(ends: Sequence[Row]) -> dict[str, list[float | None]]:
    """Tokens a device-second and idle share between neighbouring points, of each side."""
    out: dict[str, list[float | None]] = {}
    sides = (("generator", "tokens_generated"), ("trainer", "tokens_trained"))
    for side, tokens in sides:
        seconds = [_times(row.get(f"{side}_device_hours"), 3600.0) for row in ends]
        idle = [
            _times(s, row.get(f"{side}_idle_share")) for s, row in zip(seconds, ends, strict=True)
        ]
        made = [row.get(tokens) for row in ends]
        out[f"{side}_speed"] = _slopes(made, seconds)
        out[f"{side}_idle"] = _slopes(idle, seconds)
    return out


def _slopes(y: Sequence[Any], x: Sequence[Any]) -> list[float | None]:
    """Δy / Δx from point to point, from (0, 0) on; None where x does not grow."""
    out: list[float | None] = []
    for (y0, y1), (x0, x1) in zip(
        itertools.pairwise([0.0, *y]), itertools.pairwise([0.0, *x]), strict=True
    ):
        known = None not in (y0, y1, x0, x1)
        out.append(short(max(0.0, y1 - y0) / (x1 - x0)) if known and x1 > x0 else None)
    return out


def ledger(rows: Sequence[Row]) -> dict[str, int]:
    """The token account at the last step; empty before the first."""
    return dict(rows[-1].get("ledger") or {}) if rows else {}


def completions(run: RunRecord, n_runs: int) -> dict[str, Any]:
    """Held-out completions of up to five evaluations, prompt by prompt, long ones cut."""
    steps = {
        row["step"]: rows
        for row in run.curve
        if (rows := _texts(run.path, row["step"], row["attempt"]))
    }
    labels: dict[int, str] = {}  # a short run may offer the same evaluation twice
    for label, share in EVALUATIONS_READ:
        if steps:
            labels.setdefault(list(steps)[round(share * (len(steps) - 1))], label)
    if len(labels) > 1:
        labels[list(steps)[-1]] = "end"
    prompts = _prompts(steps[s] for s in labels)
    budget = TEXT_BUDGET / max(1, n_runs * len(labels))
    prompts = prompts[: max(5, int(budget / TEXT_LEAST))]
    limit = int(min(TEXT_MOST, max(TEXT_LEAST, budget / max(1, len(prompts)))))
    return {
        "prompts": [{"prompt": cut(p, limit), "answer": cut(a, limit)} for p, a in prompts],
        "evaluations": [
            {"step": s, "label": label, "answers": _answers(steps[s], prompts, limit)}
            for s, label in labels.items()
        ],
    }


def _texts(path: Path, step: int, attempt: int) -> list[Row]:
    rows = _rows(path / "completions" / f"step-{step:06d}.jsonl")
    return [row for row in rows if row["attempt"] == attempt]


def _prompts(evaluated: Any) -> list[tuple[str, str]]:
    seen: dict[tuple[str, str], None] = {}
    for rows in evaluated:
        seen |= dict.fromkeys((str(r.get("prompt")), str(r.get("answer"))) for r in rows)
    return list(seen)


def _answers(
    rows: Sequence[Row], prompts: Sequence[tuple[str, str]], limit: int
) -> list[dict[str, Any] | None]:
    by_prompt = {(str(r.get("prompt")), str(r.get("answer"))): r for r in rows}
    out: list[dict[str, Any] | None] = []
    for prompt in prompts:
        row = by_prompt.get(prompt)
        out.append(
            None
            if row is None
            else {
                "text": cut(str(row.get("completion")), limit),
                "outcome": row.get("outcome"),
                "truncated": bool(row.get("truncated")),
                "interrupted": bool(row.get("interrupted")),
                "tokens": row.get("tokens"),
                "pass_rate": row.get("pass_rate"),
            }
        )
    return out


def differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Settings in which any run differs from the first: dotted key and each run's value as text."""
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = [
        {"key": key, "values": [_setting(c.get(key)) if key in c else None for c in configs]}
        for key in keys
    ]
    return [row for row in rows if any(v != row["values"][0] for v in row["values"])]


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def cut(text: str, limit: int) -> str:
    """`text`, its middle left out and counted where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def short(value: Any, digits: int = 5) -> Any:
    """A number to so many significant digits, to keep the page small; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def _numbers(values: Sequence[Any]) -> list[float]:
    return [v for v in values if short(v) is not None]


def _mean(values: Sequence[Any]) -> float | None:
    numbers = _numbers(values)
    return sum(numbers) / len(numbers) if numbers else None


def _over(function: Callable[[list[float]], float], values: Sequence[Any]) -> float | None:
    numbers = _numbers(values)
    return function(numbers) if numbers else None


def _times(value: Any, factor: Any) -> float | None:
    return None if value is None or factor is None else value * factor
