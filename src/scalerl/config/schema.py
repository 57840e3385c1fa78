"""Every setting of a run, typed and frozen. Importable without torch.

The defaults are the laptop experiment with the ScaleRL recipe. What is learnt stands in `tasks`,
the axes of the study in `axes`; here are the model, what watches and keeps a run, and the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt, field_validator

from scalerl.config.axes import (
    Algorithm,
    Batch,
    Cispo,
    CurriculumConfig,
    Interruption,
    LengthConfig,
    LengthPenalty,
    LossConfig,
    NoPositiveResampling,
    Optimizer,
    Pipeline,
    PpoOffPolicy,
    RegimeConfig,
    Sampling,
)
from scalerl.config.section import Conflict, Section
from scalerl.config.tasks import Data, Rewards, Sft, Supervised


class TinyModel(Section):
    """The embedded model, used when `model.path` is empty: a Llama of about 10^5 parameters."""

    hidden: PositiveInt = Field(default=64, description="width of the residual stream")
    layers: PositiveInt = Field(default=2, description="transformer blocks")
    heads: PositiveInt = Field(default=4, description="query heads; one key-value head")
    feed_forward: PositiveInt = Field(default=192, description="width of the SwiGLU layer")
    characters: Literal["chain", "ascii"] = Field(
        default="chain",
        description="what the tokenizer knows: the signs of the embedded task, or printable ASCII",
    )
    positions: ClassVar[int] = 128  # tokens of a prompt and its completion

    def conflicts(self) -> Iterator[Conflict]:
        if self.hidden % (2 * self.heads):
            yield Conflict(
                ("hidden", "heads"),
                f"hidden ({self.hidden}) must be a multiple of twice heads ({self.heads}): each "
                "head has an even share of it, which rotary positions take in pairs",
            )


class Lora(Section):
    """Train low-rank factors beside frozen weights; generators get the merged weights."""

    rank: int = Field(default=0, ge=0, description="0: off, all weights are trained")
    alpha: PositiveInt = Field(default=16, description="factors are scaled by alpha / rank")
    targets: tuple[str, ...] = Field(
        default=(), description="names such as q_proj; empty: every linear layer but the head"
    )


class Model(Section):
    path: str = Field(
        default="",
        description="HF folder, .gguf file, hub name (owner/name) or smollm2; empty: the embedded "
        "model",
    )
    tiny: TinyModel = TinyModel()
    lora: Lora = Lora()
    weights: Literal["float32", "bfloat16"] = Field(
        default="float32", description="weights the forward pass uses, on both sides"
    )
    attention: Literal["sdpa", "flash_attention_2", "flex_attention"] = Field(
        default="sdpa",
        description="of training passes, by its name in transformers; all but sdpa need a card",
    )
    fp32_head: bool = Field(
        default=True,
        description="LM-head product and log-softmax in FP32, on both sides (paper 3.2)",
    )


class Evaluation(Section):
    every: PositiveInt = Field(
        default=5, description="optimiser steps between evaluations; 0 is one too"
    )
    completions: PositiveInt = Field(
        default=16, description="completions a held-out prompt: mean@k"
    )


class Monitor(Section):
    on_alarm: Literal["warn", "stop", "rollback"] = Field(
        default="warn",
        description="what a red alarm (truncation, drawdown, mismatch, entropy) does",
    )
    rollbacks: int = Field(default=2, ge=0, description="rollbacks a run may make before it ends")


class Checkpoint(Section):
    every: PositiveInt = Field(default=20, description="optimiser steps between checkpoints")
    keep_every: int = Field(default=0, ge=0, description="also keep each n-th for good; 0: none")


class Execution(Section):
    mode: Literal["async", "interleaved"] = Field(
        default="async",
        description="generator processes beside the trainer, or one deterministic process",
    )
    device: str = Field(
        default="cpu",
        description="cpu; cuda:N, everything on that card; or cuda: trainer ranks on the first "
        "cards, one each, and generators in turn on those left, or on the same if none is",
    )
    cuda_graphs: bool = Field(
        default=True, description="on a card, decode steps are captured as CUDA graphs"
    )
    generators: PositiveInt = Field(default=1, description="generator processes (async mode)")
    threads: PositiveInt = Field(default=1, description="torch threads a process")
    trainer_ranks: PositiveInt = Field(
        default=1,
        description="processes that share the trainer's weights, optimiser and rows (FSDP); under "
        "torchrun its own number counts",
    )
    activation_checkpointing: bool = Field(
        default=False,
        description="the trainer keeps layer inputs only and computes the rest again: less memory, "
        "more time",
    )
    offload_optimizer: bool = Field(
        default=False, description="master weights and AdamW's moments live in CPU memory"
    )
    stall_s: float = Field(
        default=300.0,
        gt=0,
        description="a generator without a sign of life, or without any progress while it is "
        "waited for, for so many seconds is killed and started again; a trainer rank ends the run",
    )
    restarts: int = Field(
        default=3, ge=0, description="lost generators that are started again before the run ends"
    )
    grace_s: float = Field(
        default=30.0,
        gt=0,
        description="seconds that a checkpoint after SIGTERM or Ctrl-C may take before the run "
        "ends without it",
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise ValueError(f"{device!r} is not cpu, cuda or cuda:N")
        return device

    def conflicts(self) -> Iterator[Conflict]:
        if self.trainer_ranks > 1 and self.device.startswith("cuda:"):
            yield Conflict(
                ("trainer_ranks", "device"),
                f"device = {self.device!r} is one card, and trainer_ranks = {self.trainer_ranks} "
                "need one each: set device = 'cuda'",
            )


class Config(Section):
    recipe: str = Field(default="scalerl", description="name of the recipe the axes started from")
    seed: int = Field(default=0, ge=0, description="seed of everything random in the run")
    steps: PositiveInt = Field(default=100, description="optimiser steps of the run")
    model: Model = Model()
    data: Data = Data()
    rewards: Rewards = Rewards()
    supervised: Supervised = Supervised()
    sft: Sft = Sft()
    batch: Batch = Batch()
    sampling: Sampling = Sampling()
    length: LengthConfig = Interruption()
    loss: LossConfig = Cispo()
    algorithm: Algorithm = Algorithm()
    curriculum: CurriculumConfig = NoPositiveResampling()
    regime: RegimeConfig = Pipeline()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    monitor: Monitor = Monitor()
    checkpoint: Checkpoint = Checkpoint()
    execution: Execution = Execution()

    def conflicts(self) -> Iterator[Conflict]:
        yield from self._lengths()
        yield from self._dynamic_sampling()
        if not self.model.fp32_head and self.model.weights == "float32":
            yield Conflict(
                ("model.fp32_head", "model.weights"),
                "model.fp32_head = false changes nothing while model.weights = 'float32': the head "
                "then runs in FP32 anyway; set model.weights = 'bfloat16'",
            )
        if self.sampling.recompute_kv and not isinstance(self.regime, Pipeline):
            yield Conflict(
                ("sampling.recompute_kv", "regime.type"),
                f"sampling.recompute_kv changes nothing with regime.type = {self.regime.type!r}: "
                "no completion is in flight when weights change",
            )

    def _lengths(self) -> Iterator[Conflict]:
        limit = self.sampling.max_new_tokens
        prompt = 0 if self.data.sources else self.data.longest_chain
        if not self.model.path and prompt + limit > TinyModel.positions:
            room = f"{TinyModel.positions} positions"
            room += f", of which the longest prompt takes {prompt}" if prompt else ""
            yield Conflict(
                ("sampling.max_new_tokens", "data.max_operations", "model.path"),
                f"sampling.max_new_tokens ({limit}) is too much for the embedded model: it has "
                f"{room}; set model.path for longer completions",
            )
        if isinstance(self.length, Interruption):
            if self.length.high >= limit:
                yield Conflict(
                    ("length.high", "sampling.max_new_tokens"),
                    f"length.high ({self.length.high}) leaves no room for an answer below "
                    f"sampling.max_new_tokens ({limit})",
                )
            if self.length.solution_tokens > limit:
                yield Conflict(
                    ("length.solution_tokens", "sampling.max_new_tokens"),
                    f"length.solution_tokens ({self.length.solution_tokens}) is above "
                    f"sampling.max_new_tokens ({limit}), the limit of thinking and answer together",
                )
        if isinstance(self.length, LengthPenalty) and self.length.limit > limit:
            yield Conflict(
                ("length.limit", "sampling.max_new_tokens"),
                f"length.limit ({self.length.limit}) is above sampling.max_new_tokens ({limit}): "
                "the penalty would never be full",
            )

    def _dynamic_sampling(self) -> Iterator[Conflict]:
        if self.algorithm.zero_variance != "dynamic":
            default = Algorithm().dynamic_limit  # a file written by a run has every default in it
            if self.algorithm.dynamic_limit != default:
                yield Conflict(
                    ("algorithm.dynamic_limit", "algorithm.zero_variance"),
                    "algorithm.dynamic_limit changes nothing while algorithm.zero_variance = "
                    f"{self.algorithm.zero_variance!r}: it bounds the refill of 'dynamic'",
                )
            return
        if self.batch.oversample != 1.0:
            yield Conflict(
                ("batch.oversample", "algorithm.zero_variance"),
                "algorithm.zero_variance = 'dynamic' refills the batch itself: "
                "set batch.oversample = 1",
            )
        if isinstance(self.regime, PpoOffPolicy):
            yield Conflict(
                ("algorithm.zero_variance", "regime.type"),
                "algorithm.zero_variance = 'dynamic' draws as many prompts as a step needs, but "
                "regime.type = 'ppo_off_policy' fixes how many a phase generates: use "
                "'filter' with batch.oversample, or another regime",
            )
