"""Faults put into real runs one by one; docs/faults.md says what must happen."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import Settings, Watch, command, digest, killed, raw_rows, rows

from scalerl.errors import RunError
from scalerl.pipeline import run as run_module
from scalerl.pipeline.rollouts import Stopped
from scalerl.pipeline.session import run_new, run_on
from scalerl.train import checkpoint

ASYNC = ("--execution.mode", "async")


def kill_generators() -> None:
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)


def raising(number: int, times: int = 1) -> Callable[[], None]:
    def act() -> None:
        for _ in range(times):
            os.kill(os.getpid(), number)

    return act


def assert_whole(run: Path, steps: int) -> list[dict[str, Any]]:
    """Each step once, each group once, the ledger closed, nobody left."""
    done = rows(run, "steps")
    assert [row["step"] for row in done] == list(range(1, steps + 1))
    groups = [g for row in done for g in row["groups_taken"]]
    assert len(groups) == len(set(groups))
    for row in done:
        ledger = row["ledger"]
        assert ledger["generated"] == sum(v for k, v in ledger.items() if k != "generated")
    assert not multiprocessing.active_children()
    return done


def test_a_killed_generator_is_restarted_and_the_run_ends_whole(
    tmp_path: Path, settings: Settings
) -> None:
    watch = Watch(6, kill_generators)
    config = settings(*ASYNC, "--regime.k", "4")
    assert run_new(config, tmp_path / "run", watch, starts=tmp_path) == "done"
    done = assert_whole(tmp_path / "run", 20)
    assert sorted(g for row in done for g in row["groups_taken"]) == list(range(60))
    assert done[-1]["restarts"] == 1
    assert "was killed by SIGKILL; restarted (1 of 3)" in watch.warnings[0]
    assert [row["step"] for row in rows(tmp_path / "run", "curve")] == [0, 5, 10, 15, 20]


def test_with_no_restart_left_the_run_ends_within_ten_seconds_and_says_why(
    tmp_path: Path, settings: Settings
) -> None:
    died: list[float] = []

    def kill() -> None:
        died.append(time.monotonic())
        kill_generators()

    config = settings(*ASYNC, "--execution.restarts", "0")
    with pytest.raises(RunError, match=r"generator 0 \(pid \d+\) was killed by SIGKILL"):
        run_new(config, tmp_path / "run", Watch(6, kill), starts=tmp_path)
    assert time.monotonic() - died[0] < 10
    assert_whole(tmp_path / "run", len(raw_rows(tmp_path / "run")))
    run_on(tmp_path / "run", Watch(), starts=tmp_path, config=settings())
    assert_whole(tmp_path / "run", 20)


def test_a_generator_that_hangs_is_killed_and_restarted(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang() -> None:
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGSTOP)

    watch = Watch(6, hang)
    config = settings(*ASYNC, "--execution.stall_s", "3")
    assert run_new(config, tmp_path / "run", watch, starts=tmp_path) == "done"
    assert_whole(tmp_path / "run", 20)
    assert any("s (execution.stall_s)" in w or "without progress" in w for w in watch.warnings)


def test_sigterm_makes_a_checkpoint_and_the_run_goes_on_from_it(
    tmp_path: Path, settings: Settings
) -> None:
    """Interleaved, so that the whole can be compared with a run that nobody stopped."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_new(settings(), straight, Watch(), starts=tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match="stopped by SIGTERM") as stopped:
        run_new(settings(), broken, Watch(7, raising(signal.SIGTERM)), starts=tmp_path)
    assert stopped.value.number == signal.SIGTERM  # exit 143
    assert signal.getsignal(signal.SIGTERM) == before
    found = checkpoint.latest(broken / "checkpoints", lambda text: None)
    assert found is not None
    assert checkpoint.step_of(found) == 7
    run_on(broken, Watch(), starts=tmp_path, config=settings())
    assert digest(straight, 20) == digest(broken, 20)
    assert rows(straight, "steps") == rows(broken, "steps")
    assert rows(straight, "curve") == rows(broken, "curve")


