"""What a generator says is checked before it is believed.

A generator that answers garbage is treated as one that died: what it says then counts for nothing,
so the ledger, the bound and the groups never depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scalerl.messages import Completion, Counters, Evaluate, Evaluated, Progress, Prompt, Scored


class PendingGroup:
    """A group on its way: which samples are missing, which are delivered and await a score."""

    def __init__(self, index: int, prompt: Prompt, version: int, generator: int, size: int) -> None:
        self.index = index
        self.prompt = prompt
        self.version = version  # at admission
        self.generator = generator
        self.samples: list[Scored | None] = [None] * size
        self.unscored: dict[int, int] = {}  # sample → tokens

    @property
    def missing(self) -> list[int]:
        unscored = self.unscored
        return [i for i, s in enumerate(self.samples) if s is None and i not in unscored]

    @property
    def finished(self) -> bool:
        return None not in self.samples

    @property
    def tokens(self) -> int:
        scored = sum(len(s.completion.token_ids) for s in self.samples if s is not None)
        return scored + sum(self.unscored.values())

    def lacks(self, sample: int) -> bool:
        """Whether a sample is still to come from its generator."""
        return self.samples[sample] is None and sample not in self.unscored

    def deliver(self, completion: Completion, scored: Scored | None) -> None:
        """A sample has come; its score has too, or comes later by `put`."""
        if scored is None:
            self.unscored[completion.sample] = len(completion.token_ids)
        else:
            self.put(scored)

    def put(self, scored: Scored) -> None:
        self.samples[scored.completion.sample] = scored
        self.unscored.pop(scored.completion.sample, None)


def news(
    completions: Sequence[Completion], pending: Mapping[int, PendingGroup]
) -> list[Completion]:
    """The completions that are awaited; the others came before, or are of groups given up."""
    seen: set[tuple[int, int]] = set()
    awaited: list[Completion] = []
    for c in completions:
        group = pending.get(c.group)
        if group is None or (c.group, c.sample) in seen:
            continue
        if c.sample < len(group.samples) and group.lacks(c.sample):
            seen.add((c.group, c.sample))
            awaited.append(c)
    return awaited


def fault_in_progress(
    message: Progress,
    before: Counters,
    pending: Mapping[int, PendingGroup],
    *,
    issued: int,
    newest: int,
    size: int,
    vocabulary: int | None = None,
) -> str | None:
    """Why a Progress cannot be true; None if it can.

    Args:
        before: the generator's counters as last believed.
        issued: groups have had numbers below this.
        newest: the last weights version that was published.
        size: completions of a group, G.
        vocabulary: token ids are below this; None where it is not known.
    """
    now = message.counters
    if message.version > newest:
        return f"weights version {message.version}, and the newest is {newest}"
    if now.tokens_generated < before.tokens_generated or now.tokens_in_flight < 0:
        return f"counters that went back: {now} after {before}"
    for c in message.completions:
        if not (0 <= c.group < issued and 0 <= c.sample < size):
            return f"sample {c.sample} of group {c.group}, which nobody asked for"
        group = pending.get(c.group)
        oldest = 0 if group is None else group.version
        if fault := _fault_in_completion(c, oldest, newest, vocabulary):
            return f"sample {c.sample} of group {c.group}: {fault}"
    new = sum(len(c.token_ids) for c in news(message.completions, pending))
    settled = now.tokens_generated - now.tokens_in_flight
    settled -= before.tokens_generated - before.tokens_in_flight
    if new != settled:
        return f"{new} tokens in completions, but counters that speak of {settled}"
    return None


def fault_in_evaluation(
    message: Evaluated, asked: Evaluate | None, version: int, vocabulary: int | None = None
) -> str | None:
    """Why an Evaluated does not answer what was asked; None if it does."""
    if asked is None or message.step != asked.step:
        return f"an evaluation of step {message.step}, which nobody asked for"
    if message.version != version:
        return f"an evaluation at version {message.version}, not {version}"
    if sorted((c.group, c.sample) for c in message.completions) != sorted(
        (r.group, r.sample) for r in asked.requests
    ):
        return f"an evaluation of step {message.step} with other completions than asked for"
    for c in message.completions:
        if fault := _fault_in_completion(c, version, version, vocabulary):
            return f"evaluation of step {message.step}, completion {c.sample} of {c.group}: {fault}"
    return None


def _fault_in_completion(
    c: Completion, oldest: int, newest: int, vocabulary: int | None
) -> str | None:
    size = len(c.token_ids)
    if not size or len(c.logp_gen) != size or len(c.mask) != size:
        return f"{size} tokens, {len(c.logp_gen)} log-probs and {len(c.mask)} mask entries"
    low, high = min(c.token_ids), max(c.token_ids)
    if low < 0 or (vocabulary is not None and high >= vocabulary):  # no row of the embedding
        return f"token {low if low < 0 else high}, which is not in the vocabulary"
    if any(m not in (0, 1) for m in c.mask):
        return "a mask that is not 0 or 1"
    starts = [start for start, _ in c.segments]
    versions = [version for _, version in c.segments]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= size:
        return f"segments {c.segments} of {size} tokens"
    if versions != sorted(versions) or versions[0] < oldest or versions[-1] > newest:
        return (
            f"tokens of versions {versions}, which cannot be older than {oldest} or newer than "
            f"{newest}"
        )
    return None
