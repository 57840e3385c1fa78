"""The supervised stage on a file of traces, from settings to a model folder; resumable.

settings, traces ─▶ learn ─▶ steps.jsonl ─ evaluation loss ─▶ curve.jsonl ─▶ checkpoints/step-N
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import safetensors
import torch

from scalerl.algorithm.losses import make_loss
from scalerl.config import Config, dump_toml
from scalerl.data.traces import ChatTrace, Traces, load_traces
from scalerl.errors import InputError
from scalerl.model.attention import training_attention
from scalerl.model.load import load_model, load_tokenizer, on_device
from scalerl.model.lora import add_lora
from scalerl.pipeline.devices import trainer_device
from scalerl.pipeline.ranks import launched
from scalerl.pipeline.records import RunDirectory
from scalerl.train import checkpoint
from scalerl.train.batches import PassLimits
from scalerl.train.sft import Trace
from scalerl.train.step import OptimizerSettings
from scalerl.train.supervised import Plan, SupervisedTrainer, length_of, steps_of

Say = Callable[[str], None]


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint of the stage holds beside model and optimiser."""

    step: int


def supervise_file(
    config: Config, path: Path, start: Path, *, resume: bool = False, say: Say = print
) -> Path:
    """Train on `sft.data` from the model in `start`; returns the last checkpoint's model folder.

    Raises:
        InputError: several ranks, or no such device; faults in the data; a folder that holds a run
            already, or none to resume.
        RunError: the loss is not finite, or the disk is full.
    """
    torch.set_num_threads(config.execution.threads)
    settings = config.sft
    if config.execution.trainer_ranks > 1 or launched():
        raise InputError("sft trains in one process: set execution.trainer_ranks = 1, no torchrun")
    trainer_device(config)  # refused before a folder is made
    tokenizer = load_tokenizer(start)
    traces = load_traces(
        Path(settings.data),
        tokenizer,
        max_tokens=settings.max_tokens,
        trivial_pass_rate=settings.trivial_pass_rate,
        heldout_share=settings.heldout_share,
        against=[Path(file) for file in settings.against],
    )
    say(f"{len(traces.training)} traces, {len(traces.heldout)} held out, removed: {traces.removed}")
    directory = RunDirectory.reopen(path) if resume else RunDirectory.create(path, config)
    found = checkpoint.latest(directory.checkpoints, say) if resume else None
    lora = config.model.lora.rank > 0
    trainer = make_supervised(config, found / "model" if found and not lora else start)
    done = 0
    if found:
        try:
            trainer.load_state(found)
            done = msgspec.json.decode((found / "stage.json").read_bytes(), type=Stage).step
            directory.from_step = done
        except (OSError, msgspec.DecodeError, safetensors.SafetensorError) as error:
            raise InputError(f"{found}: the checkpoint cannot be read: {error}") from error
    return _train(config, directory, trainer, traces, done, start, say)


def make_supervised(config: Config, model_path: Path) -> SupervisedTrainer:
    s, lora = config.sft, config.model.lora
    device = trainer_device(config)
    attention = training_attention(config.model.attention, device, config.model.weights)
    model = load_model(model_path, config.model.weights, attention=attention)
    if lora.rank:
        add_lora(model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=s.seed)
    trainer = SupervisedTrainer(
        on_device(model, device),
        make_loss("cispo", ratio_max=5.0),  # not used: there are no rewarded rows
        OptimizerSettings(
            lr=s.lr,
            warmup_steps=s.warmup_steps,
            betas=(config.optimizer.beta1, config.optimizer.beta2),
            eps=1e-8,
            weight_decay=s.weight_decay,
            clip_norm=config.optimizer.clip_norm,
            skip_budget=0,
        ),
        temperature=1.0,
        fp32_head=config.model.fp32_head,
        limits=PassLimits(rows=config.batch.rows_per_pass, tokens=s.tokens_per_pass),
        activation_checkpointing=config.execution.activation_checkpointing,
        offload_optimizer=config.execution.offload_optimizer,
    )
    trainer.plan = Plan(
        steps=s.steps,
        tokens_per_step=s.tokens_per_step,
        row_tokens=s.tokens_per_pass,
        packing=s.packing,
        warmup_steps=s.warmup_steps,
        schedule=s.schedule,
        seed=s.seed,
    )
    return trainer


def _train(
    config: Config,
    directory: RunDirectory,
    trainer: SupervisedTrainer,
    traces: Traces,
    done: int,
    start: Path,
    say: Say,
) -> Path:
    settings = config.sft
    training, heldout = ([_ids(t) for t in side] for side in (traces.training, traces.heldout))

    def evaluate(step: int) -> None:
        loss = trainer.evaluate(heldout)
        directory.append("curve", {"step": step, "loss": loss, "n_traces": len(heldout)})
        say(f"held-out  step {step:5d}  loss {loss:.4f}")

    def save(step: int) -> Path:
        def write(folder: Path) -> None:
            trainer.save_model(folder / "model", load_tokenizer(start))
            trainer.save_state(folder)
            (folder / "stage.json").write_bytes(msgspec.json.encode(Stage(step=step)))
            (folder / "config.toml").write_text(dump_toml(config), "utf-8")

        saved = checkpoint.save(directory.checkpoints, step, write)
        keep_every = config.checkpoint.keep_every
        checkpoint.prune(directory.checkpoints, saved=step, keep=2, keep_every=keep_every)
        return saved / "model"

    if not done:
        evaluate(0)
    lengths = [length_of(t) for t in training]
    for step, indices in enumerate(steps_of(lengths, trainer.plan, skip=done), start=done + 1):
        began = time.monotonic()
        loss, norm = trainer.learn([training[i] for i in indices], step)
        tokens = sum(lengths[i] for i in indices)
        seconds = time.monotonic() - began
        lr = trainer.optimizer.param_groups[0]["lr"]
        row = {"step": step, "loss": loss, "gradient_norm": norm, "lr": lr, "tokens": tokens}
        directory.append("steps", row | {"traces": len(indices), "busy_s": seconds})
        say(f"step {step:5d} of {settings.steps}  loss {loss:.4f}  {tokens / seconds:.0f} tokens/s")
        if step % settings.evaluate_every == 0 or step == settings.steps:
            evaluate(step)
        if step % settings.checkpoint_every == 0 and step != settings.steps:
            save(step)
    return save(settings.steps)


def _ids(trace: ChatTrace) -> Trace:
    return Trace(prompt_ids=trace.prompt_ids, answer_ids=trace.answer_ids)
