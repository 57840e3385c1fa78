"""What outlives a crash: a run's whole state at one version, into a checkpoint and out of it.

    model/                 HF folder: the trained model as any tool loads it
    optimizer.safetensors  moments of AdamW; FP32 master weights where the model is not FP32
    state.msgpack          version, prompt stream, finished groups, pending prompts, ledger, compute
    config.toml            the resolved settings

Work that was under way is not saved: its prompts are issued again first, under the same group
numbers, and the tokens already sampled for them are booked as discarded.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
from torch import Tensor

from scalerl.config import dump_toml
from scalerl.errors import InputError
from scalerl.messages import Group
from scalerl.model.load import load_tokenizer, save_model
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import Compute
from scalerl.pipeline.run import Run
from scalerl.train import checkpoint

RESUMED = "resumed"  # the ledger's reason for work that a resume begins anew


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but tensors. `pending`: (group number, prompt id), oldest first."""

    version: int
    skipped_in_a_row: int
    next_group: int
    pending: tuple[tuple[int, str], ...]
    finished: tuple[Group, ...]
    stream: dict[str, Any]
    ledger: Ledger
    compute: Compute


def save(run: Run, keep: int = 2) -> Path:
    """Checkpoint `run` at its version and remove old ones.

    Raises:
        RunError: it could not be written; earlier checkpoints are untouched.
    """
    root = run.directory.checkpoints

    def write(folder: Path) -> None:
        save_model(run.trainer.model, folder / "model", load_tokenizer(run.start_path))
        safetensors.torch.save_file(
            run.trainer.optimizer_tensors(), folder / "optimizer.safetensors"
        )
        (folder / "state.msgpack").write_bytes(msgspec.msgpack.encode(state_of(run)))
        (folder / "config.toml").write_text(dump_toml(run.config), "utf-8")

    path = checkpoint.save(root, run.version, write)
    checkpoint.prune(root, keep=keep, keep_every=run.config.checkpoint.keep_every)
    return path


def state_of(run: Run) -> State:
    """The state as a resumed run will begin with it."""
    rollouts = run.rollouts
    ledger = copy.deepcopy(rollouts.ledger)
    for counters in rollouts.counters:
        ledger.end_generator(
            RESUMED, generated=counters.tokens_generated, in_flight=counters.tokens_in_flight
        )
    ledger.discard(RESUMED, rollouts.partial_tokens)
    return State(
        version=run.version,
        skipped_in_a_row=run.trainer.skipped_in_a_row,
        next_group=rollouts.next_group,
        pending=rollouts.pending_prompts(),
        finished=rollouts.held_groups(),
        stream=rollouts.stream.state(),
        ledger=ledger,
        compute=dataclasses.replace(run.compute_now()),
    )


def restore(run: Run, folder: Path) -> None:
    """Put `run`, freshly opened on the checkpoint's model, where the checkpoint was.

    Raises:
        InputError: the checkpoint is of another dataset, or cannot be read.
    """
    try:
        state = msgspec.msgpack.decode((folder / "state.msgpack").read_bytes(), type=State)
        tensors: dict[str, Tensor] = safetensors.torch.load_file(folder / "optimizer.safetensors")
    except (OSError, msgspec.DecodeError, safetensors.SafetensorError) as error:
        raise InputError(f"{folder}: the checkpoint cannot be read: {error}") from error
    run.version = state.version
    run.trainer.skipped_in_a_row = state.skipped_in_a_row
    run.trainer.load_optimizer_tensors(tensors)
    run.compute = state.compute
    run.rollouts.ledger = state.ledger
    run.rollouts.restore(
        stream=state.stream,
        next_group=state.next_group,
        finished=state.finished,
        pending=state.pending,
        version=state.version,
    )
