"""A run put together: every part made from the configuration, and the state that outlives a crash.

Config ─▶ start model, prompts ─▶ Trainer, Rollouts(fleet, buffer, stream, ledger) ─▶ loop.train
                                      ▲
                 checkpoint ─ restore ┘
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedTokenizerBase

from scalerl.algorithm.effective import Rules
from scalerl.algorithm.length_penalty import LengthPenalty
from scalerl.algorithm.losses import make_loss
from scalerl.config import Config, axes
from scalerl.data.curriculum import PromptStream
from scalerl.errors import InputError
from scalerl.generate import slots
from scalerl.generate.sampling import request_seed
from scalerl.generate.thinking import ending_in_text
from scalerl.messages import Prompt, Request
from scalerl.model.attention import training_attention
from scalerl.model.load import end_ids, load_model, load_tokenizer, on_device
from scalerl.model.lora import add_lora
from scalerl.pipeline import ranks
from scalerl.pipeline.buffer import Buffer, make_regime
from scalerl.pipeline.devices import generator_device, trainer_device
from scalerl.pipeline.fleet import Fleet, InlineFleet, ProcessFleet
from scalerl.pipeline.generator import GeneratorSpec, build_loop
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import Compute
from scalerl.pipeline.process import generator_main
from scalerl.pipeline.prompts import make_scorer, run_prompts
from scalerl.pipeline.records import RunDirectory
from scalerl.pipeline.rollouts import Rollouts, RolloutSettings
from scalerl.pipeline.scoring import Scoring, make_score
from scalerl.pipeline.weights import HostStore, InProcessStore, SharedWeights, WeightStore, pack
from scalerl.rewards.exact import THINK_END
from scalerl.rewards.scorer import Scorer
from scalerl.train.batches import PassLimits
from scalerl.train.step import OptimizerSettings, Trainer

WEIGHT_BUFFERS = 4  # one may be held for an evaluation


@dataclasses.dataclass(slots=True, kw_only=True)
class Run:
    """Everything `loop.train` works with. `version` counts the optimiser steps done."""

    config: Config
    directory: RunDirectory
    start_path: Path  # HF folder of the start model; its tokenizer is the run's
    rules: Rules
    trainer: Trainer
    rollouts: Rollouts
    fleet: Fleet
    heldout: list[Prompt]
    decode: Callable[[tuple[int, ...]], str]
    request_heldout: Callable[[int], list[Request]]
    scorer: Scorer
    scoring: Scoring  # of the scorer
    compute: Compute
    clock: Callable[[], float]
    shared: SharedWeights | None
    version: int = 0
    asked: dict[int, tuple[Compute, int]] = dataclasses.field(default_factory=dict)
    """Evaluations under way: step → compute and epoch when its weights were made."""

    @property
    def inline(self) -> bool:
        """Whether generators share this process, so that their time is not the trainer's wait."""
        return isinstance(self.fleet, InlineFleet)

    def compute_now(self) -> Compute:
        """Compute of the run up to this moment, as far as the generators have reported."""
        return self.compute.with_generators([*self.rollouts.counters, self.rollouts.gone])

    def close(self, grace_s: float = 5.0) -> None:
        """End the generators and free the shared memory; nothing is left behind.

        Args:
            grace_s: what they get to end by themselves before they are killed.
        """
        self.scorer.close()
        self.fleet.close(grace_s)
        self.trainer.close()
        if self.shared is not None:
            self.shared.close()


