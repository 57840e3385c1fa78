"""Local SQLite stores of trackers: trackio and MLflow, read only, through the standard library."""

import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from scalerl.errors import InputError
from scalerl.scaling.readers.table import Table, columns_of, parse_json

MAGIC = b"SQLite format 3\x00"
MLFLOW_INFINITY = 1.79e308


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as every SQLite database does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_store(path: Path) -> list[tuple[str, Table]]:
    """(run name, table) of each run in a trackio or MLflow database; the file is not written to.

    Errors: InputError when the database is neither, is damaged, or has no metrics.
    """
    uri = f"{path.resolve().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as db:
            tables = {
                name: _columns(db, name)
                for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if {"key", "value", "run_uuid", "step"} <= tables.get("metrics", set()):
                found = _mlflow(db, path, "name" in tables.get("runs", set()))
            elif {"run_name", "step", "metrics"} <= tables.get("metrics", set()):
                found = _trackio(db, path)
            else:
                raise InputError(
                    f"{path}: neither a trackio nor an MLflow database; tables: "
                    + (", ".join(sorted(tables)) or "none")
                )
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path}: cannot be read as SQLite: {error}") from error
    if not found:
        raise InputError(f"{path}: the database has no metrics")
    return found


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in db.execute(f'PRAGMA table_info("{table}")')}


def _mlflow(db: sqlite3.Connection, path: Path, named: bool) -> list[tuple[str, Table]]:
    """MLflow keeps one row a metric value; NaN is a flag beside it, infinity the largest double."""
    names: dict[str, str] = {}
    if named:
        for run, name in db.execute(
            "SELECT run_uuid, name FROM runs WHERE lifecycle_stage != 'deleted'"
        ):
            names[run] = name or run
    rows = db.execute(
        "SELECT run_uuid, key, value, step, is_nan FROM metrics ORDER BY step, timestamp"
    )
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for run, key, value, step, is_nan in rows:
        if named and run not in names:
            continue
        record = runs.setdefault(run, {}).setdefault(int(step), {"step": float(step)})
        record[key] = (
            float("nan") if is_nan else value if abs(value) < MLFLOW_INFINITY else math.inf
        )
    return _as_tables(
        path, {_label(names, run): list(steps.values()) for run, steps in runs.items()}
    )


def _label(names: dict[str, str], run: str) -> str:
    """A run's name; with its id where another run has the same name."""
    name = names.get(run, run)
    return f"{name} ({run[:8]})" if list(names.values()).count(name) > 1 else name


def _trackio(db: sqlite3.Connection, path: Path) -> list[tuple[str, Table]]:
    """trackio keeps one row a log call, its metrics as a JSON object.

    Rows stay in the order in which they were logged: a run that begins its steps again shows it.
    """
    runs: dict[str, list[dict[str, Any]]] = {}
    project = "project_name" if "project_name" in _columns(db, "metrics") else "''"
    rows = db.execute(
        f"SELECT id, {project}, run_name, step, metrics FROM metrics ORDER BY run_name, id"
    ).fetchall()
    several = len({row[1] for row in rows}) > 1
    for number, group, run_name, step, text in rows:
        run = f"{group}/{run_name}" if several else run_name
        try:
            metrics: Any = parse_json(text, f"{path}: metrics of row {number}")
        except (json.JSONDecodeError, TypeError) as error:
            raise InputError(f"{path}: metrics of row {number} are not JSON") from error
        if isinstance(metrics, dict):
            runs.setdefault(str(run), []).append({"step": step, **metrics})
    return _as_tables(path, runs)


def _as_tables(path: Path, runs: dict[str, list[dict[str, Any]]]) -> list[tuple[str, Table]]:
    return [
        (
            name,
            Table(
                source=f"{path}, run {name!r}",
                columns=columns_of(records),
                lines=[int(r["step"]) if r["step"] is not None else -1 for r in records],
                row_word="step",
            ),
        )
        for name, records in runs.items()
    ]
