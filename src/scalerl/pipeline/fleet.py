"""All generators behind three calls: `send` a message to one, `poll` for what any of them says,
`restart` one.

`ProcessFleet` runs each in a process of its own; `InlineFleet` runs them inside this process, one
tick a poll, so that everything happens in one order that the seed decides.
"""

from __future__ import annotations

import dataclasses
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from scalerl.errors import RunError
from scalerl.messages import Failed, FromGenerator, Shutdown, ToGenerator, WeightsReady
from scalerl.pipeline.generator import GeneratorLoop
from scalerl.placement.local import Arrival, Worker

START_S = 120.0  # a process may be silent for so long while it starts
AWAY_S = 5.0  # between two polls: the trainer was busy or stopped, so silence counts anew

_encoder = msgspec.msgpack.Encoder()
_from_generator = msgspec.msgpack.Decoder(FromGenerator)


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """A generator died, hangs, or sent what is no message. Only `restart` brings it back."""

    reason: str


Word = FromGenerator | Lost


class Fleet(Protocol):
    @property
    def size(self) -> int: ...

    def send(self, generator: int, message: ToGenerator) -> None:
        """Never blocks. Messages to one generator arrive in the order they were sent."""
        ...

    def poll(self, timeout_s: float) -> list[tuple[int, Word]]:
        """What the generators said, waiting at most `timeout_s` for the first word."""
        ...

    def restart(self, generator: int) -> None:
        """Put a new one in its place, without weights or work; the old one is not heard again."""
        ...

    def close(self, grace_s: float) -> None: ...


class InlineFleet:
    """Generators in this process; `poll` gives each one tick."""

    def __init__(self, loops: Sequence[GeneratorLoop]) -> None:
        self.loops = list(loops)

    @property
    def size(self) -> int:
        return len(self.loops)

    def send(self, generator: int, message: ToGenerator) -> None:
        self.loops[generator].post(message)

    def poll(self, timeout_s: float) -> list[tuple[int, Word]]:
        return [(i, reply) for i, loop in enumerate(self.loops) for reply in loop.tick()]

    def restart(self, generator: int) -> None:
        raise RunError(f"generator {generator} shares the trainer's process: no restart helps")

    def close(self, grace_s: float) -> None:
        self.loops = []


class ProcessFleet:
    """Generators in processes of their own: `target(connection, *arguments)`.

    Silence counts only while the trainer listens: a long step of the trainer, a stopped and
    continued job or a sleeping machine kill nobody.
    """

    def __init__(
        self, target: Callable[..., None], arguments: Sequence[tuple[Any, ...]], *, silence_s: float
    ) -> None:
        self._target = target
        self._arguments = list(arguments)
        self._silence_s = silence_s
        self._inbox: queue.Queue[Arrival] = queue.Queue()
        self._polled_at = self._listening_since = time.monotonic()
        self._workers = [self._start(i) for i in range(len(self._arguments))]

    @property
    def size(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> list[int]:
        return [w.process.pid or 0 for w in self._workers]

    def send(self, generator: int, message: ToGenerator) -> None:
        self._workers[generator].send(_encoder.encode(message))

    def poll(self, timeout_s: float) -> list[tuple[int, Word]]:
        now = time.monotonic()
        if now - self._polled_at > AWAY_S:
            self._listening_since = now
        words: list[tuple[int, Word]] = []
        lost: set[int] = set()
        while True:
            try:
                arrival = self._inbox.get(timeout=0.0 if words else timeout_s)
            except queue.Empty:
                break
            number = arrival.worker.number
            if arrival.worker is not self._workers[number] or number in lost:
                continue  # the last words of one that has been given up
            word = self._decode(arrival)
            words.append((number, word))
            if isinstance(word, Lost):
                lost.add(number)
        self._polled_at = time.monotonic()
        return words + [(i, word) for i, word in self._silent() if i not in lost]

    def restart(self, generator: int) -> None:
        self._workers[generator].stop(0.0)
        self._workers[generator] = self._start(generator)

    def close(self, grace_s: float) -> None:
        for worker in self._workers:
            worker.send(_encoder.encode(Shutdown()))
        deadline = time.monotonic() + grace_s
        for worker in self._workers:
            worker.stop(max(0.0, deadline - time.monotonic()))

    def _start(self, number: int) -> Worker:
        return Worker(
            number, f"generator {number}", self._target, self._arguments[number], self._inbox
        )

    def _decode(self, arrival: Arrival) -> Word:
        if arrival.data is None:
            return Lost(arrival.worker.obituary())
        try:
            message = _from_generator.decode(arrival.data)
        except msgspec.DecodeError as error:
            return Lost(f"{arrival.worker.name} sent something that is no message: {error}")
        if isinstance(message, Failed):
            return Lost(f"{arrival.worker.name} failed: {message.reason}")
        return message

    def _silent(self) -> list[tuple[int, Lost]]:
        lost: list[tuple[int, Lost]] = []
        for worker in self._workers:
            allowed = self._silence_s
            if worker.heard_at is None:
                allowed = max(allowed, START_S)
            since = max(worker.heard_at or worker.started_at, self._listening_since)
            if time.monotonic() - since > allowed:
                reason = (
                    f"{worker.name} (pid {worker.process.pid}) gave no sign of life for "
                    f"{allowed:.0f} s (execution.stall_s)"
                )
                lost.append((worker.number, Lost(reason)))
        return lost


def broadcast(fleet: Fleet, message: WeightsReady | Shutdown) -> None:
    for generator in range(fleet.size):
        fleet.send(generator, message)
