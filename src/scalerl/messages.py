"""What travels between the parts: one frozen message per hop.

    prompts ─Request→ generator ─Completion→ rewards ─Group→ buffer ─Group×P→ trainer
                          ↑                                                      │
                          └─────────────────────WeightsReady─────────────────────┘

Messages are msgspec structs: they cross process boundaries and enter checkpoints as MessagePack,
validated when they are decoded, never as pickle. Shapes: ``T`` tokens of one completion, ``G``
completions of a group.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One question with its checkable answer. Set by ``data``."""

    id: str  # hash of the content; key of the curriculum history
    text: str  # as read, before any chat template
    token_ids: tuple[int, ...]  # exactly what the generator is given
    answer: str  # gold answer, for the reward
    task: str  # which reward checks it, and which curve it belongs to


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One completion to sample. Set by the pipeline, consumed by the generator."""

    group: int  # ordinal of the group in the run; unique, survives a resume
    sample: int  # 0 ≤ sample < G
    prompt_ids: tuple[int, ...]
    seed: int  # 63-bit key of this completion's own random numbers
    interrupt_at: int | None = (
        None  # thinking tokens after which the phrase is forced; None = never
    )


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled completion. Set by the generator; every list has length T."""

    group: int
    sample: int
    token_ids: tuple[int, ...]  # sampled or forced, end-of-text included
    logp_gen: tuple[float, ...]  # log π_gen at sampling time, of the tempered distribution (nats)
    mask: tuple[int, ...]  # 1 sampled by the policy, 0 forced in
    segments: tuple[tuple[int, int], ...]  # (first token index, weights version), in order
    finish: Literal["stop", "length"]  # "length" = cut at the limit: truncated
    interrupted: bool  # the end-of-thinking phrase was forced in
    entropy: float  # mean entropy (nats) of the distributions the mask-1 tokens came from

    @property
    def oldest_version(self) -> int:
        return min(version for _, version in self.segments)

    @property
    def newest_version(self) -> int:
        return max(version for _, version in self.segments)


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """A completion with its verdict. Set by ``rewards``."""

    completion: Completion
    reward: float  # +1 correct and not truncated, −1 otherwise; `algorithm` adds a length penalty
    outcome: Literal["correct", "wrong", "no_answer", "timeout", "error"]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """All G completions of one visit of one prompt. Set by the pipeline."""

    index: int  # ordinal of the group in the run
    prompt: Prompt
    admitted_version: int  # trainer's version at admission: no token of the group is older
    completions: tuple[Scored, ...]  # ordered by sample

    @property
    def pass_rate(self) -> float:
        """Share of all G completions that are correct; a truncated one counts as not passed."""
        passed = sum(
            s.outcome == "correct" and s.completion.finish == "stop" for s in self.completions
        )
        return passed / len(self.completions)


# Generator process: what it is told.


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sample these. Messages are handled in order, so a request never sees older weights than
    the last ``WeightsReady`` sent before it."""

    requests: tuple[Request, ...]


class WeightsReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """New weights lie in the shared store; completions in flight go on with them."""

    version: int
    slot: int  # which buffer of the store
    checksum: int  # of the bytes the trainer wrote; the generator verifies its copy


class Evaluate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Sample the held-out prompts now, at the weights then loaded, apart from the rollouts."""

    step: int
    requests: tuple[Request, ...]


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Finish at once; unfinished work is given up."""


ToGenerator = Submit | WeightsReady | Evaluate | Shutdown


# Generator process: what it says.


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Where a generator stands, all read at one moment; rollouts only, evaluation apart."""

    tokens_generated: int = 0  # since the process started, forced and unfinished ones included
    tokens_in_flight: int = 0  # of these, in completions not yet finished
    busy_s: float = 0.0  # since the process started
    idle_s: float = 0.0
    evaluation_s: float = 0.0


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Finished completions with the counters that close the ledger, taken at the same moment.
    Sent without completions as a sign of life."""

    completions: tuple[Completion, ...]
    version: int  # weights in use
    counters: Counters


class WeightsLoaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The store's buffer has been copied and its checksum agreed; it may be written again."""

    version: int
    slot: int


class Evaluated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Held-out completions, all at one version."""

    step: int
    version: int
    completions: tuple[Completion, ...]
    seconds: float
    counters: Counters  # as they stood when the evaluation began


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The process is about to end because of this."""

    reason: str


FromGenerator = Progress | WeightsLoaded | Evaluated | Failed
