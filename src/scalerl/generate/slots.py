"""State of the active completions: one column a slot, whole steps at a time.

Python objects are touched when a request is admitted and when it finishes; in between a completion
is a column of numbers. Active slots are a prefix: ``n`` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scalerl.errors import InputError
from scalerl.generate.sampling import SamplingParams
from scalerl.generate.thinking import EndOfThinking
from scalerl.messages import Request

NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Forced end of thinking (appendix A.10 of arXiv 2510.13786).

    A completion whose thinking has not ended when it has ``request.interrupt_at`` tokens gets the
    phrase, one forced token a step, and may then sample ``solution_tokens`` more.
    """

    phrase_ids: tuple[int, ...]  # what is forced in; it ends the thinking
    end_thinking: EndOfThinking
    solution_tokens: int  # sampled tokens allowed after the phrase

    def __post_init__(self) -> None:
        if not self.end_thinking.reached(self.phrase_ids):
            raise ValueError("phrase_ids must end the thinking")
        if self.solution_tokens < 1:
            raise ValueError(f"solution_tokens must be at least 1, not {self.solution_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What is left of a slot when its completion has ended; lists have length T."""

    slot: int
    token_ids: list[int]
    logp_gen: list[float]
    mask: list[int]
    stopped: bool
    interrupted: bool
    entropy: float  # mean over sampled tokens, nats


class Slots:
    """Columns of integers, one a slot, and what each slot has generated."""

    def __init__(
        self,
        slots: int,
        *,
        params: SamplingParams,
        interruption: Interruption | None,
        end_ids: Sequence[int],
        vocabulary: int,
        device: torch.device,
    ) -> None:
        limit = params.max_new_tokens
        self._state = torch.zeros(6, slots, dtype=torch.int64, device=device)
        self.token, self.position, self.index, self.seed, self.force_from, self.ending = self._state
        # token: to be fed next, at `position`; index: tokens generated so far;
        # force_from: index at which the phrase starts, NEVER once thinking has ended;
        # ending: how much of the end of thinking has been written.
        self.tokens = torch.zeros(slots, limit, dtype=torch.int64, device=device)
        self.logp = torch.zeros(slots, limit, dtype=torch.float32, device=device)
        self.entropy = torch.zeros(slots, limit, dtype=torch.float32, device=device)
        self._limit = limit
        self._is_end = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._is_end[list(end_ids)] = True
        self._interruption = interruption
        if interruption is not None:
            if (highest := max(interruption.phrase_ids)) >= vocabulary:
                raise InputError(
                    f"length.phrase: token {highest} of the tokenizer is beyond the model's "
                    f"vocabulary ({vocabulary}): they do not belong together"
                )
            self._phrase = torch.tensor(interruption.phrase_ids, device=device)
            self._moves = _moves(interruption.end_thinking, vocabulary).to(device)

    def admit(self, slots: Sequence[int], requests: Sequence[Request]) -> None:
        """Start requests: the last prompt token is the first to be fed."""
        columns = [
            (r.prompt_ids[-1], len(r.prompt_ids) - 1, 0, r.seed, _or_never(r.interrupt_at), 0)
            for r in requests
        ]
        device = self._state.device
        self._state[:, list(slots)] = torch.tensor(columns, dtype=torch.int64, device=device).T

    def move(self, sources: Tensor, targets: Tensor) -> None:
        self._state[:, targets] = self._state[:, sources]
        for x in (self.tokens, self.logp, self.entropy):
            x[targets] = x[sources]

    def advance(self, sampled_n: Tensor, logp_n: Tensor, entropy_n: Tensor) -> list[Finished]:
        """Record one token a slot, sampled or forced, and return the completions that it ends."""
        n = len(sampled_n)
        index, stop = self.index[:n], self._is_end[sampled_n]
        limit = self._limit
        token = sampled_n
        if (rule := self._interruption) is not None:
            size = len(rule.phrase_ids)
            into = index - self.force_from[:n]
            forced = (into >= 0) & (into < size)
            token = torch.where(forced, self._phrase[into.clamp(0, size - 1)], sampled_n)
            logp_n = logp_n.masked_fill(forced, 0.0)
            entropy_n = entropy_n.masked_fill(forced, 0.0)
            stop &= ~forced
            limit = (self.force_from[:n] + (size + rule.solution_tokens)).clamp_max(limit)
        for kept, new in ((self.tokens, token), (self.logp, logp_n), (self.entropy, entropy_n)):
            kept[:n].scatter_(1, index[:, None], new[:, None])
        if rule is not None:
            ending = self._moves[self.ending[:n], token]
            closed = (ending == rule.end_thinking.size) & (into < 0)
            self.force_from[:n].masked_fill_(closed, NEVER)
            self.ending[:n] = ending
        self.token[:n] = token
        self._state[1:3, :n] += 1  # position and index
        done = (stop | (self.index[:n] >= limit)).nonzero().squeeze(1)
        return self._finished(done, stop) if len(done) else []

    def _finished(self, done: Tensor, stop: Tensor) -> list[Finished]:
        size = 0 if self._interruption is None else len(self._interruption.phrase_ids)
        rows = zip(
            done.tolist(),
            self.index[done].tolist(),
            self.force_from[done].tolist(),
            stop[done].tolist(),
            self.tokens[done].tolist(),
            self.logp[done].tolist(),
            self.entropy[done].tolist(),
            strict=True,
        )
        return [_finish(size, *row) for row in rows]


def _finish(
    phrase: int,
    slot: int,
    count: int,
    force_from: int,
    stopped: bool,
    tokens: list[int],
    logp: list[float],
    entropy: list[float],
) -> Finished:
    interrupted = phrase > 0 and force_from < count
    mask = [1] * count
    if interrupted:
        for i in range(force_from, min(force_from + phrase, count)):
            mask[i] = 0
    return Finished(
        slot=slot,
        token_ids=tokens[:count],
        logp_gen=logp[:count],
        mask=mask,
        stopped=stopped,
        interrupted=interrupted,
        entropy=sum(entropy[:count]) / max(sum(mask), 1),
    )


def _moves(end: EndOfThinking, vocabulary: int) -> Tensor:
    """[size + 1, V] int8: the state after a token, by state."""
    moves = torch.zeros(end.size + 1, vocabulary, dtype=torch.int8)
    known = [move for move in end.moves if move[1] < vocabulary]
    states, tokens, after = torch.tensor(known, dtype=torch.int64).reshape(-1, 3).T
    moves[states, tokens] = after.to(torch.int8)
    return moves


def _or_never(interrupt_at: int | None) -> int:
    return NEVER if interrupt_at is None else interrupt_at
