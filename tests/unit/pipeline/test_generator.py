"""The generator's loop around an engine that only counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pipeline_fakes import Clock, make_completion

from scalerl.messages import (
    Completion,
    Evaluate,
    Evaluated,
    Progress,
    Request,
    Shutdown,
    Submit,
    WeightsLoaded,
    WeightsReady,
)
from scalerl.pipeline.generator import GeneratorLoop
from scalerl.pipeline.weights import InProcessStore


class CountingEngine:
    """Three tokens a completion, all requests at once."""

    def __init__(self, version: int, clock: Clock) -> None:
        self.version = version
        self.clock = clock
        self.loaded: list[int] = []
        self.tokens_generated = self.age = 0
        self.requests: list[Request] = []

    @property
    def has_work(self) -> bool:
        return bool(self.requests)

    @property
    def tokens_in_flight(self) -> int:
        return self.age * len(self.requests)

    def submit(self, requests: tuple[Request, ...]) -> None:
        self.requests += requests

    def load_weights(self, tensors: Mapping[str, Any], version: int, **_: Any) -> None:
        self.clock.now += 0.5
        self.loaded.append(version)
        self.version = version

    def step(self) -> list[Completion]:
        self.clock.now += 1.0
        self.age += 1
        self.tokens_generated += len(self.requests)
        if self.age < 3:
            return []
        done = [
            make_completion(r.group, r.sample, segments=((0, self.version),)) for r in self.requests
        ]
        self.requests, self.age = [], 0
        return done


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


class Bench:
    def __init__(self) -> None:
        self.clock = Clock()
        self.engine = CountingEngine(0, self.clock)
        self.store = InProcessStore(8, readers=1)
        self.loop = GeneratorLoop(
            self.engine,  # type: ignore[arg-type]
            lambda version: CountingEngine(version, self.clock),  # type: ignore[arg-type, return-value]
            self.store,
            clock=self.clock,
        )

    def publish(self, version: int) -> WeightsReady:
        ready = self.store.write(version, weights(version))
        self.loop.post(ready)
        return ready


def request(group: int = 0) -> Request:
    return Request(group=group, sample=0, prompt_ids=(1,), seed=0)


def test_the_first_tick_says_that_it_lives_and_then_once_a_second() -> None:
    bench = Bench()
    [first] = bench.loop.tick()
    assert isinstance(first, Progress)
    assert bench.loop.tick() == []
    bench.clock.now += 1.0
    [again] = bench.loop.tick()
    assert isinstance(again, Progress)
    assert again.completions == ()


def test_a_publication_that_comes_twice_or_too_late_is_acknowledged_and_not_loaded() -> None:
    bench = Bench()
    first, second = bench.publish(4), bench.publish(5)
    bench.loop.post(second)
    bench.loop.post(first)
    acknowledged = [r for r in bench.loop.tick() if isinstance(r, WeightsLoaded)]
    assert [a.version for a in acknowledged] == [4, 5, 5, 4]
    assert bench.engine.loaded == [4, 5]


def test_the_first_weights_are_loaded_even_with_the_engines_own_number() -> None:
    """A resumed run's version 0 … n are not what the start folder holds."""
    bench = Bench()
    bench.publish(0)
    bench.loop.tick()
    assert bench.engine.loaded == [0]


def test_messages_are_handled_in_order_and_an_evaluation_pins_the_weights() -> None:
    bench = Bench()
    bench.publish(1)
    bench.loop.post(Submit(requests=(request(),)))
    bench.loop.tick()
    bench.loop.post(Evaluate(step=1, requests=(request(9),)))
    bench.publish(2)
    heard = [reply for _ in range(3) for reply in bench.loop.tick()]
    assert bench.engine.loaded == [1]  # version 2 waits
    [done] = [reply for reply in heard if isinstance(reply, Evaluated)]
    assert (done.step, done.version, len(done.completions)) == (1, 1, 1)
    assert done.counters.tokens_generated == 1  # rollouts stood still
    [loaded, progress] = [r for _ in range(2) for r in bench.loop.tick()]
    assert isinstance(loaded, WeightsLoaded)
    assert isinstance(progress, Progress)
    assert progress.counters.tokens_generated == 3
    assert progress.counters.tokens_in_flight == 0
    assert progress.version == 2


def test_seconds_are_busy_idle_or_evaluation() -> None:
    bench = Bench()
    bench.loop.tick()
    bench.loop.rest(7.0)
    bench.publish(1)  # half a second to load
    bench.loop.post(Submit(requests=(request(),)))
    for _ in range(3):
        bench.loop.tick()
    bench.loop.post(Evaluate(step=1, requests=(request(),)))
    for _ in range(3):
        bench.loop.tick()
    counters = bench.loop.counters()
    assert (counters.busy_s, counters.idle_s, counters.evaluation_s) == (3.5, 7.0, 3.0)


def test_shutdown_is_heard_during_an_evaluation() -> None:
    bench = Bench()
    bench.loop.post(Evaluate(step=0, requests=(request(),)))
    bench.loop.tick()
    bench.loop.post(Shutdown())
    assert bench.loop.stopped
