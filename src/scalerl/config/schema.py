"""Every setting of a run, typed and frozen. Importable without torch.

The defaults are the laptop experiment with the ScaleRL recipe. Axes that take one of several
forms (`loss`, `length`, `regime`, `curriculum`) are unions told apart by `type`, each form with
defaults of its own. A knob is here because a study turns it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, field_validator, model_validator


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


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

    @model_validator(mode="after")
    def _whole_distribution(self) -> Sampling:
        if self.top_p != 1.0 or self.top_k != 0:
            raise ValueError(
                "training samples the whole distribution: set top_p = 1 and top_k = 0, or the "
                "recorded log-probs are of another distribution than the trainer's"
            )
        return self


class Interruption(Section):
    """Force the end of thinking at a budget drawn uniformly for each completion (paper A.10)."""

    type: Literal["interruption"] = "interruption"
    low: PositiveInt = Field(default=38, description="least thinking budget, tokens")
    high: PositiveInt = Field(default=40, description="greatest thinking budget, tokens")
    solution_tokens: PositiveInt = Field(default=8, description="tokens allowed after the phrase")
    phrase: str = Field(
        default="</think>", description="text forced in; ends with the end of thinking"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Interruption:
        if self.low > self.high:
            raise ValueError(f"low ({self.low}) is above high ({self.high})")
        return self


class LengthPenalty(Section):
    """Add clip((limit − |y|)/cache − 1, −1, 0) to the reward of correct completions (DAPO)."""

    type: Literal["penalty"] = "penalty"
    limit: PositiveInt = Field(default=48, description="L_max, tokens")
    cache: PositiveInt = Field(
        default=8, description="L_cache, tokens over which the penalty grows"
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
        "waited for, for so many seconds is killed and started again",
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

    @model_validator(mode="after")
    def _card_each(self) -> Execution:
        if self.trainer_ranks > 1 and self.device.startswith("cuda:"):
            raise ValueError(
                f"device = {self.device!r} is one card, and trainer_ranks = {self.trainer_ranks} "
                "need one each: set device = 'cuda'"
            )
        return self


LossConfig = Annotated[Cispo | Dapo | Grpo | Gspo, Field(discriminator="type")]
LengthConfig = Annotated[
    Interruption | LengthPenalty | NoLengthControl, Field(discriminator="type")
]
CurriculumConfig = Annotated[NoPositiveResampling | Uniform, Field(discriminator="type")]
RegimeConfig = Annotated[Pipeline | PpoOffPolicy | Synchronous, Field(discriminator="type")]


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

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        limit = self.sampling.max_new_tokens
        if not self.model.fp32_head and self.model.weights == "float32":
            raise ValueError(
                "model.fp32_head = false changes nothing while model.weights = 'float32': the head "
                "then runs in FP32 anyway; set model.weights = 'bfloat16'"
            )
        if isinstance(self.length, Interruption) and self.length.high >= limit:
            raise ValueError(
                f"length.high ({self.length.high}) leaves no room for an answer below "
                f"sampling.max_new_tokens ({limit})"
            )
        if isinstance(self.length, LengthPenalty) and self.length.limit > limit:
            raise ValueError(
                f"length.limit ({self.length.limit}) is above sampling.max_new_tokens ({limit}): "
                "the penalty would never be full"
            )
        if self.algorithm.zero_variance == "dynamic" and self.batch.oversample != 1.0:
            raise ValueError(
                "algorithm.zero_variance = 'dynamic' refills the batch itself: "
                "set batch.oversample = 1"
            )
        if self.algorithm.zero_variance == "dynamic" and isinstance(self.regime, PpoOffPolicy):
            raise ValueError(
                "algorithm.zero_variance = 'dynamic' draws as many prompts as a step needs, but "
                "regime.type = 'ppo_off_policy' fixes how many a phase generates: use "
                "'filter' with batch.oversample, or another regime"
            )
        return self
