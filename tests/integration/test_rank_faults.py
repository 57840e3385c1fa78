"""Trainer ranks that die, stop or never come; docs/faults.md says what must happen."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import rank_lives
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from training_runs import Settings, Watch, raw_rows, rows

from scalerl.errors import RunError
from scalerl.pipeline import ranks
from scalerl.pipeline.session import run_new, run_on
from scalerl.train.sharded import lost_ranks

RANKS = ("--execution.trainer_ranks", "2", "--steps", "4", "--checkpoint.every", "2")


def signal_rank(number: signal.Signals) -> Callable[[], None]:
    def act() -> None:
        for child in multiprocessing.active_children():
            if child.name == "trainer rank 1":
                assert child.pid is not None
                os.kill(child.pid, number)

    return act


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


def test_a_killed_rank_ends_the_run_with_its_name_and_the_run_goes_on(
    tmp_path: Path, settings: Settings
) -> None:
    watch = Watch(3, signal_rank(signal.SIGKILL))
    with pytest.raises(RunError, match=r"trainer rank 1 \(pid \d+\) was killed by SIGKILL"):
        run_new(settings(*RANKS), tmp_path / "run", watch, starts=tmp_path)
    assert not multiprocessing.active_children()
    assert [row["step"] for row in raw_rows(tmp_path / "run")][-1] == 3
    run_on(tmp_path / "run", Watch(), starts=tmp_path, config=settings(*RANKS))
    assert [row["step"] for row in rows(tmp_path / "run", "steps")] == [1, 2, 3, 4]


def test_a_stopped_rank_ends_the_run_with_its_name_after_stall_s(
    tmp_path: Path, settings: Settings
) -> None:
    stopped: list[float] = []

    def stop() -> None:
        stopped.append(time.monotonic())
        signal_rank(signal.SIGSTOP)()

    config = settings(*RANKS, "--execution.stall_s", "5")
    reason = r"trainer rank 1 \(pid \d+\) gave no sign of life for 5 s \(execution\.stall_s\)"
    with pytest.raises(RunError, match=reason):
        run_new(config, tmp_path / "run", Watch(2, stop), starts=tmp_path)
    assert time.monotonic() - stopped[0] < 60


def test_a_rank_that_dies_before_they_meet_ends_the_run(tmp_path: Path, settings: Settings) -> None:
    def kill() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.01)
        signal_rank(signal.SIGKILL)()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.raises(RunError, match=r"trainer rank 1 \(pid \d+\) was killed by SIGKILL"):
        run_new(settings(*RANKS), tmp_path / "run", Watch(), starts=tmp_path)


def test_a_rank_that_dies_while_they_meet_is_named(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meet_nobody(*arguments: object, **options: object) -> None:
        signal_rank(signal.SIGKILL)()
        raise RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")

    monkeypatch.setattr(ranks.dist, "init_process_group", meet_nobody)
    with pytest.raises(RunError, match=r"trainer rank 1 \(pid \d+\) was killed by SIGKILL"):
        run_new(settings(*RANKS), tmp_path / "run", Watch(), starts=tmp_path)


@pytest.mark.parametrize(
    "fault",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ],
)
def test_what_fails_in_a_step_of_rank_0_keeps_its_own_words(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, fault: RuntimeError
) -> None:
    def fail(*arguments: object) -> None:
        raise fault

    monkeypatch.setattr(ranks.SpawnedTrainer, "_step", fail)
    with pytest.raises(RuntimeError) as raised:
        run_new(settings(*RANKS), tmp_path / "run", Watch(), starts=tmp_path)
    assert raised.value is fault


def test_a_disk_that_is_full_is_told_as_with_one_process(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(FileSystemWriter, "write_data", full)
    reason = r"step-000002: the checkpoint could not be written .*rank 0: .*No space left"
    with pytest.raises(RunError, match=reason):
        run_new(settings(*RANKS), tmp_path / "run", Watch(), starts=tmp_path)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_what_a_backend_says_of_its_own_failure_is_no_certain_loss() -> None:
    with pytest.raises(RunError, match="one may be lost: NCCL error: unhandled"), lost_ranks():
        raise torch.distributed.DistBackendError("NCCL error: unhandled system error")


def test_a_step_that_is_left_half_way_holds_nobody(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C, while the other rank waits in a collective."""

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ranks.SpawnedTrainer, "_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_new(settings(*RANKS), tmp_path / "run", Watch(), starts=tmp_path)


def test_what_fails_on_rank_0_alone_leaves_no_rank(start: Path, settings: Settings) -> None:
    with pytest.raises(ZeroDivisionError):
        ranks.open_trainer(settings(*RANKS), start, rank_lives.fail_on_rank_0)


def held_rank_0(how: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, rank_lives.__file__, how, str(folder)],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def test_rank_0_ends_though_it_cannot_leave_what_it_is_in(tmp_path: Path) -> None:
    """As in a kernel of a card that waits for its peer; it leaves nothing behind."""
    (tmp_path / "half").mkdir()
    ended = held_rank_0("stuck", tmp_path / "half")
    assert ended.returncode == 1
    assert "trainer rank 1 (pid" in ended.stderr
    assert "ended with exit code 3" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == "cleared away\n"
    assert not (tmp_path / "half").exists()


def test_rank_0_that_is_only_slow_tells_it_and_ends_by_itself(tmp_path: Path) -> None:
    ended = held_rank_0("slow", tmp_path)
    assert ended.returncode == 0
    assert "ended with exit code 3" in ended.stderr  # at once, before its own work is done
    said = ended.stdout.splitlines()
    assert "trainer rank 1 (pid" in said[0]
    assert said[1:] == ["cleared away"]
    assert tmp_path.exists()


def test_a_lost_follower_of_torchrun_does_not_keep_the_others_from_going_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[int] = []

    def send(rank: int, command: object) -> None:
        if rank == 1:
            raise RuntimeError("connection closed by peer")
        told.append(rank)

    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(ranks, "send", send)
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks.dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(ranks.dist, "destroy_process_group", lambda: told.append(-1))
    ranks.leave()
    assert told == [2, -1]
