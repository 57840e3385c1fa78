"""Trainer and generators killed in turn at thirty random moments: while steps are taken, while a
checkpoint is written, while processes start. Nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "random_kills.py"


@pytest.mark.slow
def test_thirty_kills_at_any_moment_lose_nothing(tmp_path: Path) -> None:
    """F02. On a machine too busy for thirty in two minutes, as many as there was time for."""
    figures = tmp_path / "figures.json"
    words = ("--kills", "30", "--minutes", "2", "--seed", "7", "--write", str(figures))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        capture_output=True,
        text=True,
        timeout=1200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(figures.read_text())
    assert min(seen["kills"]["trainer"], seen["kills"]["generator"]) >= 1
    assert seen["exit_code_after_sigterm"] == 143
    assert seen["steps_in_order"]
    assert seen["curve_in_order"]
    assert seen["groups_trained_twice"] == 0
    assert not seen["groups_missing_beyond_the_newest"]
    assert seen["epochs_that_are_permutations"] == seen["epochs_whole"]
    assert seen["epochs_whole"] >= seen["steps"] // 40  # thirty steps are one
    assert seen["staleness_max"] <= 4
    assert seen["steps_with_open_ledger"] == 0
    assert seen["shared_memory_left"] == 0
