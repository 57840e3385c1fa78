"""The dynamics of generators and trainer without a model: events in time, the real admission code.

    trainer idle: take in what is finished → admit (Buffer) → take (Buffer) → train → publish
    generators:   slots that sample a token a decode step; finished ones wait for the trainer

The buffer decides here as it does in a run, and the trainer takes in and admits only between two
steps, as it does in a run. What is not simulated: evaluation, prompts (their cost belongs into the
decode step), faults, and that a policy changes while it learns.

Units: seconds, tokens. A decode step of a device with n active slots takes
``decode_base_s + n · decode_slot_s``; an optimiser step on T tokens takes
``train_base_s + T · train_token_s / trainers``.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections.abc import Callable, Sequence

import numpy as np

from scalerl.config.axes import RegimeConfig
from scalerl.messages import Group, Prompt
from scalerl.pipeline.buffer import Buffer, make_regime

NOBODY = Prompt(id="simulated", text="", token_ids=(), answer="", task="")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the devices cost. Generators are alike; trainers take one step together."""

    generators: int
    trainers: int
    slots: int  # of a generator
    decode_base_s: float
    decode_slot_s: float
    train_base_s: float
    train_token_s: float  # on one device
    publish_s: float = 0.0  # a generator stands still for so long to load new weights


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What there is to do."""

    regime: RegimeConfig
    groups: int  # P, a step
    completions: int  # G, a group
    steps: int
    length: Callable[[random.Random], int]  # of one completion, tokens
    trained_share: float = 1.0  # of the tokens of a step, after filters
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came of it, the first `k` steps (filling the pipeline) included."""

    seconds: float
    steps: int
    generator_idle_share: float
    trainer_idle_share: float
    tokens_generated: int
    tokens_trained: float
    trained_per_device_second: float
    staleness: tuple[int, ...]  # of every trained completion: versions its oldest token is behind
    staleness_token_mean: float  # over tokens


