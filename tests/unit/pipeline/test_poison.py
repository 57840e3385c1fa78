"""One prompt of many that the engine refuses every time: real loops around a real engine."""

from __future__ import annotations

import multiprocessing
import re

import msgspec
import pytest
import torch
from pipeline_fakes import Clock, World

from scalerl.config.axes import Pipeline
from scalerl.errors import InputError, RunError
from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams
from scalerl.messages import Failed, FromGenerator, Request, Submit, ToGenerator
from scalerl.model.tiny import tiny_model
from scalerl.pipeline.fleet import InlineFleet, Lost, Word
from scalerl.pipeline.generator import GeneratorLoop
from scalerl.pipeline.process import serve
from scalerl.pipeline.weights import InProcessStore, WeightStore

PROMPTS, POISON, K, RESTARTS = 128, 40, 8, 3  # drawn fifteenth, whatever the tokens
TOO_LONG = (5,) * 40
REFUSED = "prompt of 40 tokens and 4 new ones exceed the length of 8"


def make_loop(store: WeightStore) -> GeneratorLoop:
    model = tiny_model(seed=0, hidden=16, layers=1, heads=2, intermediate=16)

    def engine(version: int) -> Engine:
        return Engine(
            model,
            slots=4,
            max_length=8,
            params=SamplingParams(max_new_tokens=4),
            interruption=None,
            end_ids=(1,),
            version=version,
        )

    return GeneratorLoop(engine(0), engine, store)


class Processes:
    """Loops that live as those of `serve` do: what they raise is their last word, and one in the
    place of another needs `START` polls until it hears anything."""

    START = 30

    def __init__(self, size: int) -> None:
        self.size = size
        self.clock = Clock()
        self.store: WeightStore = InProcessStore(4, readers=size)
        self.restarted: list[int] = []
        self._loops: list[GeneratorLoop | None] = [None] * size
        self._starting = [0] * size
        self._posted: list[list[ToGenerator]] = [[] for _ in range(size)]

    def send(self, generator: int, message: ToGenerator) -> None:
        self._posted[generator].append(message)

    def poll(self, timeout_s: float) -> list[tuple[int, Word]]:
        self.clock.now += timeout_s
        return [(i, word) for i in range(self.size) for word in self._tick(i)]

    def restart(self, generator: int) -> None:
        self.restarted.append(generator)
        self._loops[generator] = None
        self._starting[generator] = self.START
        self._posted[generator] = []

    def close(self, grace_s: float) -> None:
        self._loops = [None] * self.size

    def _tick(self, i: int) -> list[FromGenerator] | list[Lost]:
        self._starting[i] -= 1
        if self._starting[i] > 0:
            return []
        loop = self._loops[i] = self._loops[i] or make_loop(self.store)
        while self._posted[i]:
            loop.post(self._posted[i].pop(0))
        try:
            return loop.tick()
        except InputError as error:  # the words of `serve` and of `ProcessFleet`
            return [Lost(f"generator {i} failed: {type(error).__name__}: {error}")]


class ModelWorld(World):
    def weights(self) -> dict[str, torch.Tensor]:
        model = tiny_model(seed=0, hidden=16, layers=1, heads=2, intermediate=16)
        return {name: p.detach() for name, p in model.named_parameters()}


def make_world(fleet: Processes | InlineFleet) -> ModelWorld:
    return ModelWorld(
        fleet,  # type: ignore[arg-type]
        regime=Pipeline(k=K),
        prompts=PROMPTS,
        prompt_ids=lambda i: TOO_LONG if i == POISON else (2 + i % 30, 2),
        steps=PROMPTS // 2,
        restarts=RESTARTS,
        vocabulary=32,
    )


def test_a_poison_prompt_is_named_bounded_and_does_not_stop_the_others() -> None:
    """E01: one of 128 always raises. The first steps are as ever; while its generator is put back
    again and again the other one goes on, until the bound holds the trainer or the budget ends."""
    fleet = Processes(2)
    world = make_world(fleet)
    fleet.store = world.rollouts.store
    failed_at: list[int] = []
    world.rollouts.warn = lambda text: failed_at.append(world.version)
    with pytest.raises(RunError) as ended:
        world.run()
    told = re.fullmatch(
        rf"generator (\d) failed: InputError: group (\d+): {REFUSED}; "
        rf"execution\.restarts = {RESTARTS} is used up",
        str(ended.value),
    )
    assert told
    generator, number = map(int, told.groups())
    assert world.rollouts.pending[number].prompt.id == f"p{POISON}"
    assert fleet.restarted == [generator] * RESTARTS
    trained = [g.prompt.id for step in world.trained for g in step]
    assert len(trained) == len(set(trained)) == 2 * world.version  # each prompt once
    assert f"p{POISON}" not in trained
    assert number == 14
    assert failed_at[0] > 0
    assert failed_at[0] + 2 <= world.version <= world.rollouts.pending[number].version + K
    world.rollouts.close_ledger()


def test_the_process_says_which_group_it_cannot_sample() -> None:
    ours, theirs = multiprocessing.Pipe()
    poison = Request(group=7, sample=0, prompt_ids=TOO_LONG, seed=0)
    ours.send_bytes(msgspec.msgpack.encode(Submit(requests=(poison,))))
    with pytest.raises(InputError, match=REFUSED):
        serve(theirs, lambda: make_loop(InProcessStore(4, readers=1)))
    said = msgspec.msgpack.decode(ours.recv_bytes(), type=FromGenerator)
    assert said == Failed(reason=f"InputError: group 7: {REFUSED}")


def test_inside_one_process_it_ends_the_run_at_once_with_the_same_words() -> None:
    fleet = InlineFleet([])
    fleet.clock = Clock()  # type: ignore[attr-defined]
    fleet.loops = [None]  # type: ignore[list-item]
    world = make_world(fleet)
    fleet.loops = [make_loop(world.rollouts.store)]
    with pytest.raises(InputError, match=rf"group \d+: {REFUSED}"):
        world.run()
    assert world.version > 0
