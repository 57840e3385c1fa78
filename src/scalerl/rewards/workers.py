"""A pool of long-lived processes for checks that may hang, crash or eat memory.

    submit ─▶ queue ─▶ dispatcher thread ─▶ idle worker process ─▶ Future

The dispatcher hands out jobs, keeps their deadlines and kills a worker that misses one; the worker
is replaced. So a job ends within its limit whatever it does, no other job is touched, and it
makes no difference which thread asks: no signals are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from scalerl.errors import RunError

Verdict = dict[str, Any]

START_S = 120.0  # for a new worker to say that it is ready
FAILED_STARTS = 3  # in a row, after which the pool is broken


@dataclass(slots=True)
class _Job:
    payload: dict[str, Any]
    future: Future[Verdict]


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    deadline: float  # of the start or the job; infinite while idle
    ready: bool = False
    job: _Job | None = None
    received: bytearray = field(default_factory=bytearray)


class Workers:
    """Checks in other processes.

    Args:
        count: worker processes; they start with the first job.
        limit_s: wall time of a job, from the moment a worker has it; then the worker is killed and
            the verdict is `timeout`.
        memory_bytes: address space of a worker; a job beyond it ends as `error`.
        preload: modules a worker imports before its first job.

    Raises:
        RunError: workers do not start.
    """

    def __init__(
        self,
        *,
        count: int = 1,
        limit_s: float = 3.0,
        memory_bytes: int = 2 << 30,
        preload: Sequence[str] = ("scalerl.rewards.symbolic",),
    ) -> None:
        self.limit_s = limit_s
        self._count = count
        self._command = [
            *(sys.executable, "-m", "scalerl.rewards.worker", str(memory_bytes)),
            *preload,
        ]
        self._lock = threading.Lock()
        self._queue: deque[_Job] = deque()
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._thread: threading.Thread | None = None
        self._closing = False
        self._failed_starts = 0
        self._broken = ""
        self._next_id = 0
        self.killed = 0  # workers that missed a deadline
        self.crashed = 0  # workers that ended by themselves

    def submit(self, job: dict[str, Any]) -> Future[Verdict]:
        """Queue a check; the future's result is its verdict and never an exception."""
        future: Future[Verdict] = Future()
        with self._lock:
            if self._closing:
                raise RunError("the reward workers are closed")
            if self._broken:
                raise RunError(self._broken)
            self._next_id += 1
            payload = {**job, "id": self._next_id, "limit_s": self.limit_s}
            self._queue.append(_Job(payload, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rewards", daemon=True)
                self._thread.start()
        self._wake()
        return future

    def check(self, job: dict[str, Any]) -> Verdict:
        """The verdict on one job; waits for it."""
        return self.submit(job).result()

    def close(self) -> None:
        """Kill the workers; jobs that are not done end as `error`."""
        with self._lock:
            self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        self._selector.close()
        for end in (self._wake_read, self._wake_write):
            with contextlib.suppress(OSError):  # a second close
                os.close(end)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # In the dispatcher thread.

    def _run(self) -> None:
        try:
            while not self._closing and not self._broken:
                self._start_missing()
                self._hand_out()
                for key, _ in self._selector.select(self._patience()):
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                    else:
                        self._hear(key.data)
                self._enforce()
        finally:
            self._end(self._broken or "the reward workers were closed")

    def _start_missing(self) -> None:
        wanted = min(self._count, len(self._workers) + len(self._queue))
        while len(self._workers) < (self._count if self._workers else wanted):
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
            worker = _Worker(process, deadline=time.monotonic() + START_S)
            self._workers.append(worker)
            assert process.stdout is not None
            self._selector.register(process.stdout, selectors.EVENT_READ, worker)

    def _hand_out(self) -> None:
        for worker in list(self._workers):
            if not worker.ready or worker.job is not None:
                continue
            with self._lock:
                if not self._queue:
                    return
                worker.job = self._queue.popleft()
            worker.deadline = time.monotonic() + self.limit_s
            assert worker.process.stdin is not None
            try:
                worker.process.stdin.write(json.dumps(worker.job.payload).encode() + b"\n")
                worker.process.stdin.flush()
            except BrokenPipeError:  # it ended while idle
                self._gone(worker)

    def _hear(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        data = os.read(worker.process.stdout.fileno(), 1 << 16)
        if not data:
            self._gone(worker)
            return
        worker.received += data
        *lines, rest = worker.received.split(b"\n")
        worker.received = bytearray(rest)
        for line in lines:
            message = json.loads(line)
            if "ready" in message:
                worker.ready, self._failed_starts = True, 0
            elif worker.job is not None:
                job, worker.job = worker.job, None
                message.pop("id")
                job.future.set_result(message)
            worker.deadline = float("inf")

    def _enforce(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers if w.deadline <= now]:
            self.killed += 1
            self._remove(worker, {"outcome": "timeout", "reason": f"over {self.limit_s} s"})

    def _gone(self, worker: _Worker) -> None:
        """A worker that ended by itself: out of memory, a crash in a library, over its CPU time."""
        self.crashed += 1
        code = worker.process.wait()
        self._remove(worker, {"outcome": "error", "reason": f"the worker ended with status {code}"})

    def _remove(self, worker: _Worker, verdict: Verdict) -> None:
        assert worker.process.stdout is not None
        assert worker.process.stdin is not None
        self._selector.unregister(worker.process.stdout)
        worker.process.kill()
        worker.process.wait()
        for pipe in (worker.process.stdout, worker.process.stdin):
            with contextlib.suppress(BrokenPipeError):  # a job it never read
                pipe.close()
        self._workers.remove(worker)
        if worker.job is not None:
            worker.job.future.set_result(verdict)
        elif not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                self._broken = f"reward workers do not start: `{' '.join(self._command)}` ends"

    def _patience(self) -> float | None:
        deadline = min((w.deadline for w in self._workers), default=float("inf"))
        return None if deadline == float("inf") else max(0.0, deadline - time.monotonic())

    def _end(self, reason: str) -> None:
        verdict = {"outcome": "error", "reason": reason}
        for worker in list(self._workers):
            self._remove(worker, verdict)
        with self._lock:
            waiting, self._queue = list(self._queue), deque()
        for job in waiting:
            job.future.set_result(verdict)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake; or closed
            os.write(self._wake_write, b"x")
