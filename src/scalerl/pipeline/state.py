"""What outlives a crash: a run's whole state at one version, into a checkpoint and out of it.

    model/                 HF folder: the trained model as any tool loads it
    optimizer.safetensors  moments of AdamW; FP32 master weights where the model is not FP32
    state.msgpack          version, prompt stream, finished groups, pending groups, ledger, compute
    engines.safetensors    interleaved mode only: completions under way, keys and values as they are
    config.toml            the resolved settings

With generators in processes of their own, work under way is not saved: its prompts are issued again
first, under the same group numbers, and the tokens sampled for them are booked as discarded. With
everything in one process the engines are saved as they stand, so that a resumed run computes what
an uninterrupted one does, bit for bit; nothing smaller would do, because the keys and values of a
completion under way were made by weights that are no more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
from torch import Tensor

from scalerl.config import dump_toml
from scalerl.errors import InputError
from scalerl.generate.snapshot import EngineState
from scalerl.messages import Counters, Group, Prompt, Scored
from scalerl.model.load import load_tokenizer
from scalerl.pipeline.fleet import InlineFleet
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.metrics import Compute
from scalerl.pipeline.reception import PendingGroup
from scalerl.pipeline.records import current_rows
from scalerl.pipeline.rollouts import Rollouts
from scalerl.pipeline.run import Run
from scalerl.train import checkpoint

RESUMED = "resumed"  # the ledger's reason for work that a resume begins anew
KEEP = 2  # checkpoints kept beside the best and each n-th


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A group that was admitted and not finished."""

    index: int
    prompt: str  # id
    version: int  # at admission
    generator: int
    samples: tuple[Scored | None, ...]  # empty: it waited to be issued again
    unscored_tokens: int = 0  # of completions that awaited a score: they are sampled again


class LoopState(msgspec.Struct, frozen=True, kw_only=True):
    """A generator of the interleaved mode between two ticks, tensors apart."""

    engine: EngineState
    counters: Counters
    loaded: int


