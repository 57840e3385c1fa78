"""How far runs and studies are, read from the ends of logs and from the table of runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from scalerl.experiments.study_state import RunRow
from scalerl.pipeline.records import Row


def progress(folder: Path) -> tuple[int, int]:
    """Step and tokens generated of the newest line of a run's step log; a torn line is passed over.

    Reads the end of the file only: the runner asks often."""
    row = newest_row(folder / "steps.jsonl")
    return (row["step"], row["tokens_generated"]) if row else (0, 0)


def newest_row(file: Path) -> Row | None:
    try:
        with file.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 262_144))
            lines = log.read().splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            return json.loads(line)
        except json.JSONDecodeError:  # being written, or torn by a kill
            continue
    return None


def ends(folder: Path) -> list[float]:
    """First and last held-out pass rate of a run."""
    file = folder / "curve.jsonl"
    last = newest_row(file)
    if last is None:
        return []
    with file.open("rb") as log:
        first = json.loads(log.readline())
    return [first["pass_rate"], last["pass_rate"]]


def last_words(log: Path) -> str:
    """The message a command ended with: its `scalerl: …` lines, else the last line."""
    lines = log.read_text("utf-8", "replace").strip().splitlines() if log.is_file() else []
    said = [i for i, line in enumerate(lines) if line.startswith("scalerl: ")]
    if said and said[-1] >= len(lines) - 12:
        return " ".join(line.strip() for line in lines[said[-1] :]).removeprefix("scalerl: ")
    return lines[-1].strip() if lines else "it said nothing"


def time_left(rows: list[RunRow], jobs: int) -> float | None:
    """Seconds to the end, from what a completion has cost so far; None before anything is known."""
    done = sum(r.steps_done * r.completions_a_step for r in rows)
    seconds = sum(r.seconds for r in rows)
    left = [r.left for r in rows if r.left > 0]
    if not done or not left:
        return None
    each = seconds / done
    return each * max(sum(left) / min(jobs, len(left)), max(left))


def overview(rows: list[RunRow], jobs: int) -> str:
    """One line on the whole study."""
    wanted = sum(r.steps_wanted * r.completions_a_step for r in rows)
    left = sum(r.left for r in rows)
    counts = {s: sum(r.state == s for r in rows) for s in ("done", "running", "waiting", "failed")}
    counts["stopped"] = sum(r.state == "stopped" for r in rows)
    words = ", ".join(f"{n} {s}" for s, n in counts.items() if n)
    seconds = time_left(rows, jobs)
    tail = f", about {words_of_time(seconds)} left" if seconds else ""
    return f"{1 - left / max(1, wanted):4.0%} of {len(rows)} runs: {words}{tail}"


def words_of_time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
