"""The generator's side: a loop around the engine, the same in a process of its own and in one
process with the trainer.

    ToGenerator ─▶ inbox ─▶ tick: handle messages in order, then one engine step ─▶ FromGenerator
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from torch import Tensor
from transformers import PreTrainedModel

from scalerl.generate import snapshot
from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams
from scalerl.generate.slots import Interruption
from scalerl.generate.snapshot import EngineState
from scalerl.messages import (
    Completion,
    Counters,
    Evaluate,
    Evaluated,
    FromGenerator,
    Progress,
    Shutdown,
    Submit,
    ToGenerator,
    WeightsLoaded,
    WeightsReady,
)
from scalerl.model.device import open_device
from scalerl.model.load import load_model
from scalerl.pipeline.weights import WeightStore

SIGN_OF_LIFE_S = 1.0


class GeneratorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a generator needs to start, in this process or another. Set by the pipeline."""

    model_path: str  # HF folder: the architecture; the weights of version 0 come through the store
    weights: Literal["float32", "bfloat16"]
    fp32_head: bool
    temperature: float
    max_new_tokens: int
    max_length: int  # longest prompt, training or held-out, plus max_new_tokens
    slots: int
    recompute_kv: bool
    end_ids: tuple[int, ...]
    interruption: Interruption | None
    threads: int
    device: str = "cpu"  # as `open_device` has it
    cuda_graphs: bool = True


def build_engine(
    spec: GeneratorSpec, model: PreTrainedModel, *, version: int = 0, greedy: bool = False
) -> Engine:
    """An engine on `model` as `spec` says; `greedy` is for evaluation only."""
    return Engine(
        model,
        slots=spec.slots,
        max_length=spec.max_length,
        params=SamplingParams(
            temperature=spec.temperature, max_new_tokens=spec.max_new_tokens, greedy=greedy
        ),
        interruption=spec.interruption,
        end_ids=spec.end_ids,
        version=version,
        fp32_head=spec.fp32_head,
        static=spec.cuda_graphs and model.device.type == "cuda",
    )


def build_loop(
    spec: GeneratorSpec, store: WeightStore, clock: Callable[[], float] = time.monotonic
) -> GeneratorLoop:
    """A generator as `spec` says, waiting for weights and work."""
    model = load_model(Path(spec.model_path), spec.weights, open_device(spec.device))
    return GeneratorLoop(
        build_engine(spec, model),
        lambda version: build_engine(spec, model, version=version),
        store,
        recompute_kv=spec.recompute_kv,
        clock=clock,
    )


@dataclasses.dataclass(slots=True, kw_only=True)
class _Evaluation:
    step: int
    engine: Engine
    started: float
    counters: Counters  # when it began
    completions: list[Completion]


class GeneratorLoop:
    """One generator.

    consumes:      Submit, WeightsReady, Evaluate (in the order they were posted)
    produces:      Progress with finished completions, WeightsLoaded, Evaluated
    waits for:     nothing; `idle` says that the next tick would have nothing to do
    unblocked by:  any posted message

    An evaluation stops the rollouts where they are and pins the weights: messages that come
    meanwhile wait until it is done.
    """

    def __init__(
        self,
        engine: Engine,
        make_evaluator: Callable[[int], Engine],
        store: WeightStore,
        *,
        recompute_kv: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._make_evaluator = make_evaluator  # version → engine on the same weights, own KV cache
        self._store = store
        self._recompute_kv = recompute_kv
        self._clock = clock
        self._inbox: deque[ToGenerator] = deque()
        self._evaluation: _Evaluation | None = None
        self._busy_s = self._idle_s = self._evaluation_s = 0.0
        self.loaded = -1  # version of the weights read last
        self._last_word = -math.inf
        self.stopped = False

    @property
    def idle(self) -> bool:
        return not (self._inbox or self._evaluation or self._engine.has_work)

    def post(self, message: ToGenerator) -> None:
        if isinstance(message, Shutdown):
            self.stopped = True  # at once, also during an evaluation
        self._inbox.append(message)

    def engine_state(self) -> tuple[EngineState, dict[str, Tensor]]:
        """The engine between two ticks, with the requests posted and not looked at. Weights that
        were posted are published again on a resume."""
        if self._evaluation or any(isinstance(m, Evaluate) for m in self._inbox):
            raise ValueError("an engine is not saved during an evaluation")
        state, tensors = snapshot.take(self._engine)
        posted = [r for m in self._inbox if isinstance(m, Submit) for r in m.requests]
        return msgspec.structs.replace(state, queue=(*state.queue, *posted)), tensors

    def restore(
        self,
        engine: EngineState,
        tensors: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        counters: Counters,
        loaded: int,
    ) -> None:
        """Go on from `engine_state`, with weights that are the newest ones published then."""
        snapshot.put(self._engine, engine, tensors, weights)
        self._busy_s, self._idle_s = counters.busy_s, counters.idle_s
        self._evaluation_s = counters.evaluation_s
        self.loaded = loaded

    def rest(self, seconds: float) -> None:
        """The caller waited this long because there was nothing to do."""
        self._idle_s += seconds

    def tick(self) -> list[FromGenerator]:
        """Handle what was posted, then do one engine step."""
        replies: list[FromGenerator] = []
        started = self._clock()
        while self._inbox and not self._evaluation and not self.stopped:
            self._handle(self._inbox.popleft(), replies)
        if self._evaluation:
            self._evaluation.completions += self._evaluation.engine.step()
            self._evaluation_s += self._clock() - started
            if not self._evaluation.engine.has_work:
                replies.append(self._evaluated())
        else:
            finished = self._engine.step() if self._engine.has_work else []
            self._busy_s += self._clock() - started
            if finished:
                replies.append(self._progress(finished))
        if not replies and self._clock() - self._last_word >= SIGN_OF_LIFE_S:
            replies.append(self._progress([]))
        if replies:
            self._last_word = self._clock()
        return replies

    def _handle(self, message: ToGenerator, replies: list[FromGenerator]) -> None:
        match message:
            case Submit(requests=requests):
                self._engine.submit(requests)
            case WeightsReady(version=version):
                if version > self.loaded:  # told twice or too late, it is only acknowledged
                    tensors = self._store.read(message)
                    self._engine.load_weights(tensors, version, recompute_kv=self._recompute_kv)
                    self.loaded = version
                replies.append(WeightsLoaded(version=message.version, slot=message.slot))
            case Evaluate(step=step, requests=requests):
                engine = self._make_evaluator(self._engine.version)
                engine.submit(requests)
                self._evaluation = _Evaluation(
                    step=step,
                    engine=engine,
                    started=self._clock(),
                    counters=self.counters(),
                    completions=[],
                )
            case Shutdown():
                pass  # `post` has seen to it

    def _evaluated(self) -> Evaluated:
        done = self._evaluation
        assert done is not None
        self._evaluation = None
        return Evaluated(
            step=done.step,
            version=done.engine.version,
            completions=tuple(done.completions),
            seconds=self._clock() - done.started,
            counters=done.counters,
        )

    def _progress(self, completions: list[Completion]) -> Progress:
        return Progress(
            completions=tuple(completions),
            version=self._engine.version,
            counters=self.counters(),
        )

    def counters(self) -> Counters:
        return Counters(
            tokens_generated=self._engine.tokens_generated,
            tokens_in_flight=self._engine.tokens_in_flight,
            busy_s=self._busy_s,
            idle_s=self._idle_s,
            evaluation_s=self._evaluation_s,
        )
