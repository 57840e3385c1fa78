"""Where a study stands: study.sqlite in its folder, three plain tables that anyone may read.

    runs       one row a run: folder, state, steps done and wanted, seconds, attempts, reason
    decisions  one row a variant and round: probability of the best ceiling, and whether it goes on
    facts      key and value: what the study is, its stage, who is at work on it

States of a run: waiting → running → done, or failed (with its reason), or stopped (by the race).
A run found running when nobody is at work was interrupted, and is resumed.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scalerl.errors import InputError

FILE = "study.sqlite"
State = Literal["waiting", "running", "done", "failed", "stopped"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    variant TEXT NOT NULL, seed INTEGER NOT NULL, folder TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting', reason TEXT NOT NULL DEFAULT '',
    steps_wanted INTEGER NOT NULL, steps_done INTEGER NOT NULL DEFAULT 0,
    completions_a_step INTEGER NOT NULL, tokens_generated INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0, pid INTEGER,
    PRIMARY KEY (variant, seed));
CREATE TABLE IF NOT EXISTS decisions (
    round INTEGER NOT NULL, variant TEXT NOT NULL, p_best REAL, goes_on INTEGER NOT NULL,
    PRIMARY KEY (round, variant));
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run of a study, as the table has it."""

    variant: str
    seed: int
    folder: str
    """Relative to the study's folder."""
    state: State
    reason: str
    steps_wanted: int
    steps_done: int
    completions_a_step: int
    tokens_generated: int
    attempts: int
    seconds: float
    """Wall-clock time of all attempts together."""
    pid: int | None

    @property
    def name(self) -> str:
        return self.folder

    @property
    def left(self) -> int:
        """Completions still to sample."""
        over = self.state in ("done", "failed", "stopped")
        return 0 if over else (self.steps_wanted - self.steps_done) * self.completions_a_step


class StudyState:
    """The tables of one study; every change is committed at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(folder / FILE, timeout=30, isolation_level=None)
            self._db.executescript(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{folder / FILE}: cannot be written: {error}") from None

    def close(self) -> None:
        self._db.close()

    def add(self, variant: str, seed: int, *, steps: int, completions_a_step: int) -> None:
        """A run that is not there yet starts waiting; one that is there stays as it is."""
        self._db.execute(
            "INSERT OR IGNORE INTO runs (variant, seed, folder, steps_wanted, completions_a_step)"
            " VALUES (?, ?, ?, ?, ?)",
            (variant, seed, f"{variant}/seed-{seed}", steps, completions_a_step),
        )

    def want(self, variant: str, steps: int) -> None:
        """Runs of a variant are to reach so many steps; a finished one that has fewer waits again.

        A run that ended early, for want of prompts or tokens, has a reason and stays done.
        """
        self._db.execute(
            "UPDATE runs SET steps_wanted = ? WHERE variant = ? AND steps_wanted < ?",
            (steps, variant, steps),
        )
        self._db.execute(
            "UPDATE runs SET state = 'waiting' WHERE variant = ? AND steps_done < steps_wanted"
            " AND ((state = 'done' AND reason = '') OR state = 'stopped')",
            (variant,),
        )

    def update(self, variant: str, seed: int, **values: Any) -> None:
        columns = ", ".join(f"{column} = ?" for column in values)
        self._db.execute(
            f"UPDATE runs SET {columns} WHERE variant = ? AND seed = ?",
            (*values.values(), variant, seed),
        )

    def runs(self) -> list[RunRow]:
        """Every run, in the order in which they were added."""
        names = list(RunRow.__dataclass_fields__)
        rows = self._db.execute(f"SELECT {', '.join(names)} FROM runs ORDER BY rowid").fetchall()
        return [RunRow(**dict(zip(names, row, strict=True))) for row in rows]

    def decide(self, number: int, verdicts: dict[str, tuple[float | None, bool]]) -> None:
        """What a round of the race decided: variant → (P(best ceiling), goes on). Kept for good."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for variant, (p_best, goes_on) in verdicts.items():
                self._db.execute(
                    "INSERT OR IGNORE INTO decisions VALUES (?, ?, ?, ?)",
                    (number, variant, p_best, int(goes_on)),
                )
                if not goes_on:
                    self._db.execute(
                        "UPDATE runs SET state = 'stopped', reason = ? WHERE variant = ?"
                        " AND state != 'failed'",
                        (f"race, round {number}: P(best ceiling) = {p_best:.3f}", variant),
                    )

    def decisions(self) -> list[tuple[int, str, float | None, bool]]:
        rows = self._db.execute(
            "SELECT round, variant, p_best, goes_on FROM decisions ORDER BY round, rowid"
        )
        return [(number, name, p, bool(on)) for number, name, p, on in rows.fetchall()]

    def fact(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def note(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, json.dumps(value)))


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Only one runner works on a study at a time; the lock goes with its process.

    Raises:
        InputError: another one is at work.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: another `scalerl study` is at work on it; --status shows how far it is"
            ) from None
        yield
    finally:
        os.close(descriptor)
