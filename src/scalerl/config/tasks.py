"""Settings of prompts, rewards and supervised stages: what is learnt, and from what."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, field_validator

from scalerl.config.section import Section


class Source(Section):
    """One source of prompts. Several make a mix, each with a curve of its own."""

    path: str = Field(
        description="a .jsonl, .parquet or .csv file; hub:OWNER/NAME or the folder of a saved data "
        "set or of files; reasoning_gym:NAME?size=200&seed=0; verifiers:TASKSET?setting=value; or "
        "chain, the embedded task"
    )
    task: str = Field(default="", description="name of its curve; empty: the source's own name")
    columns: str = Field(
        default="",
        description="a published shape: polaris, deepcoder, dapo, gsm8k, math500, aime24, aime25, "
        "livecodebench; empty: plain columns `prompt` and `answer`",
    )
    prompt: str = Field(default="", description="column of the prompt, where the shape's is not it")
    answer: str = Field(default="", description="column of the answer, where the shape's is not it")
    subset: str = Field(default="", description="configuration of a hub data set")
    split: str = Field(default="", description="split of a data set; empty: the shape's")
    streaming: bool = Field(default=False, description="read a hub data set without storing it")
    limit: int = Field(default=0, ge=0, description="use this many first rows; 0: all")
    suffix: str = Field(
        default="", description="text added to every prompt, such as how to state the answer"
    )
    reward: str = Field(
        default="",
        description="math, exact, code, or package.module:function of your own; empty: the shape's",
    )
    threshold: float = Field(
        default=1.0, gt=0, le=1, description="a score of at least this counts as correct"
    )
    use: Literal["both", "train", "heldout"] = Field(
        default="both", description="split by content, or only train on it, or only evaluate on it"
    )
    weight: float | None = Field(
        default=None,
        gt=0,
        description="share of the training mix; the scarcest source gives all its prompts and the "
        "others are cut to it; none set: all prompts of all",
    )


class Data(Section):
    task: Literal["chain"] = Field(
        default="chain", description="the embedded task, used where `sources` is empty"
    )
    sources: tuple[Source, ...] = Field(
        default=(), description="where prompts come from; a list of [[data.sources]]"
    )
    heldout_share: float = Field(
        default=0.1, gt=0, lt=1, description="share of each source held out, chosen by content"
    )
    max_prompt_tokens: PositiveInt = Field(
        default=2048, description="longest prompt, chat template included; of `sources`"
    )
    on_error: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="rows with errors (no answer, too long, contradicting): end before the start, "
        "or leave them out and say so",
    )
    train_prompts: PositiveInt = Field(default=2000, description="prompts of one epoch")
    validation_prompts: PositiveInt = Field(
        default=256, description="held-out prompts, none in training"
    )
    seed: int = Field(default=0, ge=0, description="seed of the prompts, apart from the run's own")
    max_operations: int = Field(
        default=6, ge=1, le=12, description="operations of the longest chain"
    )

    @property
    def longest_chain(self) -> int:
        """Tokens of the embedded task's longest prompt, `3a+8b-4c*7=`."""
        return 3 * self.max_operations + 2

    @field_validator("on_error", mode="before")
    @classmethod
    def _never_cut(cls, value: object) -> object:
        if value == "truncate":
            raise ValueError(
                "a question is never cut, for without its end it is another with another answer: "
                "use 'refuse' or 'drop', or raise data.max_prompt_tokens"
            )
        return value


class Rewards(Section):
    """How completions are checked; which check a task has is said by its source."""

    mode: Literal["strict", "lenient"] = Field(
        default="strict",
        description="an answer counts only where answers are stated, or also the last number",
    )
    workers: PositiveInt = Field(default=1, description="processes for checks that take time")
    limit_s: float = Field(default=3.0, gt=0, description="seconds a check may take")
    memory_mb: int = Field(default=2048, ge=256, description="address space of a worker")
    allow_unsandboxed_code: bool = Field(
        default=False, description="run model-written code even where no sandbox works"
    )


class Supervised(Section):
    """The supervised stage that makes the start model when `model.path` is empty."""

    steps: PositiveInt = Field(default=1600, description="optimiser steps")
    rows: PositiveInt = Field(default=32, description="traces a step")
    lr: float = Field(default=4e-3, gt=0, description="peak learning rate, decayed linearly to 0")
    warmup_steps: int = Field(default=40, ge=0)
    seed: int = Field(default=0, ge=0, description="seed of weights, teacher and order of traces")
    right_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="share of right answers among those shown of tasks other than chain",
    )


class Sft(Section):
    """`scalerl sft` on a file of traces (paper A.3: 2M tokens a step, 12,288 a trace, 3e-5)."""

    data: str = Field(
        default="",
        description=".jsonl or .parquet with `messages`, or `prompt` and `answer`; empty: the "
        "embedded stage of [supervised]",
    )
    against: tuple[str, ...] = Field(
        default=(), description="files of benchmark prompts; traces of these leave"
    )
    heldout_share: float = Field(
        default=0.02, gt=0, lt=1, description="share of the prompts for the evaluation loss"
    )
    max_tokens: PositiveInt = Field(
        default=12288, description="longest trace, prompt included; longer ones leave"
    )
    trivial_pass_rate: float = Field(
        default=1.0, gt=0, description="rows whose `pass_rate` is at least this leave"
    )
    steps: PositiveInt = Field(default=100, description="optimiser steps")
    tokens_per_step: PositiveInt = Field(default=65536, description="tokens of a step's traces")
    tokens_per_pass: PositiveInt = Field(
        default=8192, description="tokens of a pass and of a packed row; no effect on the gradient"
    )
    packing: bool = Field(default=True, description="several traces in a row")
    lr: float = Field(default=3e-5, gt=0, description="peak learning rate")
    schedule: Literal["constant", "linear", "cosine"] = Field(default="cosine")
    warmup_steps: int = Field(default=10, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    evaluate_every: PositiveInt = Field(default=20, description="steps between evaluation losses")
    checkpoint_every: PositiveInt = Field(default=50, description="steps between checkpoints")
    seed: int = Field(default=0, ge=0, description="seed of the order of traces")
