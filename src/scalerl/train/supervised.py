"""The supervised stage on a file of traces: packed rows, a budget of tokens, loss on answers only.

    traces → seeded order → a step's worth of tokens → packed rows → passes
           → −Σ log π(answer token) / answer tokens of the step → clip → AdamW

Several traces share a row: positions begin anew at each, and no token sees another trace. The loss
is divided by the tokens of the whole step, so neither packing nor passes change the gradient.
Shapes: ``B`` rows of a pass, ``T`` tokens of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scalerl.errors import RunError
from scalerl.model.logprobs import token_logprobs
from scalerl.train.batches import cut
from scalerl.train.sft import Trace
from scalerl.train.step import Trainer, clip_by_global_norm

Schedule = Literal["constant", "linear", "cosine"]
PackedRow = Sequence[Trace]  # traces that stand one after another in one row


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How the stage goes on, apart from the optimiser's own settings."""

    steps: int
    tokens_per_step: int  # prompt and answer tokens; at least one trace a step
    row_tokens: int  # length of a packed row; a longer trace has a row of its own
    packing: bool
    warmup_steps: int
    schedule: Schedule
    seed: int  # of the order of the traces


def share_of_lr(step: int, plan: Plan) -> float:
    """Share of the peak learning rate at a step, from 1: linear warm-up, then the schedule, which
    reaches 0 after the last step."""
    if step <= plan.warmup_steps:
        return step / plan.warmup_steps
    done = (step - 1 - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
    match plan.schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - done
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))


def steps_of(lengths: Sequence[int], plan: Plan, *, skip: int = 0) -> Iterator[list[int]]:
    """Indices of each step's traces: seeded permutations one after another, cut by tokens.

    Args:
        skip: steps that were done already.
    """
    generator = torch.Generator().manual_seed(plan.seed)
    waiting: list[int] = []
    for step in range(1, plan.steps + 1):
        taken, tokens = [], 0
        while not taken or tokens + lengths[waiting[0]] <= plan.tokens_per_step:
            if waiting:
                taken.append(waiting.pop(0))
                tokens += lengths[taken[-1]]
            if not waiting:
                waiting = torch.randperm(len(lengths), generator=generator).tolist()
        if step > skip:
            yield taken


def packed(traces: Sequence[Trace], row_tokens: int) -> list[list[Trace]]:
    """Traces put together, first-fit from the longest on, in rows of at most `row_tokens`."""
    rows: list[list[Trace]] = []
    room: list[int] = []
    for trace in sorted(traces, key=length_of, reverse=True):
        place = next((i for i, free in enumerate(room) if free >= length_of(trace)), None)
        if place is None:
            rows.append([])
            room.append(row_tokens)
            place = len(rows) - 1
        rows[place].append(trace)
        room[place] -= length_of(trace)
    return rows


def length_of(trace: Trace) -> int:
    return len(trace.prompt_ids) + len(trace.answer_ids)


def as_tensors(rows: Sequence[PackedRow], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """``ids_BT``, ``scored_BT`` (answer tokens) and ``positions_BT``, anew for each trace; padding
    on the right is a sequence of its own."""
    length = max(sum(map(length_of, row)) for row in rows)
    ids, scored, positions = [], [], []
    for row in rows:
        padding = length - sum(map(length_of, row))
        ids.append([t for x in row for t in (*x.prompt_ids, *x.answer_ids)] + [0] * padding)
        scored.append(
            [s for x in row for s in [False] * len(x.prompt_ids) + [True] * len(x.answer_ids)]
            + [False] * padding
        )
        positions.append([p for x in row for p in range(length_of(x))] + list(range(padding)))
    return (
        torch.tensor(ids, device=device),
        torch.tensor(scored, device=device),
        torch.tensor(positions, device=device),
    )


class SupervisedTrainer(Trainer):
    """`Trainer` on traces instead of rewarded rows."""

    plan: Plan

    def learn(self, traces: Sequence[Trace], step: int) -> tuple[float, float]:
        """One optimiser step, from 1; returns the loss (nats an answer token) and the gradient's
        norm before clipping.

        Raises:
            RunError: the loss or the gradient is not finite.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * share_of_lr(step, self.plan)
        total = sum(len(t.answer_ids) for t in traces)
        loss = 0.0
        for rows in self.passes(traces):
            part = -self._logp(rows) / total
            part.backward()
            self._collect_gradients()
            loss += float(part.detach())
        norm = clip_by_global_norm(self._master, self.settings.clip_norm)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunError(f"supervised step {step}: loss {loss}, gradient norm {norm}; lower lr")
        self.optimizer.step()
        self._copy_master()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    @torch.no_grad()
    def evaluate(self, traces: Sequence[Trace]) -> float:
        """Mean loss, nats an answer token."""
        total = sum(len(t.answer_ids) for t in traces)
        return -math.fsum(float(self._logp(rows)) for rows in self.passes(traces)) / total

    def passes(self, traces: Sequence[Trace]) -> Iterator[list[PackedRow]]:
        """Rows of similar length, within the limits of a pass."""
        limit = self.plan.row_tokens if self.plan.packing else 1
        rows = sorted(packed(traces, limit), key=lambda row: sum(map(length_of, row)))
        lengths = [sum(map(length_of, row)) for row in rows]
        for start, end in cut(lengths, self._limits):
            yield list(rows[start:end])

    def _logp(self, rows: Sequence[PackedRow]) -> Tensor:
        """Sum of the log-probs of the answers."""
        ids_BT, scored_BT, positions_BT = as_tensors(rows, self.model.device)
        alone = all(len(row) == 1 for row in rows)
        logp_BT, _ = token_logprobs(
            self.model, ids_BT, scored_BT, positions_BT=None if alone else positions_BT
        )
        return logp_BT.sum()
