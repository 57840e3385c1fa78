"""Supervised stage: fit a causal LM to traces, the loss on the answer side only.

    pairs → seeded order → batches → −mean log π(answer tokens) → AdamW, warm-up, linear decay

Shapes: ``B`` rows of a batch, ``T`` tokens of its longest row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from scalerl.errors import RunError
from scalerl.model.logprobs import token_logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A prompt and what should follow it, as token ids; the answer ends with the end of text."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedSettings:
    """A fixed number of steps, not of seconds, so that a start model can be made again."""

    steps: int
    rows: int  # traces a step
    lr: float  # peak
    warmup_steps: int  # linear from 0; after them linear decay to 0 at the last step
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip_norm: float = 1.0


def supervise(
    model: PreTrainedModel,
    traces: Sequence[Trace],
    settings: SupervisedSettings,
    *,
    seed: int,
    on_step: Callable[[int, float], None] | None = None,
) -> None:
    """Train ``model`` in place. The same seed, traces and torch build give the same bits on a CPU.

    loss = −Σ log π(answer token) / number of answer tokens in the batch.

    Nothing is written: an interruption leaves files as they were, and the caller saves at the end.

    Args:
        seed: of the order of the traces; each is used once before any is used again.
        on_step: called after each step with its number, from 1, and its loss (nats a token).

    Raises:
        RunError: the loss is not finite.
        ValueError: no traces, or one with an empty side.
    """
    if not traces or any(not t.prompt_ids or not t.answer_ids for t in traces):
        raise ValueError("supervise needs traces, each with a prompt and an answer")
    was_training = model.training
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.lr,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
    )
    batches = _batches(len(traces), settings.rows, seed)
    for step in range(1, settings.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * _share(step, settings)
        loss = _loss(model, [traces[i] for i in next(batches)])
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunError(f"supervised step {step}: the loss is {value}; lower its lr")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_step is not None:
            on_step(step, value)
    model.train(was_training)


def _loss(model: PreTrainedModel, traces: Sequence[Trace]) -> Tensor:
    ids_BT, scored_BT = pad_traces(traces, device=model.device)
    logp_BT, _ = token_logprobs(model, ids_BT, scored_BT)
    return -logp_BT.sum() / scored_BT.sum()


def pad_traces(traces: Sequence[Trace], *, device: torch.device) -> tuple[Tensor, Tensor]:
    """``ids_BT`` padded on the right with 0, and ``scored_BT``, true on answer tokens."""
    length = max(len(t.prompt_ids) + len(t.answer_ids) for t in traces)
    ids, scored = [], []
    for trace in traces:
        prompt, answer = len(trace.prompt_ids), len(trace.answer_ids)
        padding = length - prompt - answer
        ids.append([*trace.prompt_ids, *trace.answer_ids, *([0] * padding)])
        scored.append([False] * prompt + [True] * answer + [False] * padding)
    return torch.tensor(ids, device=device), torch.tensor(scored, device=device)


def _share(step: int, settings: SupervisedSettings) -> float:
    """Share of the peak learning rate at a step, from 1."""
    if step <= settings.warmup_steps:
        return step / settings.warmup_steps
    return (settings.steps - step + 1) / max(1, settings.steps - settings.warmup_steps)


def _batches(count: int, rows: int, seed: int) -> Iterator[list[int]]:
    """Indices of each step's traces: seeded permutations, one after another."""
    generator = torch.Generator().manual_seed(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < rows:
            waiting.extend(torch.randperm(count, generator=generator).tolist())
        yield waiting[:rows]
        del waiting[:rows]
