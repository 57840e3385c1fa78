"""An asynchronous run killed at random moments, each process in turn, and resumed.

Two kills with known ends here, thirty at any moment in test_random_kills.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from training_runs import Settings, Watch, killed, raw_rows, rows

from scalerl.pipeline.session import run_on

WORDS = (
    *("--execution.mode", "async", "--regime.k", "3"),
    *("--steps", "48", "--checkpoint.every", "4", "--checkpoint.keep_every", "0"),
)


class Murderer(Watch):
    """Kills a generator after each of some steps."""

    def __init__(self, steps: set[int], rng: random.Random) -> None:
        super().__init__()
        self.steps = steps
        self.rng = rng
        self.killed = 0

    def on_step(self, row: dict[str, Any]) -> None:
        if row["step"] in self.steps and (children := multiprocessing.active_children()):
            pid = self.rng.choice(children).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            self.killed += 1


@pytest.mark.slow
def test_killed_at_random_moments_every_prompt_of_every_epoch_is_trained_once(
    tmp_path: Path, settings: Settings, start: Path
) -> None:
    """F02. 24 prompts, 3 a step: six epochs, through the death of trainer, generators and both."""
    rng = random.Random(5)
    run = tmp_path / "run"
    step = rng.randrange(5, 23)
    ended = killed(run, start, "new", step, "trainer", *WORDS)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert raw_rows(run)[-1]["step"] == step
    murderer = Murderer({rng.randrange(26, 44)}, rng)
    assert run_on(run, murderer, starts=tmp_path, config=settings(*WORDS)) == "done"
    assert murderer.killed == 1

    done = rows(run, "steps")
    assert [row["step"] for row in done] == list(range(1, 49))
    taken = {
        group: prompt
        for row in done
        for group, prompt in zip(row["groups_taken"], row["prompts_taken"], strict=True)
    }
    assert sorted(g for row in done for g in row["groups_taken"]) == list(range(144))
    for epoch in range(6):
        assert len({taken[g] for g in range(24 * epoch, 24 * epoch + 24)}) == 24
    assert all(row["staleness_max"] <= 3 for row in done if "staleness_max" in row)
    for row in done:
        ledger = row["ledger"]
        assert ledger["generated"] == sum(v for k, v in ledger.items() if k != "generated")
    curve = [row["step"] for row in rows(run, "curve")]
    assert curve == [*range(0, 48, 5), 48]
    compute = [row["tokens_generated"] for row in rows(run, "curve")]
    assert compute == sorted(compute)
    assert {row["attempt"] for row in raw_rows(run)} == {0, 1}
