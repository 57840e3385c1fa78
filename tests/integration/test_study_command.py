"""`scalerl study` end to end with real runs: 2 variants × 2 seeds, killed halfway."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_runs import SETTINGS

STUDY = """
seeds = [0, 1]
jobs = 2
[budget]
steps = 10
[evaluation]
points = 10
completions = 2
[variants.dapo]
loss.type = "dapo"
[base.settings]
model.path = "{start}"
"""


@pytest.fixture
def file(tmp_path: Path, start: Path) -> Path:
    """A study of the small runs; the study sets their length and evaluations."""
    before, _, after = SETTINGS.partition("[evaluation]")
    kept = before + "[checkpoint]" + after.partition("[checkpoint]")[2]
    lines = [line for line in kept.splitlines() if not line.startswith("steps")]
    nested = [f"[base.settings.{line[1:]}" if line.startswith("[") else line for line in lines]
    path = tmp_path / "small.toml"
    path.write_text(STUDY.format(start=start) + "\n".join(nested) + "\n")
    return path


def command(file: Path, *words: str) -> list[str]:
    folder = str(file.parent / "s")
    return [sys.executable, "-m", "scalerl", "study", str(file), "--dir", folder, *words]


def study(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(file, *words), capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def table(file: Path) -> dict[str, tuple[str, int, int]]:
    """Folder → (state, steps done, attempts)."""
    db = sqlite3.connect(file.parent / "s" / "study.sqlite")
    found = db.execute("SELECT folder, state, steps_done, attempts FROM runs").fetchall()
    db.close()
    return {folder: tuple(rest) for folder, *rest in found}  # type: ignore[misc]


@pytest.mark.slow
def test_a_study_killed_halfway_finishes_without_repeating_a_run(file):
    first = subprocess.Popen(command(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        time.sleep(0.1)
        log = file.parent / "s/dapo/seed-0/steps.jsonl"
        if first.poll() is not None or (log.exists() and log.stat().st_size):
            break
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.wait()
    done_before = {n for n, (state, _, _) in table(file).items() if state == "done"}

    ended = study(file, "--json")
    assert ended.returncode == 0, ended.stderr
    found = table(file)
    assert list(found) == ["scalerl/seed-0", "scalerl/seed-1", "dapo/seed-0", "dapo/seed-1"]
    assert {state for state, _, _ in found.values()} == {"done"}
    assert {steps for _, steps, _ in found.values()} == {10}
    assert done_before
    assert all(found[name][2] == 1 for name in done_before)
    assert any(attempts > 1 for _, _, attempts in found.values())
    result = json.loads(ended.stdout)
    assert [v["name"] for v in result["variants"]] == ["scalerl", "dapo"]
    assert [v["runs"] for v in result["variants"]] == [2, 2]
    assert result["unit"] == "flops"
    assert (file.parent / "s/report.html").stat().st_size < 5_000_000

    curve = [
        json.loads(line)
        for line in (file.parent / "s/dapo/seed-1/curve.jsonl").read_text().splitlines()
    ]
    assert {row["step"] for row in curve} == set(range(11))
    again = study(file)
    assert again.returncode == 0
    assert "started" not in again.stdout
    assert {a for _, _, a in table(file).values()} == {a for _, _, a in found.values()}


def test_bad_studies_are_bad_input(file, tmp_path):
    file.write_text(file.read_text() + "[variants.same]\nregime.k = 2\n")
    ended = study(file, "--dry-run")
    assert ended.returncode == 2
    assert "variants.same: it is equal to the base" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "s").exists()


def test_a_dry_run_starts_nothing(file, tmp_path):
    ended = study(file, "--dry-run")
    assert ended.returncode == 0
    assert "4 runs, 720 completions" in ended.stdout
    assert not (tmp_path / "s").exists()
