"""Processes on this machine: spawned, each with a channel of byte messages both ways.

A sender and a receiver thread stand at each channel, so neither side ever blocks because the other
is busy, and a dead process is an arrival like any other. Signals are the parent's to handle, and a
worker never outlives it: the channel ends with the parent, and the kernel kills what does not look.
"""

from __future__ import annotations

import ctypes
import dataclasses
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """What a worker sent, or (`data` None) the word that its channel has ended."""

    worker: Worker
    data: bytes | None


class Worker:
    """One process. `target(connection, *arguments)` is its whole life; it ends with the channel."""

    def __init__(
        self,
        number: int,
        name: str,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        inbox: queue.Queue[Arrival],
    ) -> None:
        self.number = number
        self.name = name
        self.started_at = time.monotonic()
        self.heard_at: float | None = None  # monotonic time of its last word
        self._inbox = inbox
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        self._connection, theirs = CONTEXT.Pipe(duplex=True)
        self.process = CONTEXT.Process(
            target=_life, args=(_Leash(), target, theirs, arguments), name=name, daemon=True
        )
        with _signals_blocked():
            self.process.start()
        theirs.close()
        self._threads = [
            threading.Thread(target=loop, name=f"{name} {loop.__name__}", daemon=True)
            for loop in (self._receive, self._send)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, data: bytes) -> None:
        """Queue a message; never blocks. To a dead process it goes nowhere."""
        self._outbox.put(data)

    def obituary(self) -> str:
        """Why the process is gone, as far as its exit code tells."""
        self.process.join(timeout=5)
        code = self.process.exitcode
        if code is None:
            return f"{self.name} (pid {self.process.pid}) closed its channel but did not end"
        if code < 0:
            return f"{self.name} (pid {self.process.pid}) was killed by {_signal_name(-code)}"
        return f"{self.name} (pid {self.process.pid}) ended with exit code {code}"

    def stop(self, grace_s: float) -> None:
        """End the channel, wait for the process, then kill it. Nothing is left behind."""
        self._outbox.put(None)
        self.process.join(timeout=grace_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(timeout=5)  # the kernel ends it, now or when its disk answers
        for thread in self._threads:  # the end of the process ends them; closing first would race
            thread.join(timeout=5)
        self._connection.close()

    def _receive(self) -> None:
        """consumes: bytes of the process; produces: arrivals; ends with the channel."""
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):  # the process or this end closed the channel
                self._inbox.put(Arrival(self, None))
                return
            self.heard_at = time.monotonic()
            self._inbox.put(Arrival(self, data))

    def _send(self) -> None:
        """consumes: queued messages; ends with `stop` or with the process."""
        while (data := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:  # the receiver thread reports the death
                return


class _Leash:
    """Ties a process to this one while its arguments are unpickled, before heavy imports begin."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _die_with, (os.getpid(),)


def _life(
    leash: None,
    target: Callable[..., None],
    connection: Connection,
    arguments: tuple[Any, ...],
) -> None:
    """What runs in the process."""
    for number in SIGNALS:  # Ctrl-C and a cluster's notice reach the whole group; the parent acts
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    target(connection, *arguments)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, stopped or busy as it may be."""
    if sys.platform != "linux":
        return  # the end of the channel ends it at its next look
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before the line above
        os._exit(1)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started inside begins with these signals blocked, until it ignores them."""
    resource_tracker.ensure_running()  # starting it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
