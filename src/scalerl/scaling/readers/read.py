"""Read curves from whatever a trainer left: the kind of file is found by looking at it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.readers.clean import clean
from scalerl.scaling.readers.clock import RESTARTS, Restarts
from scalerl.scaling.readers.columns import Series, find_series
from scalerl.scaling.readers.scales import SCALES, Scale
from scalerl.scaling.readers.stores import is_sqlite, read_store
from scalerl.scaling.readers.table import Table, read_csv, read_json, read_jsonl, read_text
from scalerl.scaling.readers.tensorboard import event_runs, read_events

RUN_LOG = "curve.jsonl"
STORES = ("trackio.db", "mlflow.db")


def read_curves(
    path: str | Path,
    *,
    compute: str | None = None,
    reward: str | None = None,
    run: str | None = None,
    scale: Scale | None = None,
    restarts: Restarts = "refuse",
) -> list[Curve]:
    """Every curve in a run directory, JSONL, JSON, CSV, W&B export, TensorBoard folder or SQLite.

    `compute` and `reward` name columns (a run directory has `device_hours` and `pass_rate`); `run`
    takes one of several runs. `scale` converts pass rates logged in per cent or in -1...1;
    `restarts` says what a falling compute means. Errors: InputError naming file, line or column and
    what to do; nothing is dropped without a note on the curve.
    """
    if scale is not None and scale not in SCALES:
        raise InputError(f"scale {scale!r} is none of {', '.join(SCALES)}")
    if restarts not in RESTARTS:
        raise InputError(f"restarts {restarts!r} is none of {', '.join(RESTARTS)}")
    tables = _tables(Path(path))
    if run is not None:  # a run that is not asked for may lack what this one has
        tables = [t for t in tables if run == t[0] or run.startswith(f"{t[0]}/task ")] or tables
    pairs = [
        (table, series)
        for name, table in tables
        for series in _series(table, name, compute, reward, run)
    ]
    if run is not None:
        names = [s.name for _, s in pairs]
        pairs = [(t, s) for t, s in pairs if s.name == run]
        if not pairs:
            raise InputError(f"{path}: no run {run!r}; runs: {', '.join(dict.fromkeys(names))}")
    return [clean(table, series, scale=scale, restarts=restarts) for table, series in pairs]


def read_curve(
    path: str | Path,
    *,
    compute: str | None = None,
    reward: str | None = None,
    run: str | None = None,
    scale: Scale | None = None,
    restarts: Restarts = "refuse",
) -> Curve:
    """The one curve at a path; of a run directory with tasks, the overall one.

    Errors: InputError as for `read_curves`, and listing the runs where there are several.
    """
    found = read_curves(
        path, compute=compute, reward=reward, run=run, scale=scale, restarts=restarts
    )
    overall = [c for c in found if "/task " not in c.name]
    if len(found) > 1 and len(overall) == 1:
        return overall[0]
    if len(found) > 1:
        raise InputError(
            f"{path}: holds {len(found)} runs; choose one with --run: "
            + ", ".join(repr(c.name) for c in found)
        )
    return found[0]


def _tables(path: Path) -> list[tuple[str, Table]]:
    """(run name, table) of everything at a path."""
    if not path.exists():
        raise InputError(f"{path}: no such file or directory")
    if path.is_dir():
        return _directory(path)
    if not path.is_file():  # a pipe, which can be read but once and has no name to go by
        text = read_text(path)
        read = read_json if text.lstrip()[:1] in ("{", "[") else read_csv
        return [("piped", read(path, text))]
    if is_sqlite(path):
        return read_store(path)
    suffix = path.suffix.lower()
    if "tfevents" in path.name:
        return [(path.parent.name or path.stem, read_events([path]))]
    if suffix in (".jsonl", ".ndjson"):
        name = path.resolve().parent.name if path.name == RUN_LOG else path.stem
        return [(name, read_jsonl(path))]
    if suffix == ".json":
        return [(path.stem, read_json(path))]
    return [(path.stem, read_csv(path))]


def _directory(path: Path) -> list[tuple[str, Table]]:
    if (path / RUN_LOG).is_file():
        return [(path.resolve().name, read_jsonl(path / RUN_LOG))]
    events = event_runs(path)
    if events:
        return [(name, read_events(files)) for name, files in events]
    stores = [f for f in sorted(path.iterdir()) if f.is_file() and is_sqlite(f)]
    if stores:
        return [pair for store in stores for pair in read_store(store)]
    files = [f for f in sorted(path.iterdir()) if f.suffix.lower() in (".csv", ".jsonl", ".json")]
    hint = f"; give one of its files: {', '.join(f.name for f in files[:8])}" if files else ""
    raise InputError(
        f"{path}: not a run directory (no {RUN_LOG}), no TensorBoard files, no SQLite store{hint}"
    )


def _series(
    table: Table, name: str, compute: str | None, reward: str | None, run: str | None
) -> list[Series]:
    """The series of a table; one more for each task where a `task` column splits it."""
    found = find_series(table, name, compute, reward, run)
    cells: Sequence[object] = table.columns.get("task", ())
    tasks = list(dict.fromkeys(t for t in cells if t is not None))
    if not tasks:
        return found
    out: list[Series] = []
    for series in found:
        rows = range(len(table.lines)) if series.rows is None else series.rows
        for task in (None, *tasks):
            own = tuple(i for i in rows if cells[i] == task)
            if own:
                label = series.name if task is None else f"{series.name}/task {task}"
                out.append(replace(series, name=label, rows=own))
    return out
