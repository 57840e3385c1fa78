"""Runs one Python program after the other where it can do no harm; see docs/sandbox.md.

    with Sandbox(kind="bubblewrap", limits=Limits()) as sandbox:
        run = sandbox.run_script(source, b"3\\n", expected_bytes=2)

A `Sandbox` holds one warm worker process (`sandbox_server`), started with the first run and again
after it broke. What is right stays out of it: the caller compares what a run said.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from scalerl.errors import InputError, RunError
from scalerl.rewards.sandbox_launch import Kind, first_message, launch
from scalerl.rewards.sandbox_reader import Reader

__all__ = ["Kind", "Limits", "Run", "Sandbox", "SandboxBroken"]

_START_S = 30.0  # a worker that is not ready by then never will be
_REAP_S = 10.0  # after a kill; on a machine with a free core it takes milliseconds
_SAID_S = 2.0  # for the last words of a killed worker; it takes milliseconds
_SAID_BYTES = 1 << 16
_SPARE_OUTPUT = 1 << 16  # bytes a program may print beyond 16 times the expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run of a program may use."""

    time_s: float = 6.0  # wall time of one test (of loading and the first call, for functions)
    total_s: float = 60.0  # wall time of all tests of a program together
    memory_bytes: int = 1 << 30  # address space of a process
    output_bytes: int = 16 << 20  # most that is ever read of what a program prints
    file_bytes: int = 64 << 20  # size of the private file system; under Landlock no file is written
    tasks: int = 64  # threads (and processes, where there may be any) at a time
    open_files: int = 64
    processes: bool = False  # the program may start processes; bubblewrap only


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one run ended, and what it said."""

    end: Literal["exit", "timeout", "output"]  # "output": it printed more than was allowed
    status: int  # exit status, or minus the signal that ended it
    completed: bool  # the program came to its end, by itself or by sys.exit(0)
    stdout: bytes
    stderr: bytes  # the last few kilobytes
    values: tuple[Any, ...]  # of the calls that returned, in order
    wall_s: float


class SandboxBroken(RunError):
    """The sandbox itself ended or fell silent; the next run starts a new one."""


class Sandbox:
    """One warm sandbox. Start, use and close it in one thread: its worker ends with that thread."""

    def __init__(self, *, kind: Kind, limits: Limits) -> None:
        if limits.processes and kind == "landlock":
            raise InputError("programs may start processes only under bubblewrap: install bwrap")
        self.kind: Kind = kind
        self.limits = limits
        self._worker: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._aborted = False

    def run_script(
        self, source: str, stdin: bytes, *, expected_bytes: int, wall_s: float | None = None
    ) -> Run:
        """Run a whole program on `stdin`, for at most `wall_s` and `Limits.time_s`.

        It is ended as soon as it has printed far more than `expected_bytes`.
        """
        job = {"source": source, "function": "", "calls": None}
        limit_s = self.limits.time_s if wall_s is None else min(wall_s, self.limits.time_s)
        return self._run(job, stdin, expected_bytes, calls=0, wall_s=limit_s)

    def run_calls(
        self, source: str, function: str, arguments: Sequence[list[Any]], *, expected_bytes: int
    ) -> Run:
        """Load a program and call one of its functions with each of `arguments` in turn."""
        job = {"source": source, "function": function, "calls": list(arguments)}
        return self._run(job, b"", expected_bytes, calls=len(arguments), wall_s=self.limits.total_s)

    def close(self) -> None:
        """End the worker and all that runs in it."""
        channel, worker, self._channel, self._worker = self._channel, self._worker, None, None
        if channel is None or worker is None:
            return
        channel.close()  # the worker ends by this
        try:
            worker.wait(timeout=_REAP_S)
        except subprocess.TimeoutExpired:  # it hangs: bubblewrap's end, or the kernel, ends it
            worker.kill()
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # the kernel ends it when its disk answers
                worker.wait(timeout=_REAP_S)
        if worker.stderr is not None:
            worker.stderr.close()

    def abort(self) -> None:
        """End what runs now, from another thread: there, the run raises `SandboxBroken`."""
        self._aborted = True  # a worker that is just being started is not asked for anything
        if (worker := self._worker) is not None:
            worker.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> socket.socket:
        if self._channel is not None:
            return self._channel
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._worker = launch(self.kind, theirs)
            except OSError as error:
                ours.close()
                raise SandboxBroken(str(error)) from error
        self._channel = ours
        ours.settimeout(_START_S)
        try:
            ours.send(first_message(self.kind, self.limits.file_bytes))
            ready = ours.recv(16)
        except OSError as error:
            raise self._broken(f"no worker: {error}") from error
        if ready != b"ready":
            raise self._broken("no worker")
        return ours

    def _broken(self, what: str) -> SandboxBroken:
        """The error to raise, with what the worker last said; the worker is ended."""
        worker, said = self._worker, b""
        if worker is not None and worker.stderr is not None:
            worker.kill()
            said = _last_words(worker.stderr.fileno())
        self.close()
        line = said.decode(errors="replace").strip().rpartition("\n")[2]
        return SandboxBroken(f"{what}: {line}" if line else what)

    def _run(
        self, job: dict[str, Any], stdin: bytes, expected_bytes: int, *, calls: int, wall_s: float
    ) -> Run:
        channel = self._start()
        if self._aborted:
            raise self._broken("it is being closed")
        limits = self.limits
        nonce = secrets.token_hex(16)
        reader = Reader(
            stdin=stdin,
            nonce=nonce.encode(),
            most_bytes=min(limits.output_bytes, _SPARE_OUTPUT + 16 * expected_bytes),
            calls=calls,
        )
        request = {
            **{name: asdict(limits)[name] for name in _FOR_THE_WORKER},
            "cpu_s": math.ceil(wall_s) + 1,
            "deadline_s": wall_s + 1.0,  # ours comes first, unless this process is held up
        }
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            stack.callback(reader.close)
            try:
                with _file_of(json.dumps({**job, "nonce": nonce})) as handle:
                    handles = [handle, *reader.their_ends]
                    socket.send_fds(channel, [json.dumps(request).encode()], handles)
                reader.close_their_ends()
                reply = reader.follow(
                    channel, time_s=limits.time_s, end_at=started + wall_s, reap_s=_REAP_S
                )
            except OSError as error:
                raise self._broken(f"the worker is gone: {error}") from error
            if reply is None or "broken" in reply:
                raise self._broken(reply["broken"] if reply else "the worker fell silent")
            spent_s = time.monotonic() - started
        end = reader.end or ("timeout" if reply["killed"] else "exit")
        return Run(
            end=end,
            status=reply["status"],
            completed=reader.completed,
            stdout=bytes(reader.stdout),
            stderr=bytes(reader.stderr),
            values=tuple(reader.values()),
            wall_s=spent_s,
        )


def _last_words(handle: int) -> bytes:
    """What a killed worker has left in its pipe. The pipe's end is not waited for without a limit:
    a process that the worker started may hold it open."""
    said, deadline = b"", time.monotonic() + _SAID_S
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while len(said) < _SAID_BYTES:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                break
            if not (chunk := os.read(handle, _SAID_BYTES)):
                break
            said += chunk
    return said


_FOR_THE_WORKER = ("memory_bytes", "file_bytes", "tasks", "open_files", "processes")


@contextlib.contextmanager
def _file_of(text: str):
    """A nameless file in memory that holds `text`."""
    handle = os.memfd_create("job")
    try:
        view = memoryview(text.encode())
        while view:
            view = view[os.write(handle, view) :]
        os.lseek(handle, 0, os.SEEK_SET)
        yield handle
    finally:
        os.close(handle)
