"""Processes on this machine: spawned, each with a channel of byte messages both ways.

A sender and a receiver thread stand at each channel, so neither side ever blocks because the other
is busy, and a dead process is an arrival like any other.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import queue
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

CONTEXT = multiprocessing.get_context("spawn")


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """What a worker sent, or (`data` None) the word that it is gone."""

    worker: int
    data: bytes | None


class Worker:
    """One process. `target(connection, spec)` is its whole life; it ends when the channel does."""

    def __init__(
        self,
        number: int,
        name: str,
        target: Callable[[Connection, bytes], None],
        spec: bytes,
        inbox: queue.Queue[Arrival],
    ) -> None:
        self.number = number
        self.name = name
        self._inbox = inbox
        self._outbox: queue.Queue[bytes | None] = queue.Queue()
        self._connection, theirs = CONTEXT.Pipe(duplex=True)
        self.process = CONTEXT.Process(target=target, args=(theirs, spec), name=name, daemon=True)
        self.process.start()
        theirs.close()
        for loop in (self._receive, self._send):
            threading.Thread(target=loop, name=f"{name} {loop.__name__}", daemon=True).start()

    def send(self, data: bytes) -> None:
        """Queue a message; never blocks. To a dead process it goes nowhere."""
        self._outbox.put(data)

    def obituary(self) -> str:
        """Why the process is gone, as far as its exit code tells."""
        self.process.join(timeout=5)
        code = self.process.exitcode
        if code is None:
            return f"{self.name} (pid {self.process.pid}) closed its channel but did not end"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} (pid {self.process.pid}) {how}"

    def stop(self, grace_s: float) -> None:
        """Close the channel, wait, then kill. Nothing is left behind."""
        self._outbox.put(None)
        self.process.join(timeout=grace_s)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._connection.close()

    def _receive(self) -> None:
        """consumes: bytes of the process; produces: arrivals; ends with the channel."""
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):  # the process or this end closed the channel
                self._inbox.put(Arrival(self.number, None))
                return
            self._inbox.put(Arrival(self.number, data))

    def _send(self) -> None:
        """consumes: queued messages; ends with `stop` or with the process."""
        while (data := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:  # the receiver thread reports the death
                return
