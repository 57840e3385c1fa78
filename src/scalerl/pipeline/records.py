"""A run's folder: settings, append-only logs, sampled text.

config.toml     the resolved settings, re-runnable
curve.jsonl     one line an evaluation           ┐ keyed by (attempt, step): lines of an attempt
steps.jsonl     one line an optimiser step       ┘ that was resumed from an earlier step are
completions/    held-out completions to read       superseded, never rewritten
checkpoints/
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalerl.config import Config, dump_toml
from scalerl.errors import InputError, RunError

Row = dict[str, Any]


class RunDirectory:
    """Where one run writes. Every line is written whole by one system call."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.path = path
        self.attempt = attempt
        self.from_step: int | None = None
        """Where this attempt went on: later rows of earlier attempts are superseded."""

    @classmethod
    def create(cls, path: Path, config: Config) -> RunDirectory:
        """A folder for a new run.

        Raises:
            InputError: the folder already holds a run, or cannot be made.
        """
        if any((path / name).exists() for name in ("config.toml", "curve.jsonl", "steps.jsonl")):
            raise InputError(
                f"{path} already holds a run: give --resume to go on with it, or another --run-dir"
            )
        try:
            (path / "completions").mkdir(parents=True, exist_ok=True)
            (path / "checkpoints").mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error}") from error
        directory = cls(path, attempt=0)
        directory.write_config(config)
        return directory

    @classmethod
    def reopen(cls, path: Path) -> RunDirectory:
        """The folder of a run that is to go on: the next attempt.

        Raises:
            InputError: there is no run in it.
        """
        if not (path / "config.toml").is_file():
            raise InputError(f"{path}: no run to resume (no config.toml); leave out --resume")
        rows = [*read_rows(path / "steps.jsonl"), *read_rows(path / "curve.jsonl")]
        return cls(path, attempt=1 + max((row["attempt"] for row in rows), default=-1))

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def withdraw(self) -> None:
        """Undo `create` for a run that could not begin, so that the name can be used again."""
        (self.path / "config.toml").unlink(missing_ok=True)
        for folder in (self.path / "completions", self.path / "checkpoints", self.path):
            with suppress(OSError):  # it holds something: not ours to remove
                folder.rmdir()

    def write_config(self, config: Config) -> None:
        """config.toml in one move: a resume reads all of it or what was there before.

        Raises:
            RunError: it could not be written; what was there is untouched.
        """
        aside = self.path / ".config.toml.partial"
        try:
            aside.write_text(dump_toml(config), "utf-8")
            with aside.open("rb") as handle:
                os.fsync(handle.fileno())
            aside.replace(self.path / "config.toml")
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise RunError(f"{self.path / 'config.toml'}: cannot be written: {error}") from error

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """One line to `name`.jsonl, with the attempt in front; one that went on says where."""
        resumed = {} if self.from_step is None else {"from_step": self.from_step}
        self._append(self.path / f"{name}.jsonl", {"attempt": self.attempt, **resumed, **row})

    def append_completion(self, step: int, row: Mapping[str, Any]) -> None:
        """One held-out completion as text, to completions/step-NNNNNN.jsonl."""
        name = f"step-{step:06d}.jsonl"
        self._append(self.path / "completions" / name, {"attempt": self.attempt, **row})

    def _append(self, file: Path, row: Mapping[str, Any]) -> None:
        line = json.dumps(_finite(row), ensure_ascii=False, allow_nan=False) + "\n"
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                data = (_missing_newline(descriptor) + line).encode()
                if os.write(descriptor, data) != len(data):
                    raise OSError("the line was cut short; is the disk full?")
            finally:
                os.close(descriptor)
        except OSError as error:
            free = shutil.disk_usage(file.parent).free if file.parent.is_dir() else 0
            raise RunError(f"{file}: cannot be written: {error} ({free:,} bytes free)") from error


def read_rows(file: Path) -> list[Row]:
    """All whole lines of a log, in file order; a torn last line is left out.

    Raises:
        InputError: another line is not JSON.
    """
    if not file.is_file():
        return []
    rows: list[Row] = []
    lines = file.read_text("utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number >= len(lines) - 1 or _superseded_tear(lines, number):
                continue
            raise InputError(f"{file}:{number}: not JSON ({error.msg}); remove the line") from None
    return rows


def current_rows(file: Path) -> list[Row]:
    """Each step once: rows of an attempt from which a later one went back are left out, and rows
    of single tasks."""
    kept: list[Row] = []
    overall = [row for row in read_rows(file) if "task" not in row]
    for rows in _by_attempt(overall):
        first = min(row["step"] for row in rows)
        last = min(row.get("from_step", first) for row in rows)
        kept = [row for row in kept if row["step"] <= last and row["step"] < first] + rows
    return kept


def _by_attempt(rows: list[Row]) -> Iterator[list[Row]]:
    for attempt in sorted({row["attempt"] for row in rows}):
        yield [row for row in rows if row["attempt"] == attempt]


def _superseded_tear(lines: list[str], number: int) -> bool:
    """A line torn by a kill, after which a later attempt went on writing (or was torn, too)."""
    before, after = _attempt_of(reversed(lines[: number - 1])), _attempt_of(lines[number:])
    return after is None or after > (-1 if before is None else before)


def _attempt_of(lines: Iterable[str]) -> int | None:
    """The attempt of the first line that is whole."""
    for line in lines:
        try:
            return json.loads(line)["attempt"]
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return None


def _missing_newline(descriptor: int) -> str:
    """A newline if the file's last line was torn by a kill."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        return "\n"
    return ""


def _finite(value: Any) -> Any:
    """JSON has no NaN: what is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