def open_run(
    config: Config,
    directory: RunDirectory,
    start_path: Path,
    *,
    trained_path: Path | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Run:
    """Make every part, at version 0. Generators are started; call `close` whatever happens.

    Args:
        start_path: HF folder of the model that training starts from.
        trained_path: HF folder of a checkpoint's weights to go on with.
    """
    torch.set_num_threads(config.execution.threads)
    tokenizer = load_tokenizer(start_path)
    loaded = run_prompts(config, tokenizer, warn=lambda text: print(text, file=sys.stderr))
    training, heldout = loaded.training, loaded.heldout
    spec = generator_spec(config, start_path, tokenizer, [*training, *heldout])
    with ExitStack() as unless_ready:
        scorer = make_scorer(config, loaded)
        unless_ready.callback(scorer.close)
        scoring = Scoring(scorer, tokenizer.decode)
        if config.model.lora.rank:  # a checkpoint's model has the adapters in it already
            trained_path = None
        trainer = ranks.open_trainer(config, trained_path or start_path, make_trainer)
        unless_ready.callback(trainer.close)
        fleet, store, shared = make_fleet(config, spec, trainer, clock)
        run = Run(
            config=config,
            directory=directory,
            start_path=start_path,
            rules=make_rules(config),
            trainer=trainer,
            rollouts=make_rollouts(config, training, scoring, trainer, fleet, store, clock),
            fleet=fleet,
            heldout=heldout,
            decode=lambda ids: str(tokenizer.decode(list(ids))),
            request_heldout=lambda step: [
                make_request(config, "evaluation", step, prompt, sample, index)
                for index, prompt in enumerate(heldout)
                for sample in range(config.evaluation.completions)
            ],
            scorer=scorer,
            scoring=scoring,
            compute=Compute(),
            clock=clock,
            shared=shared,
        )
        unless_ready.pop_all()
    return run


def make_rollouts(
    config: Config,
    prompts: list[Prompt],
    scoring: Scoring,
    trainer: Trainer,
    fleet: Fleet,
    store: WeightStore,
    clock: Callable[[], float],
) -> Rollouts:
    """What asks the fleet for completions of `prompts` and hands their groups to the trainer."""
    return Rollouts(
        fleet=fleet,
        store=store,
        buffer=Buffer(make_regime(config.regime, config.batch.groups), config.batch.groups),
        stream=make_stream(config, prompts),
        ledger=Ledger(),
        rules=make_rules(config),
        settings=RolloutSettings(
            completions=config.batch.completions,
            slots=config.sampling.slots,
            last_version=config.steps,
            dynamic_limit=config.algorithm.dynamic_limit,
            stall_s=config.execution.stall_s,
            restarts=config.execution.restarts,
            vocabulary=trainer.model.config.get_text_config().vocab_size,
        ),
        score=make_score(scoring, waits=scores_are_waited_for(config)),
        scores=scoring.collect,
        request=lambda group, prompt, sample: make_request(
            config, "rollout", group, prompt, sample, group
        ),
        clock=clock,
    )


def make_trainer(config: Config, model_path: Path, kind: type[Trainer] = Trainer) -> Trainer:
    """A trainer on the model in `model_path`; every rank of a sharded one makes its own."""
    bounds = config.loss.model_dump(exclude={"type"})
    o, lora = config.optimizer, config.model.lora
    device = trainer_device(config)
    attention = training_attention(config.model.attention, device, config.model.weights)
    model = load_model(model_path, config.model.weights, attention=attention)
    if lora.rank:
        add_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=config.seed)
    return kind(
        on_device(model, device),
        make_loss(config.loss.type, **bounds),
        OptimizerSettings(
            lr=o.lr,
            warmup_steps=o.warmup_steps,
            betas=(o.beta1, o.beta2),
            eps=o.eps,
            weight_decay=o.weight_decay,
            clip_norm=o.clip_norm,
            skip_budget=o.skip_budget,
        ),
        temperature=config.sampling.temperature,
        fp32_head=config.model.fp32_head,
        limits=PassLimits(rows=config.batch.rows_per_pass, tokens=config.batch.tokens_per_pass),
        activation_checkpointing=config.execution.activation_checkpointing,
        offload_optimizer=config.execution.offload_optimizer,
    )


def scores_are_waited_for(config: Config) -> bool:
    """Where the order of all things is fixed, a slow check must not change it."""
    return config.execution.mode == "interleaved" or isinstance(config.regime, axes.Synchronous)


def make_rules(config: Config) -> Rules:
    penalty = None
    if isinstance(config.length, axes.LengthPenalty):
        penalty = LengthPenalty(length_max=config.length.limit, length_cache=config.length.cache)
    return Rules(
        aggregation=config.algorithm.aggregation,
        normalisation=config.algorithm.advantage,
        zero_variance=config.algorithm.zero_variance,
        truncated=config.algorithm.truncated,
        penalty=penalty,
    )


