"""What a red alarm does to a run: back to before the decline, or to its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from training_runs import Crash, Settings, Watch, digest, raw_rows, rows

from scalerl.errors import RunError
from scalerl.pipeline.alarms import Alarm
from scalerl.pipeline.rollouts import Stopped
from scalerl.pipeline.session import run_new, run_on
from scalerl.train import checkpoint


class Planted:
    """A judge who finds steps `at` red, each the first time that any judge sees it."""

    def __init__(self, at: list[int], since: int) -> None:
        self.at = at
        self.since = since

    def on_step(self, row: dict[str, Any]) -> list[Alarm]:
        if row["step"] not in self.at:
            return []
        self.at.remove(row["step"])
        return [
            Alarm(
                kind="entropy",
                level="red",
                step=row["step"],
                since_step=self.since,
                message="it dissolves",
            )
        ]

    def on_evaluation(self, row: dict[str, Any]) -> list[Alarm]:
        return []


def judged(*at: int, since: int = 7) -> Any:
    """Makes the judge of every stretch; what one has found is found."""
    judge = Planted(list(at), since)
    return lambda: judge


def checkpoints(run: Path) -> list[int]:
    return sorted(checkpoint.step_of(p) for p in (run / "checkpoints").iterdir())


ROLLBACK = ("--monitor.on_alarm", "rollback")
ALL_KEPT = ("--checkpoint.keep_every", "5")


def test_a_rollback_goes_on_from_before_the_decline_and_pays_for_it(
    tmp_path: Path, settings: Settings
) -> None:
    run, watch = tmp_path / "run", Watch()
    config = settings(*ROLLBACK, *ALL_KEPT)
    assert run_new(config, run, watch, starts=tmp_path, make_judge=judged(13)) == "done"
    assert any("rolling back to step 5, to before the decline" in w for w in watch.warnings)
    every = raw_rows(run)
    assert [(r["attempt"], r["step"]) for r in every] == [
        *((0, step) for step in range(1, 14)),
        *((1, step) for step in range(6, 21)),
    ]
    assert [r["step"] for r in rows(run, "steps")] == list(range(1, 21))
    left, again = every[12], every[13]
    assert again["tokens_generated"] > left["tokens_generated"]
    assert again["tokens_trained"] > left["tokens_trained"]
    assert again["flops"] > left["flops"]
    assert again["ledger"]["discarded"] > left["ledger"]["discarded"]
    fresh = {g for r in every[13:] for g in r["groups_taken"]}
    pending = {g for g in fresh if g <= max(g for r in every[:13] for g in r["groups_taken"])}
    assert len(pending) < len(fresh) / 2  # of the checkpoint; all others have new numbers
    (alarm,) = raw_rows(run, "alarms")
    assert (alarm["step"], alarm["action"]) == (13, "rollback")


def test_a_rolled_back_run_that_is_killed_and_resumed_is_the_same_bit_for_bit(
    tmp_path: Path, settings: Settings
) -> None:
    """No checkpoint of the abandoned stretch is left to resume from, and none is kept instead of a
    new one; what the stretch cost is not forgotten, and its samples are not drawn again."""
    config = settings(*ROLLBACK)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_new(config, straight, Watch(), starts=tmp_path, make_judge=judged(18))
    deaths = iter([None, lambda: (_ for _ in ()).throw(Crash())])

    class Killed(Watch):
        """Dies when step 7 comes for the second time."""

        def on_step(self, row: dict[str, Any]) -> None:
            if row["step"] == 7 and (death := next(deaths)):
                death()

    with pytest.raises(Crash):
        run_new(config, broken, Killed(), starts=tmp_path, make_judge=judged(18))
    assert checkpoints(broken) == [5]
    run_on(broken, Watch(), starts=tmp_path, config=config)
    assert digest(straight, 20) == digest(broken, 20)
    for log in ("steps", "curve"):
        assert rows(straight, log) == rows(broken, log)
    assert {r["attempt"] for r in raw_rows(broken)} == {0, 1, 2}
    assert set(checkpoints(straight)) >= {15, 20}


def test_without_a_checkpoint_before_the_decline_the_run_begins_again(
    tmp_path: Path, settings: Settings
) -> None:
    run, watch = tmp_path / "run", Watch()
    config = settings(*ROLLBACK, "--steps", "8")
    run_new(config, run, watch, starts=tmp_path, make_judge=judged(6, since=2))
    assert any("rolling back to step 0" in w for w in watch.warnings)
    done = [(r["attempt"], r["step"]) for r in raw_rows(run)]
    assert done == [*((0, s) for s in range(1, 7)), *((1, s) for s in range(1, 9))]
    assert [r["step"] for r in rows(run, "curve")] == [0, 5, 8]
    assert 5 in checkpoints(run)


def test_a_run_that_is_alarmed_again_and_again_ends(tmp_path: Path, settings: Settings) -> None:
    config = settings(*ROLLBACK, "--monitor.rollbacks", "1")
    with pytest.raises(RunError, match=r"still alarmed after 1 rollbacks \(monitor.rollbacks\)"):
        run_new(config, tmp_path / "run", Watch(), starts=tmp_path, make_judge=judged(8, 9))
    assert [r["step"] for r in raw_rows(tmp_path / "run")] == [*range(1, 9), *range(6, 10)]
    none = settings(*ROLLBACK, "--monitor.rollbacks", "0", "--steps", "9")
    with pytest.raises(RunError, match="still alarmed after 0 rollbacks"):
        run_new(none, tmp_path / "none", Watch(), starts=tmp_path, make_judge=judged(8, since=2))
    assert checkpoints(tmp_path / "none") == [5]


@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_a_signal_comes_before_an_alarm(tmp_path: Path, settings: Settings, action: str) -> None:
    """A cluster's SIGTERM in the step that is alarming: the checkpoint is made, the run ends."""
    run = tmp_path / "run"
    watch = Watch(8, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped):
        run_new(
            settings("--monitor.on_alarm", action),
            run,
            watch,
            starts=tmp_path,
            make_judge=judged(8),
        )
    assert checkpoints(run) == [5, 8]
    (alarm,) = raw_rows(run, "alarms")
    assert alarm["action"] == "warn"


def test_stop_ends_the_run_and_leaves_its_checkpoint(tmp_path: Path, settings: Settings) -> None:
    config = settings("--monitor.on_alarm", "stop")
    with pytest.raises(RunError, match=r"it dissolves \(monitor.on_alarm = 'stop'\)"):
        run_new(config, tmp_path / "run", Watch(), starts=tmp_path, make_judge=judged(8))
    assert [r["step"] for r in raw_rows(tmp_path / "run")] == list(range(1, 9))
    assert checkpoints(tmp_path / "run") == [5]
    (alarm,) = raw_rows(tmp_path / "run", "alarms")
    assert alarm["action"] == "stop"