class RolloutState(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts and groups: nothing of an epoch is lost or used twice because of what is here."""

    next_group: int
    pending: tuple[Pending, ...]  # oldest first
    finished: tuple[Group, ...]
    stream: dict[str, Any]
    ledger: Ledger
    counters: tuple[Counters, ...]  # of the generators living then
    gone: Counters
    duplicates: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but tensors."""

    version: int
    skipped_in_a_row: int
    heldout: str  # fingerprint of the held-out prompts
    compute: Compute  # without any generator's
    rollouts: RolloutState
    loops: tuple[LoopState, ...]  # interleaved mode only


def save(run: Run) -> Path:
    """Checkpoint `run` at its version, and remove old ones but the newest two, the best of those
    evaluated, and each n-th.

    Raises:
        RunError: it could not be written; earlier checkpoints are untouched.
    """
    root = run.directory.checkpoints
    state, engines = state_of(run)

    def write(folder: Path) -> None:
        run.trainer.save_model(folder / "model", load_tokenizer(run.start_path))
        run.trainer.save_state(folder)
        if engines:
            safetensors.torch.save_file(engines, folder / "engines.safetensors")
        (folder / "state.msgpack").write_bytes(msgspec.msgpack.encode(state))
        (folder / "config.toml").write_text(dump_toml(run.config), "utf-8")

    for log in ("steps.jsonl", "curve.jsonl"):
        checkpoint.sync(run.directory.path / log)  # rows up to here outlive the machine, too
    path = checkpoint.save(root, run.version, write)
    rates = {
        row["step"]: row["pass_rate"] for row in current_rows(run.directory.path / "curve.jsonl")
    }
    keep_every = run.config.checkpoint.keep_every
    checkpoint.prune(root, saved=run.version, keep=KEEP, keep_every=keep_every, rates=rates)
    return path


def state_of(run: Run) -> tuple[State, dict[str, Tensor]]:
    """The state between two polls, and the engines' tensors in the interleaved mode."""
    loops: list[LoopState] = []
    engines: dict[str, Tensor] = {}
    if isinstance(run.fleet, InlineFleet):
        for i, loop in enumerate(run.fleet.loops):
            engine, tensors = loop.engine_state()
            loops.append(LoopState(engine=engine, counters=loop.counters(), loaded=loop.loaded))
            engines |= {f"{i}.{name}": tensor for name, tensor in tensors.items()}
    state = State(
        version=run.version,
        skipped_in_a_row=run.trainer.skipped_in_a_row,
        heldout=fingerprint(run.heldout),
        compute=run.compute,
        rollouts=rollout_state(run.rollouts),
        loops=tuple(loops),
    )
    return state, engines


def rollout_state(rollouts: Rollouts) -> RolloutState:
    under_way = [
        Pending(
            index=p.index,
            prompt=p.prompt.id,
            version=p.version,
            generator=p.generator,
            samples=tuple(p.samples),
            unscored_tokens=sum(p.unscored.values()),
        )
        for p in rollouts.pending.values()
    ]
    waiting = [
        Pending(index=index, prompt=prompt.id, version=0, generator=0, samples=())
        for index, prompt in rollouts.reissue
    ]
    return RolloutState(
        next_group=rollouts.next_group,
        pending=(*under_way, *waiting),
        finished=rollouts.held_groups(),
        stream=rollouts.stream.state(),
        ledger=rollouts.ledger,
        counters=tuple(rollouts.counters),
        gone=rollouts.gone,
        duplicates=rollouts.duplicates,
    )


def restore(run: Run, folder: Path, *, anew: bool = False) -> None:
    """Put `run`, freshly opened on the checkpoint's model, where the checkpoint was.

    Args:
        anew: begin pending groups again also where their completions could go on.

    Raises:
        InputError: the checkpoint is of another dataset, or cannot be read.
    """
    engines: dict[str, Tensor] = {}
    try:
        state = msgspec.msgpack.decode((folder / "state.msgpack").read_bytes(), type=State)
        run.trainer.load_state(folder)
        if state.loops:
            engines = safetensors.torch.load_file(folder / "engines.safetensors")
    except (OSError, msgspec.DecodeError, safetensors.SafetensorError) as error:
        raise InputError(f"{folder}: the checkpoint cannot be read: {error}") from error
    if state.heldout != fingerprint(run.heldout):
        raise InputError(
            f"{folder}: the held-out prompts are others than the run was started with, or have "
            "other answers; resume with the same data, or start a new run"
        )
    run.version = run.directory.from_step = state.version
    run.compute = state.compute
    run.trainer.skipped_in_a_row = state.skipped_in_a_row
    if isinstance(run.fleet, InlineFleet) and len(state.loops) == run.fleet.size and not anew:
        go_on(run.rollouts, state.rollouts)
        for i, (loop, saved) in enumerate(zip(run.fleet.loops, state.loops, strict=True)):
            tensors = {
                name.partition(".")[2]: tensor
                for name, tensor in engines.items()
                if name.partition(".")[0] == str(i)
            }
            weights = run.trainer.weights()
            loop.restore(saved.engine, tensors, weights, saved.counters, saved.loaded)
    else:
        begin_again(run.rollouts, state.rollouts)


def go_on(rollouts: Rollouts, state: RolloutState) -> None:
    """Every completion goes on from its last token: the generators are restored, too."""
    _put_back(rollouts, state)
    rollouts.counters, rollouts.gone = list(state.counters), state.gone
    for saved in state.pending:
        prompt = rollouts.stream.prompt(saved.prompt)
        if not saved.samples:
            rollouts.reissue.append((saved.index, prompt))
            continue
        group = PendingGroup(saved.index, prompt, saved.version, saved.generator, 0)
        group.samples = list(saved.samples)
        rollouts.pending[group.index] = group
        rollouts.buffer.restore_pending(group.index, group.version)


def begin_again(rollouts: Rollouts, state: RolloutState) -> None:
    """The generators are new and have nothing: pending groups start anew under their numbers, so
    that their samples draw the same random numbers."""
    _put_back(rollouts, state)
    for counters in state.counters:
        rollouts.end_generator(RESUMED, counters)
    delivered = sum(
        len(s.completion.token_ids) for p in state.pending for s in p.samples if s is not None
    )
    delivered += sum(p.unscored_tokens for p in state.pending)
    rollouts.ledger.discard(RESUMED, delivered)
    rollouts.reissue.extend((p.index, rollouts.stream.prompt(p.prompt)) for p in state.pending)


def _put_back(rollouts: Rollouts, state: RolloutState) -> None:
    rollouts.stream.restore(state.stream)  # pending visits are still pending there
    rollouts.ledger, rollouts.gone = state.ledger, state.gone
    rollouts.next_group, rollouts.duplicates = state.next_group, state.duplicates
    rollouts.groups.hold_again(state.finished)


def fingerprint(prompts: Sequence[Prompt]) -> str:
    """Of which prompts there are and what counts as their answers."""
    lines = (f"{p.id} {p.task} {p.answer!r}" for p in prompts)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
