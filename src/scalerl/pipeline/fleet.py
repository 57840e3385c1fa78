"""All generators behind two calls: `send` a message to one, `poll` for what any of them says.

`ProcessFleet` runs each in a process of its own; `InlineFleet` runs them inside this process, one
tick a poll, so that everything happens in one order that the seed decides.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec

from scalerl.errors import RunError
from scalerl.messages import Failed, FromGenerator, Shutdown, ToGenerator, WeightsReady
from scalerl.pipeline.generator import GeneratorLoop
from scalerl.placement.local import Arrival, Worker

_encoder = msgspec.msgpack.Encoder()
_from_generator = msgspec.msgpack.Decoder(FromGenerator)


class Fleet(Protocol):
    @property
    def size(self) -> int: ...

    def send(self, generator: int, message: ToGenerator) -> None:
        """Never blocks. Messages to one generator arrive in the order they were sent."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, FromGenerator]]:
        """What the generators said, waiting at most `timeout_s` for the first word.

        Raises:
            RunError: a generator is gone, or sent something that is not a message.
        """
        ...

    def close(self) -> None: ...


class InlineFleet:
    """Generators in this process; `poll` gives each one tick."""

    def __init__(self, loops: Sequence[GeneratorLoop]) -> None:
        self._loops = list(loops)

    @property
    def size(self) -> int:
        return len(self._loops)

    def send(self, generator: int, message: ToGenerator) -> None:
        self._loops[generator].post(message)

    def poll(self, timeout_s: float) -> list[tuple[int, FromGenerator]]:
        return [(i, reply) for i, loop in enumerate(self._loops) for reply in loop.tick()]

    def close(self) -> None:
        self._loops = []


class ProcessFleet:
    """Generators in processes of their own."""

    def __init__(
        self,
        target: Callable[[Connection, bytes], None],
        specs: Sequence[bytes],
    ) -> None:
        self._inbox: queue.Queue[Arrival] = queue.Queue()
        self._workers = [
            Worker(i, f"generator {i}", target, spec, self._inbox) for i, spec in enumerate(specs)
        ]

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        return [w.process.pid or 0 for w in self._workers]

    def send(self, generator: int, message: ToGenerator) -> None:
        self._workers[generator].send(_encoder.encode(message))

    def poll(self, timeout_s: float) -> list[tuple[int, FromGenerator]]:
        replies: list[tuple[int, FromGenerator]] = []
        while True:
            try:
                arrival = self._inbox.get(timeout=0.0 if replies else timeout_s)
            except queue.Empty:
                return replies
            replies.append((arrival.worker, self._decode(arrival)))

    def _decode(self, arrival: Arrival) -> FromGenerator:
        worker = self._workers[arrival.worker]
        if arrival.data is None:
            raise RunError(worker.obituary())
        try:
            message = _from_generator.decode(arrival.data)
        except msgspec.DecodeError as error:
            raise RunError(f"{worker.name} sent something that is no message: {error}") from error
        if isinstance(message, Failed):
            raise RunError(f"{worker.name} failed: {message.reason}")
        return message

    def close(self) -> None:
        for worker in self._workers:
            worker.send(_encoder.encode(Shutdown()))
        deadline = time.monotonic() + 5
        for worker in self._workers:
            worker.stop(max(0.1, deadline - time.monotonic()))


def broadcast(fleet: Fleet, message: WeightsReady | Shutdown) -> None:
    for generator in range(fleet.size):
        fleet.send(generator, message)
