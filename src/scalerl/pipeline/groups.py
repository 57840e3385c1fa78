"""The groups of a run from admission to the trainer: their samples, their end, what they hold.

admit ─▶ pending ─put→ finished ─┬─▶ buffer ─take→ trainer
                                 └─▶ useless: without variance, under dynamic sampling
"""

from __future__ import annotations

from collections.abc import Sequence

from scalerl.algorithm.effective import Rules, has_variance
from scalerl.data.curriculum import PromptStream
from scalerl.errors import RunError
from scalerl.messages import Completion, Group, Scored
from scalerl.pipeline.buffer import Buffer
from scalerl.pipeline.reception import PendingGroup


class Groups:
    """Every group that is admitted and in no step yet.

    Args:
        buffer: takes the finished ones.
        stream: is told the pass rate of each.
        dynamic_limit: groups without variance a step may spend, in multiples of P.
    """

    def __init__(
        self, buffer: Buffer, stream: PromptStream, rules: Rules, *, dynamic_limit: int
    ) -> None:
        self._buffer = buffer
        self._stream = stream
        self._rules = rules
        self._dynamic_limit = dynamic_limit
        self.pending: dict[int, PendingGroup] = {}
        self._useless: list[Group] = []  # without variance, under dynamic sampling

    def admit(self, group: PendingGroup) -> None:
        self._buffer.admit(group.index, group.version)
        self.pending[group.index] = group

    def put(self, group: PendingGroup, completion: Completion, scored: Scored | None) -> None:
        """A sample has come, or its score; the last one finishes the group."""
        group.deliver(completion, scored)
        if group.finished:
            self._finish(self.pending.pop(group.index))

    def take_useless(self) -> list[Group]:
        """Groups without variance; the step that takes them spends them."""
        useless, self._useless = self._useless, []
        return useless

    def hold_again(self, groups: Sequence[Group]) -> None:
        """Groups that were finished when a checkpoint was made wait to be trained."""
        for group in groups:
            if self._is_useless(group):
                self._useless.append(group)
            else:
                self._buffer.restore(group)

    def held(self) -> tuple[Group, ...]:
        """Finished groups that no step has taken."""
        return (*self._buffer.finished, *self._useless)

    @property
    def tokens(self) -> int:
        """Tokens of delivered completions that no step has taken."""
        whole = sum(len(s.completion.token_ids) for g in self.held() for s in g.completions)
        return whole + sum(p.tokens for p in self.pending.values())

    def owed(self, generators: int) -> list[int]:
        """Completions that each generator has still to deliver."""
        owed = [0] * generators
        for pending in self.pending.values():
            owed[pending.generator] += len(pending.missing)
        return owed

    def check_dynamic_limit(self) -> None:
        """Raises RunError where dynamic sampling has spent more than a step may."""
        limit = self._dynamic_limit * self._buffer.groups
        if len(self._useless) > limit:
            raise RunError(
                f"dynamic sampling drew {len(self._useless)} groups without variance for one step "
                f"(algorithm.dynamic_limit = {self._dynamic_limit} × "
                f"{self._buffer.groups}): every prompt seems always right or always wrong; use "
                "algorithm.zero_variance = 'filter', or other prompts"
            )

    def _finish(self, pending: PendingGroup) -> None:
        group = Group(
            index=pending.index,
            prompt=pending.prompt,
            admitted_version=pending.version,
            completions=tuple(s for s in pending.samples if s is not None),
        )
        self._stream.record(group.prompt.id, group.pass_rate)
        self._buffer.finish(group)
        if self._is_useless(group):
            self._buffer.drop(group.index)
            self._useless.append(group)

    def _is_useless(self, group: Group) -> bool:
        """Dynamic sampling replaces a group without variance."""
        return self._rules.zero_variance == "dynamic" and not has_variance(group, self._rules)