def make_stream(config: Config, prompts: list[Prompt]) -> PromptStream:
    if isinstance(config.curriculum, axes.NoPositiveResampling):
        threshold = config.curriculum.threshold
    else:
        threshold = 1.0
    return PromptStream(
        prompts, seed=config.seed, curriculum=config.curriculum.type, threshold=threshold
    )


def make_request(
    config: Config, purpose: str, step: int, prompt: Prompt, sample: int, group: int
) -> Request:
    """A completion to sample, with random numbers of its own.

    Args:
        step: what tells visits of a prompt apart: the group's ordinal, or the evaluation's step.
        group: what the completion will be filed under.
    """
    interrupt_at = None
    if isinstance(config.length, axes.Interruption):
        low, high = config.length.low, config.length.high
        key = request_seed(config.seed, f"{purpose} interruption", step, prompt.id, sample)
        interrupt_at = low + key % (high - low + 1)
    return Request(
        group=group,
        sample=sample,
        prompt_ids=prompt.token_ids,
        seed=request_seed(config.seed, purpose, step, prompt.id, sample),
        interrupt_at=interrupt_at,
    )


def generator_spec(
    config: Config, model_path: Path, tokenizer: PreTrainedTokenizerBase, prompts: list[Prompt]
) -> GeneratorSpec:
    longest = max(len(p.token_ids) for p in prompts)
    return GeneratorSpec(
        model_path=str(model_path),
        weights=config.model.weights,
        fp32_head=config.model.fp32_head,
        temperature=config.sampling.temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        max_length=longest + config.sampling.max_new_tokens,
        slots=config.sampling.slots,
        recompute_kv=config.sampling.recompute_kv,
        end_ids=end_ids(model_path, tokenizer),
        interruption=make_interruption(config, tokenizer),
        threads=config.execution.threads,
        cuda_graphs=config.execution.cuda_graphs,
    )


def make_interruption(
    config: Config, tokenizer: PreTrainedTokenizerBase
) -> slots.Interruption | None:
    """The forced end of thinking in the tokens of this model; None without interruptions.

    Raises:
        InputError: the phrase leaves no room for an answer, or the tokenizer cannot spell it.
    """
    length, limit = config.length, config.sampling.max_new_tokens
    if not isinstance(length, axes.Interruption):
        return None
    phrase = tuple(tokenizer.encode(length.phrase, add_special_tokens=False))
    pieces = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    end = ending_in_text(THINK_END, pieces)
    if not end.reached(phrase):
        raise InputError(f"length.phrase: the tokenizer cannot spell {length.phrase!r}")
    if length.high + len(phrase) >= limit:
        raise InputError(
            f"length.high: a completion interrupted at {length.high} tokens and the phrase's "
            f"{len(phrase)} leave no room for an answer below sampling.max_new_tokens ({limit})"
        )
    return slots.Interruption(
        phrase_ids=phrase, end_thinking=end, solution_tokens=length.solution_tokens
    )


def make_fleet(
    config: Config, spec: GeneratorSpec, trainer: Trainer, clock: Callable[[], float]
) -> tuple[Fleet, WeightStore, SharedWeights | None]:
    """The only place where it is chosen whether generators have processes of their own."""
    generators = config.execution.generators
    specs = [
        msgspec.structs.replace(spec, device=generator_device(config, i)) for i in range(generators)
    ]
    if config.execution.mode == "interleaved":
        store = InProcessStore(WEIGHT_BUFFERS, readers=generators)
        return InlineFleet([build_loop(s, store, clock) for s in specs]), store, None
    shared = SharedWeights(len(pack(trainer.weights())), WEIGHT_BUFFERS)
    store = HostStore(shared.buffers, readers=generators)
    arguments = [(msgspec.msgpack.encode(s), shared) for s in specs]
    fleet = ProcessFleet(generator_main, arguments, silence_s=config.execution.stall_s)
    return fleet, store, shared