def test_a_second_ctrl_c_ends_at_once_without_a_checkpoint(
    tmp_path: Path, settings: Settings
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_new(
            settings(*ASYNC), tmp_path / "run", Watch(7, raising(signal.SIGINT, 2)), starts=tmp_path
        )
    assert not multiprocessing.active_children()
    assert {p.name for p in (tmp_path / "run/checkpoints").iterdir()} == {"step-000005"}


def test_a_checkpoint_that_takes_longer_than_the_grace_is_given_up(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoint.save

    def slow(root: Path, step: int, write: Callable[[Path], None]) -> Path:
        def slowly(folder: Path) -> None:
            write(folder)
            if step == 7:
                time.sleep(30)

        return real(root, step, slowly)

    monkeypatch.setattr(checkpoint, "save", slow)
    config = settings("--execution.grace_s", "1")
    began = time.monotonic()
    with pytest.raises(Stopped, match=r"no checkpoint within execution\.grace_s") as stopped:
        run_new(config, tmp_path / "run", Watch(7, raising(signal.SIGTERM)), starts=tmp_path)
    assert time.monotonic() - began < 20
    assert stopped.value.number == signal.SIGTERM
    found = checkpoint.latest(tmp_path / "run/checkpoints", lambda text: None)
    assert found is not None
    assert checkpoint.step_of(found) == 5


@dataclasses.dataclass
class Poison:
    """A loss that is not a number at some calls."""

    loss: Callable[..., Any]
    calls: set[int]
    count: int = 0

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        terms = self.loss(*arguments)
        if self.count in self.calls:
            return dataclasses.replace(terms, objective_BT=terms.objective_BT * torch.nan)
        return terms


def poisoned(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    real = run_module.make_loss
    monkeypatch.setattr(
        run_module, "make_loss", lambda *a, **bounds: Poison(real(*a, **bounds), calls)
    )


def test_a_step_that_is_not_finite_is_skipped_and_counted(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, {2, 3})
    run_new(settings("--checkpoint.every", "1"), tmp_path / "run", Watch(), starts=tmp_path)
    done = assert_whole(tmp_path / "run", 20)
    skipped = [row["step"] for row in done if row.get("applied") is False]
    assert len(skipped) in (1, 2)  # one step may take both calls
    assert all(row["gradient_norm"] is None for row in done if row["step"] in skipped)
    assert any(row.get("applied") for row in done[skipped[-1] :])
    assert all(torch.isfinite(t).all() for t in weights_of(tmp_path / "run", 20).values())


def weights_of(run: Path, step: int) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(run / f"checkpoints/step-{step:06d}/model/model.safetensors")


def test_a_budget_of_skips_ends_the_run(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned(monkeypatch, set(range(1, 1000)))
    config = settings("--optimizer.skip_budget", "2")
    with pytest.raises(RunError, match=r"not finite, for the 3th step in a row .*skip_budget = 2"):
        run_new(config, tmp_path / "run", Watch(), starts=tmp_path)
    assert_whole(tmp_path / "run", len(raw_rows(tmp_path / "run")))


def test_a_full_disk_ends_the_run_with_a_message_and_earlier_checkpoints_stand(
    tmp_path: Path, start: Path
) -> None:
    ended = killed(tmp_path / "run", start, "new", 6, "disk", "--execution.mode", "interleaved")
    assert ended.returncode == 1, ended.stderr
    assert "step-000010: the checkpoint could not be written" in ended.stderr or (
        "cannot be written" in ended.stderr
    )
    assert "bytes free" in ended.stderr
    assert "Traceback" not in ended.stderr
    found = checkpoint.latest(tmp_path / "run/checkpoints", pytest.fail)
    assert found is not None
    assert checkpoint.step_of(found) == 5


def test_a_killed_trainer_leaves_no_process_and_no_memory(tmp_path: Path, start: Path) -> None:
    """E09, with two generators; the children look away or are busy, and still end."""
    memory = set(os.listdir("/dev/shm"))
    words = (*ASYNC, "--execution.generators", "2")
    ended = killed(tmp_path / "run", start, "new", 6, "trainer", *words)
    assert ended.returncode == -signal.SIGKILL
    line = next(line for line in ended.stdout.split("\n") if line.startswith("pids"))
    pids = [int(word) for word in line.split()[1:]]
    assert len(pids) == 2
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(os.listdir("/dev/shm")) <= memory


def _members(group: int) -> list[str]:
    """The processes of a group, with their command lines."""
    listed = subprocess.run(
        ["ps", "-eo", "pgid=,args="], capture_output=True, text=True, check=True
    )
    return [line for line in listed.stdout.splitlines() if line.split()[0] == str(group)]


@pytest.mark.parametrize(
    ("number", "code", "mode"),
    [
        (signal.SIGINT, 130, "interleaved"),
        (signal.SIGINT, 130, "async"),
        (signal.SIGTERM, 143, "async"),
    ],
)
def test_the_command_ends_with_the_signals_code_and_a_checkpoint(
    tmp_path: Path, start: Path, number: signal.Signals, code: int, mode: str
) -> None:
    """The signal goes to the whole group, as a terminal or a cluster sends it."""
    run = tmp_path / "run"
    words = command(run, start, "--execution.mode", mode, "--steps", "100000")
    with subprocess.Popen(
        words,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        deadline = time.monotonic() + 120
        while len(raw_rows(run)) < 3 and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        os.killpg(process.pid, number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == code, said
    assert "Traceback" not in said
    deadline = time.monotonic() + 5  # Python's resource tracker ends a moment after its parent
    while (left := _members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    found = checkpoint.latest(run / "checkpoints", pytest.fail)
    assert found is not None
    steps = [row["step"] for row in rows(run, "steps")]
    assert steps == list(range(1, checkpoint.step_of(found) + 1))
