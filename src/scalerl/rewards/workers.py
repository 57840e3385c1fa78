"""A pool of long-lived processes for checks that may hang, crash or eat memory.

    submit ─▶ queue ─▶ dispatcher thread ─▶ idle worker process ─▶ Future

The dispatcher hands out jobs, keeps their deadlines and kills a worker that misses one; the worker
is replaced; so is one that says what is no verdict. So a job ends within its limit whatever it
does, no other job is touched, and it makes no difference which thread asks: no signals are used.
Pipes never block the dispatcher, and a fault of its own ends the pool with an error for all who
wait or ask.
"""

from __future__ import annotations

import contextlib
import json
import math
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
WAIT_S = START_S * (FAILED_STARTS + 1)  # beyond a job's limit: then it is the pool that hangs
REAP_S = 2.0  # for a killed worker to be gone; it takes milliseconds
CLOSE_S = 10.0  # for the dispatcher to end
REPLY_BYTES = 1 << 20  # no verdict is longer
CLOSED: Verdict = {"outcome": "error", "reason": "the reward workers were closed"}


@dataclass(slots=True)
class _Job:
    number: int
    line: bytes
    future: Future[Verdict]


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    deadline: float  # of the start or the job; infinite while idle
    ready: bool = False
    job: _Job | None = None
    unsent: bytes = b""  # of the job
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
            *(sys.executable, "-m", "scalerl.rewards.worker", str(memory_bytes), str(os.getpid())),
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
        self._fault: Exception | None = None  # of the pool itself, that broke it
        self._next_id = 0
        self.killed = 0  # workers that missed a deadline
        self.crashed = 0  # workers that ended by themselves

    def submit(self, job: dict[str, Any]) -> Future[Verdict]:
        """Queue a check; the future's result is its verdict, or a RunError where the pool broke."""
        future: Future[Verdict] = Future()
        with self._lock:
            if self._closing:
                raise RunError("the reward workers are closed")
            if self._broken:
                raise RunError(self._broken) from self._fault
            self._next_id += 1
            payload = {**job, "id": self._next_id, "limit_s": self.limit_s}
            line = json.dumps(payload).encode() + b"\n"
            self._queue.append(_Job(self._next_id, line, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rewards", daemon=True)
                self._thread.start()
        self._wake()
        return future

    def check(self, job: dict[str, Any]) -> Verdict:
        """The verdict on one job; waits for it.

        Raises:
            RunError: the pool broke, or gave no verdict by the time when every job has one.
        """
        wait_s = WAIT_S + self.limit_s
        try:
            return self.submit(job).result(timeout=wait_s)
        except TimeoutError:
            raise RunError(
                f"waited {wait_s:.0f} s for a {job['kind']} check in the reward workers: no verdict"
            ) from None

    def close(self) -> None:
        """Kill the workers; jobs that are not done end as `error`."""
        with self._lock:
            self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():  # held up; what it has open stays open
                self._fail_waiting(RunError("the reward workers were closed and did not end"))
                return
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
                    elif key.data not in self._workers:  # its other pipe has just ended it
                        continue
                    elif key.fd == key.data.stdin:
                        self._feed(key.data)
                    else:
                        self._hear(key.data)
                self._enforce()
        # Tolerates nothing: a thread's exception reaches nobody, so it is kept and raised as the
        # cause of a RunError by whoever waits or asks next.
        except Exception as error:  # noqa: BLE001
            self._fault = error
            self._broken = f"the reward workers broke: {type(error).__name__}: {error}"
        finally:
            self._end()

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
            assert process.stdin is not None
            assert process.stdout is not None
            worker = _Worker(
                process,
                stdin=process.stdin.fileno(),
                stdout=process.stdout.fileno(),
                deadline=time.monotonic() + START_S,
            )
            self._workers.append(worker)
            os.set_blocking(worker.stdin, False)
            self._selector.register(worker.stdout, selectors.EVENT_READ, worker)

    def _hand_out(self) -> None:
        for worker in list(self._workers):
            if not worker.ready or worker.job is not None:
                continue
            with self._lock:
                if not self._queue:
                    return
                worker.job = self._queue.popleft()
            worker.unsent = worker.job.line
            worker.deadline = time.monotonic() + self.limit_s
            self._selector.register(worker.stdin, selectors.EVENT_WRITE, worker)

    def _feed(self, worker: _Worker) -> None:
        """As much of the job as the pipe takes now."""
        try:
            worker.unsent = worker.unsent[os.write(worker.stdin, worker.unsent) :]
        except BrokenPipeError:  # it ended while idle
            self._gone(worker)
            return
        if not worker.unsent:
            self._selector.unregister(worker.stdin)

    def _hear(self, worker: _Worker) -> None:
        data = os.read(worker.stdout, 1 << 16)
        if not data:
            self._gone(worker)
            return
        worker.received += data
        *lines, rest = worker.received.split(b"\n")
        worker.received = bytearray(rest)
        try:
            if len(rest) > REPLY_BYTES:
                raise ValueError
            for line in lines:
                self._understand(worker, bytes(line))
        except (ValueError, RecursionError):  # the latter from brackets without an end
            self._gone(worker, "said what is no verdict")

    def _understand(self, worker: _Worker, line: bytes) -> None:
        """Raises ValueError for what is neither readiness nor the verdict on the worker's job."""
        message = json.loads(line)
        if not worker.ready and message == {"ready": True}:
            worker.ready, self._failed_starts = True, 0
        elif worker.job is not None and not worker.unsent and _is_verdict(message, worker.job):
            job, worker.job = worker.job, None
            del message["id"]
            job.future.set_result(message)
        else:
            raise ValueError
        worker.deadline = math.inf

    def _enforce(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers if w.deadline <= now]:
            self.killed += 1
            self._remove(worker, {"outcome": "timeout", "reason": f"over {self.limit_s} s"})

    def _gone(self, worker: _Worker, how: str = "") -> None:
        """A worker of no more use: out of memory, a crash in a library, over its CPU time."""
        self.crashed += 1
        how = how or f"ended with status {_killed(worker)}"
        self._remove(worker, {"outcome": "error", "reason": f"the worker {how}"})

    def _remove(self, worker: _Worker, verdict: Verdict) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.stdout)
        if worker.unsent:
            self._selector.unregister(worker.stdin)
        _killed(worker)
        for pipe in (worker.process.stdout, worker.process.stdin):
            assert pipe is not None
            pipe.close()
        if worker.job is not None:
            worker.job.future.set_result(verdict)
        elif not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                self._broken = f"reward workers do not start: `{' '.join(self._command)}` ends"

    def _patience(self) -> float | None:
        deadline = min((w.deadline for w in self._workers), default=math.inf)
        return None if deadline == math.inf else max(0.0, deadline - time.monotonic())

    def _end(self) -> None:
        """The last act of the dispatcher: what is not done ends, as the pool did."""
        error = RunError(self._broken) if self._broken else None
        if error is not None:
            error.__cause__ = self._fault
        self._fail_waiting(error)
        for worker in list(self._workers):
            self._remove(worker, CLOSED)

    def _fail_waiting(self, error: RunError | None) -> None:
        """Have those who wait told; without an error their verdict is that the pool was closed."""
        with self._lock:
            jobs, self._queue = list(self._queue), deque()
            for worker in self._workers:
                worker.process.kill()
                jobs += [worker.job] if worker.job is not None else []
                worker.job = None
        for job in jobs:
            if error is None:
                job.future.set_result(dict(CLOSED))
            else:
                job.future.set_exception(error)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake; or closed
            os.write(self._wake_write, b"x")


def _killed(worker: _Worker) -> int | None:
    """Its exit status, once it is killed or where it ended by itself; None if it is not gone yet:
    the kernel holds it, and will let go some time."""
    worker.process.kill()
    try:
        return worker.process.wait(REAP_S)
    except subprocess.TimeoutExpired:
        return None


def _is_verdict(message: object, job: _Job) -> bool:
    """Whether it is a verdict on this job: {"id", "score"} or {"id", "outcome", …}."""
    if not isinstance(message, dict) or message.get("id") != job.number:
        return False
    if "score" in message:
        return isinstance(message["score"], int | float)
    return isinstance(message.get("outcome"), str)
