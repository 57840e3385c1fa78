"""The axes of the study: batch, sampling, length, loss, algorithm, curriculum, regime, optimiser.

Axes that take one of several forms are unions told apart by `type`, each form with defaults of its
own. A knob is here because a study turns it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator

from scalerl.config.section import Conflict, Section


class Batch(Section):
    prompts: PositiveInt = Field(default=32, description="prompts (groups) an optimiser step, P")
    completions: int = Field(default=16, ge=2, description="completions a prompt, G; at least 2")
    oversample: float = Field(
        default=1.0,
        ge=1.0,
        description="draw this many times `prompts` a step, to make up for zero-variance groups "
        "(the paper's 1280 against 768 completions is 1.667)",
    )
    rows_per_pass: PositiveInt = Field(
        default=64, description="completions a forward-backward pass; does not change the gradient"
    )
    tokens_per_pass: PositiveInt | None = Field(
        default=None,
        description="tokens a pass, padding included, beside the limit of rows; a longer "
        "completion has a pass of its own; does not change the gradient",
    )

    @property
    def groups(self) -> int:
        """Groups an optimiser step takes."""
        return round(self.prompts * self.oversample)


class Sampling(Section):
    temperature: float = Field(default=1.0, gt=0, description="log-probs on both sides follow it")
    top_p: float = Field(
        default=1.0, description="must be 1: truncated sampling biases every ratio"
    )
    top_k: int = Field(
        default=0, description="must be 0 (off): truncated sampling biases every ratio"
    )
    max_new_tokens: PositiveInt = Field(
        default=48, description="hard limit of a completion, in tokens"
    )
    slots: PositiveInt = Field(default=256, description="completions a generator samples at a time")
    recompute_kv: bool = Field(
        default=False,
        description="recompute the KV cache of completions in flight when weights change",
    )

    def conflicts(self) -> Iterator[Conflict]:
        for key, off in (("top_p", 1.0), ("top_k", 0)):
            if getattr(self, key) != off:
                yield Conflict(
                    (key,),
                    "training samples the whole distribution: set top_p = 1 and top_k = 0, or the "
                    "recorded log-probs are of another distribution than the trainer's",
                )


class Interruption(Section):
    """Force the end of thinking at a budget drawn uniformly for each completion (paper A.10)."""

    type: Literal["interruption"] = "interruption"
    low: PositiveInt = Field(default=38, description="least thinking budget, tokens")
    high: PositiveInt = Field(default=40, description="greatest thinking budget, tokens")
    solution_tokens: PositiveInt = Field(default=8, description="tokens allowed after the phrase")
    phrase: str = Field(
        default="</think>", description="text forced in; ends with the end of thinking"
    )

    def conflicts(self) -> Iterator[Conflict]:
        if self.low > self.high:
            yield Conflict(("low", "high"), f"low ({self.low}) is above high ({self.high})")

    @field_validator("phrase")
    @classmethod
    def _ends_thinking(cls, phrase: str) -> str:
        if not phrase.rstrip().endswith("</think>"):
            raise ValueError("the phrase must end with </think>: the answer comes after it")
        return phrase


class LengthPenalty(Section):
    """Add clip((limit − |y|)/cache − 1, −1, 0) to the reward of correct completions (DAPO)."""

    type: Literal["penalty"] = "penalty"
    limit: PositiveInt = Field(default=48, description="L_max, tokens")
    cache: PositiveInt = Field(
        default=8, description="L_cache, tokens over which the penalty grows"
    )

    def conflicts(self) -> Iterator[Conflict]:
        if self.cache > self.limit:
            yield Conflict(
                ("cache", "limit"),
                f"cache ({self.cache}) is above limit ({self.limit}): even the shortest completion "
                "would be too long",
            )


class NoLengthControl(Section):
    type: Literal["none"] = "none"


class Cispo(Section):
    type: Literal["cispo"] = "cispo"
    ratio_max: float = Field(default=5.0, ge=1, description="absolute cap of the importance ratio")


class Dapo(Section):
    type: Literal["dapo"] = "dapo"
    clip_low: float = Field(default=0.2, gt=0, lt=1, description="ratio clipped below 1 − clip_low")
    clip_high: float = Field(default=0.26, gt=0, description="ratio clipped above 1 + clip_high")


class Grpo(Section):
    type: Literal["grpo"] = "grpo"
    clip: float = Field(default=0.2, gt=0, lt=1, description="ratio clipped to 1 ± clip")


class Gspo(Section):
    type: Literal["gspo"] = "gspo"
    clip_low: float = Field(
        default=4e-3, gt=0, lt=1, description="sequence ratio clipped below 1 − clip_low"
    )
    clip_high: float = Field(
        default=5e-3, gt=0, description="sequence ratio clipped above 1 + clip_high"
    )


class Algorithm(Section):
    aggregation: Literal["prompt", "sample", "token"] = Field(
        default="prompt", description="what counts equally in the loss (paper 3.2)"
    )
    advantage: Literal["prompt", "batch", "none"] = Field(
        default="batch", description="whose standard deviation divides the advantage (paper 3.2)"
    )
    zero_variance: Literal["filter", "dynamic", "keep"] = Field(
        default="filter",
        description="groups whose rewards are all equal: leave the batch, are replaced by freshly "
        "drawn ones (DAPO's dynamic sampling), or stay",
    )
    dynamic_limit: PositiveInt = Field(
        default=8,
        description="dynamic sampling gives up after this many times the groups of a step",
    )
    truncated: Literal["exclude", "mask", "keep"] = Field(
        default="exclude",
        description="completions cut at the limit: leave first, lose their loss, or stay",
    )


class NoPositiveResampling(Section):
    type: Literal["no_positive_resampling"] = "no_positive_resampling"
    threshold: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="a visit with at least this pass rate retires the prompt",
    )


class Uniform(Section):
    type: Literal["uniform"] = "uniform"


class Pipeline(Section):
    """Generators stream; weights are pushed after every step into completions in flight."""

    type: Literal["pipeline"] = "pipeline"
    k: int = Field(
        default=8, ge=0, description="greatest staleness of a trained token, optimiser steps"
    )


class PpoOffPolicy(Section):
    """Generators make k batches with fixed weights, then the trainer takes k steps."""

    type: Literal["ppo_off_policy"] = "ppo_off_policy"
    k: int = Field(default=8, ge=1, description="optimiser steps a generation phase")


class Synchronous(Section):
    """One batch with the current weights, one step, in turn."""

    type: Literal["synchronous"] = "synchronous"


class Optimizer(Section):
    lr: float = Field(default=5e-4, gt=0, description="constant after warm-up")
    warmup_steps: int = Field(default=5, ge=0, description="linear warm-up, optimiser steps")
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-15, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0, description="greatest norm of the gradient")
    skip_budget: int = Field(
        default=5, ge=0, description="steps that may be skipped in a row for a non-finite gradient"
    )


LossConfig = Annotated[Cispo | Dapo | Grpo | Gspo, Field(discriminator="type")]
LengthConfig = Annotated[
    Interruption | LengthPenalty | NoLengthControl, Field(discriminator="type")
]
CurriculumConfig = Annotated[NoPositiveResampling | Uniform, Field(discriminator="type")]
RegimeConfig = Annotated[Pipeline | PpoOffPolicy | Synchronous, Field(discriminator="type")]
