"""Real processes: channels, deaths, signals, and nobody left behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import placement_workers as lives
import pytest

from scalerl.placement.local import Arrival, Worker

Start = Callable[..., tuple[Worker, "queue.Queue[Arrival]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    workers: list[Worker] = []

    def begin(life: Callable[..., None], *arguments: Any) -> tuple[Worker, queue.Queue[Arrival]]:
        inbox: queue.Queue[Arrival] = queue.Queue()
        workers.append(Worker(0, "worker 0", life, arguments, inbox))
        return workers[-1], inbox

    yield begin
    for worker in workers:
        worker.stop(0.0)
        assert worker.process.exitcode is not None


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_messages_go_both_ways_in_order(start: Start) -> None:
    worker, inbox = start(lives.echo)
    for i in range(50):
        worker.send(str(i).encode())
    assert [inbox.get(timeout=60).data for _ in range(50)] == [str(i).encode() for i in range(50)]
    assert worker.heard_at is not None


@pytest.mark.parametrize(
    ("life", "words"),
    [((lives.die,), "was killed by SIGKILL"), ((lives.leave, 7), "ended with exit code 7")],
)
def test_a_death_is_an_arrival_with_an_obituary(
    start: Start, life: tuple[Any, ...], words: str
) -> None:
    worker, inbox = start(*life)
    assert inbox.get(timeout=60).data is None
    assert worker.obituary() == f"worker 0 (pid {worker.process.pid}) {words}"
    worker.send(b"into nothing")


def test_a_worker_that_does_not_listen_is_killed(start: Start) -> None:
    worker, inbox = start(lives.deaf)
    assert inbox.get(timeout=60).data == b"here"
    began = time.monotonic()
    worker.stop(0.2)
    assert time.monotonic() - began < 5
    assert worker.process.exitcode == -signal.SIGKILL


def test_signals_to_the_group_are_the_parents_to_handle(start: Start) -> None:
    worker, inbox = start(lives.echo)
    pid = worker.process.pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):  # perhaps before it has run a line
        os.kill(pid, number)
    worker.send(b"still here")
    assert inbox.get(timeout=60).data == b"still here"
    os.kill(pid, signal.SIGINT)
    worker.send(b"and now")
    assert inbox.get(timeout=60).data == b"and now"


PARENT = """
import queue, sys, time
sys.path.insert(0, {here!r})
import placement_workers as lives
from scalerl.placement.local import Worker
if __name__ == "__main__":
    inbox = queue.Queue()
    worker = Worker(0, "worker", lives.busy, (), inbox)
    print(inbox.get(timeout=60).data.decode(), flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_a_busy_or_stopped_worker_dies_with_a_parent_that_is_killed(
    tmp_path: Path, stopped: bool
) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(here=str(Path(__file__).parent)))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 5
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive(pid)