class _Generator:
    """Continuous batching as processor sharing: all active slots move a token at a time.

    ``sampled`` counts decode steps, so a completion of L tokens begun at s is done at s + L.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.now = 0.0
        self.busy_s = 0.0
        self.version = 0
        self._sampled = 0.0
        self._versions = 0.0  # ∫ version d sampled, up to now
        self._active: list[tuple[float, int, int, int, float]] = []  # end, group, length, …
        self._queue: list[tuple[int, int]] = []  # group, length; the next one last
        self.done: list[tuple[int, int, int, float]] = []  # group, length, start version, mean

    @property
    def load(self) -> int:
        return len(self._active) + len(self._queue)

    def _step_s(self) -> float:
        return self._machine.decode_base_s + len(self._active) * self._machine.decode_slot_s

    def next_end(self) -> float:
        """When the next completion is finished, if nothing else happens."""
        if not self._active:
            return float("inf")
        return self.now + (self._active[0][0] - self._sampled) * self._step_s()

    def advance(self, to: float) -> None:
        """Move on to a moment that is not after `next_end`."""
        if self._active:
            steps = max(0.0, to - self.now) / self._step_s()
            self._sampled += steps
            self._versions += steps * self.version
            self.busy_s += max(0.0, to - self.now)
        self.now = max(self.now, to)

    def finish_due(self) -> None:
        """Take out the completions that have ended, and fill their slots."""
        while self._active and self._active[0][0] <= self._sampled + 1e-6:
            _, group, length, start, before = heapq.heappop(self._active)
            mean = (self._versions - before) / length
            self.done.append((group, length, start, mean))
        self._fill()

    def submit(self, work: Sequence[tuple[int, int]]) -> None:
        self._queue = [*reversed(work), *self._queue]
        self._fill()

    def load_weights(self, version: int) -> None:
        self.version = version
        if self._active:
            self.busy_s += self._machine.publish_s
        self.now += self._machine.publish_s

    def _fill(self) -> None:
        while self._queue and len(self._active) < self._machine.slots:
            group, length = self._queue.pop()
            entry = (self._sampled + length, group, length, self.version, self._versions)
            heapq.heappush(self._active, entry)


def simulate(machine: Machine, work: Workload) -> Simulated:
    """Play `work.steps` optimiser steps.

    consumes:      lengths; waits for: the next finished completion, when no step can be taken
    unblocked by:  it always is: what is admitted is finished, and the buffer then lets a step go
    """
    rng = random.Random(work.seed)
    buffer = Buffer(make_regime(work.regime, work.groups), work.groups)
    generators = [_Generator(machine) for _ in range(machine.generators)]
    missing: dict[int, int] = {}
    admitted: dict[int, int] = {}
    parts: dict[int, list[tuple[int, int, float]]] = {}
    now = busy_s = trained = 0.0
    version = number = 0
    stale: list[int] = []
    lag_sum = lag_tokens = 0.0

    def receive() -> None:
        for generator in generators:
            for group, length, start, mean in generator.done:
                parts.setdefault(group, []).append((length, start, mean))
                missing[group] -= 1
                if not missing[group]:
                    del missing[group]
                    buffer.finish(
                        Group(
                            index=group,
                            prompt=NOBODY,
                            admitted_version=admitted.pop(group),
                            completions=(),
                        )
                    )
            generator.done.clear()

    def admit() -> None:
        nonlocal number
        slots = machine.generators * machine.slots
        appetite = buffer.appetite(sum(missing.values()), slots, work.completions)
        loads = [g.load for g in generators]
        for _ in range(min(buffer.room(version, work.steps), appetite)):
            buffer.admit(number, version)
            admitted[number], missing[number] = version, work.completions
            chosen = loads.index(min(loads))
            loads[chosen] += work.completions
            lengths = [(number, work.length(rng)) for _ in range(work.completions)]
            generators[chosen].submit(lengths)
            number += 1

    def run_until(moment: float) -> None:
        for generator in generators:
            while (end := generator.next_end()) <= moment:
                generator.advance(end)
                generator.finish_due()
            generator.advance(moment)

    while version < work.steps:
        receive()
        admit()
        groups = buffer.take(version)
        if groups is None:
            now = max(now, min(g.next_end() for g in generators))
            run_until(now)
            continue
        tokens = 0
        for group in groups:
            for length, start, mean in parts.pop(group.index):
                tokens += length
                stale.append(version - start)
                lag_sum += length * (version - mean)
                lag_tokens += length
        kept = tokens * work.trained_share
        step_s = machine.train_base_s + kept * machine.train_token_s / machine.trainers
        trained += kept
        busy_s += step_s
        now += step_s
        run_until(now)
        version += 1
        for generator in generators:
            generator.load_weights(version)
    generated = int(lag_tokens)
    return Simulated(
        seconds=now,
        steps=version,
        generator_idle_share=1 - sum(g.busy_s for g in generators) / (now * machine.generators),
        trainer_idle_share=1 - busy_s / now,
        tokens_generated=generated,
        tokens_trained=trained,
        trained_per_device_second=trained / (now * (machine.generators + machine.trainers)),
        staleness=tuple(stale),
        staleness_token_mean=lag_sum / lag_tokens,
    )


def splits(machine: Machine, work: Workload, devices: int) -> list[tuple[int, Simulated]]:
    """Ways to split `devices`, as (generators, what comes of it), the fastest first."""
    counts = {round(devices * share) for share in np.linspace(0.1, 0.95, 18)}
    tried = [
        (
            generators,
            simulate(
                dataclasses.replace(machine, generators=generators, trainers=devices - generators),
                work,
            ),
        )
        for generators in sorted(counts)
        if 0 < generators < devices
    ]
    return sorted(tried, key=lambda each: -each[1].trained_per_device_second)


def parse_lengths(text: str) -> Callable[[random.Random], int]:
    """`lognormal:MEAN:CV:MAX`, `fixed:N`, or `file:PATH` with one length a line.

    Raises:
        ValueError: it is none of these.
    """
    kind, _, rest = text.partition(":")
    if kind == "fixed":
        size = int(rest)
        return lambda rng: size
    if kind == "file":
        with open(rest, encoding="utf-8") as file:
            known = [int(line) for line in file if line.strip()]
        return lambda rng: rng.choice(known)
    if kind == "lognormal":
        mean, spread, most = (float(word) for word in rest.split(":"))
        variance = float(np.log1p(spread**2))
        middle = float(np.log(mean)) - variance / 2
        return lambda rng: max(1, min(int(most), round(rng.lognormvariate(middle, variance**0.5))))
    raise ValueError(f"{text!r}: write lognormal:MEAN:CV:MAX, fixed:N or file:PATH")
