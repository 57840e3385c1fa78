"""From prompts to scored groups: the trainer's side of generation.

    PromptStream ─draw→ admit ─Submit→ fleet ─Progress→ score ─→ Group ─→ Buffer ─take→ trainer
                                         ↑                           └─ pass rate → PromptStream
                            WeightsReady, Evaluate ← publish, evaluate

Nothing here knows whether the generators share this process.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from scalerl.algorithm.effective import Rules, has_variance
from scalerl.data.curriculum import AllPromptsRetired, PromptStream
from scalerl.errors import RunError
from scalerl.messages import (
    Completion,
    Counters,
    Evaluate,
    Evaluated,
    Failed,
    FromGenerator,
    Group,
    Progress,
    Prompt,
    Request,
    Scored,
    Submit,
    WeightsLoaded,
)
from scalerl.pipeline.buffer import Buffer
from scalerl.pipeline.fleet import Fleet, broadcast
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.weights import WeightStore

POLL_S = 0.05


class Stopped(Exception):
    """A signal asked the run to stop; its state is whole."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    completions: int  # G
    slots: int  # completions a generator samples at a time
    last_version: int  # the run ends when this version is reached
    dynamic_limit: int  # groups without variance a step may spend, in multiples of P
    stall_s: float  # a wait without any progress for so long gives up


class _Pending:
    """A group on its way: which samples are still missing."""

    def __init__(self, index: int, prompt: Prompt, version: int, generator: int, size: int) -> None:
        self.index = index
        self.prompt = prompt
        self.version = version
        self.generator = generator
        self.samples: list[Scored | None] = [None] * size

    @property
    def missing(self) -> int:
        return sum(s is None for s in self.samples)

    @property
    def tokens(self) -> int:
        return sum(len(s.completion.token_ids) for s in self.samples if s is not None)


class Rollouts:
    """Keeps the generators busy within the buffer's bound and hands out finished groups.

    consumes:      prompts; Progress, WeightsLoaded and Evaluated of the generators
    produces:      Submit, WeightsReady and Evaluate; groups for the trainer
    waits for:     finished groups, in `take`; a free weight buffer, in `publish`
    unblocked by:  any word of a generator; gives up after `stall_s` without one that matters
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        store: WeightStore,
        buffer: Buffer,
        stream: PromptStream,
        ledger: Ledger,
        rules: Rules,
        settings: RolloutSettings,
        score: Callable[[Prompt, Completion], Scored],
        request: Callable[[int, Prompt, int], Request],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._store = store
        self.buffer = buffer
        self.stream = stream
        self.ledger = ledger
        self._rules = rules
        self._settings = settings
        self._score = score
        self._request = request
        self._clock = clock
        self._pending: dict[int, _Pending] = {}
        self._useless: list[Group] = []  # without variance, under dynamic sampling
        self._evaluations: list[Evaluated] = []
        self.counters = [Counters() for _ in range(fleet.size)]
        self.next_group = 0
        self._reissue: deque[tuple[int, Prompt]] = deque()  # groups that a resume begins anew
        self.exhausted = False  # every prompt is retired: no group will ever be admitted again
        self.evaluating = False
        self.stop_signal: int | None = None  # set by a signal handler, heeded between two polls
        self._last_progress = clock()
        self._evaluation_wait_s = 0.0  # of `take`, while an evaluation held the generator

    # What the trainer asks for.

    def take(self, version: int) -> tuple[list[Group], list[Group]]:
        """The groups of the step at `version`, and those spent without variance on the way.

        The first list is empty only when no prompt is left to draw.

        Raises:
            RunError: nothing moved for `stall_s`, or dynamic sampling is past its limit.
            Stopped: a signal came.
        """
        self._last_progress = self._clock()
        while True:
            if self.stop_signal is not None:
                raise Stopped(self.stop_signal)
            self.admit(version)
            if groups := self.buffer.take(version, closing=self.exhausted):
                return groups, self._take_useless()
            if self.exhausted and not self.buffer.untrained:
                return [], self._take_useless()
            self._check_dynamic_limit()
            asked, evaluating = self._clock(), self.evaluating
            self.poll(POLL_S)
            self._evaluation_wait_s += self._clock() - asked if evaluating else 0.0
            self._check_stall(f"groups for step {version + 1}")

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Push weights to every generator; completions in flight go on with them."""
        self._last_progress = self._clock()
        while self._store.free_slot() is None:
            self.poll(POLL_S)
            self._check_stall("a generator to copy earlier weights")
        broadcast(self._fleet, self._store.write(version, tensors))

    def evaluate(self, step: int, requests: Sequence[Request]) -> None:
        """Ask the first generator for held-out completions at the weights published last. One
        evaluation is under way at a time: an earlier one is waited for."""
        while self.evaluating:
            self.poll(POLL_S)
            self._check_stall("the held-out evaluation before this one")
        self._fleet.send(0, Evaluate(step=step, requests=tuple(requests)))
        self.evaluating = True

    def evaluations(self, *, wait: bool) -> list[Evaluated]:
        """Evaluations that have come in; with `wait`, the outstanding one too."""
        self._last_progress = self._clock()
        while wait and self.evaluating:
            self.poll(POLL_S)
            self._check_stall("a held-out evaluation")
        done, self._evaluations = self._evaluations, []
        return done

    def admit(self, version: int) -> None:
        """Start as many groups as the bound and the generators' appetite allow."""
        submit: dict[int, list[Request]] = {}
        room = self.buffer.room(version, self._settings.last_version)
        for _ in range(min(room, self._appetite())):
            try:
                index, prompt = self._next_prompt()
            except AllPromptsRetired:  # a defined end: what is under way is still trained
                self.exhausted = True
                break
            generator = self._least_busy()
            group = _Pending(index, prompt, version, generator, self._settings.completions)
            self.buffer.admit(group.index, version)
            self._pending[group.index] = group
            requests = [self._request(group.index, prompt, s) for s in range(len(group.samples))]
            submit.setdefault(generator, []).extend(requests)
        for generator, requests in submit.items():
            self._fleet.send(generator, Submit(requests=tuple(requests)))

    def poll(self, timeout_s: float) -> None:
        """Take in what the generators say, waiting at most `timeout_s` for the first word."""
        for generator, message in self._fleet.poll(timeout_s):
            self._receive(generator, message)

    def take_evaluation_wait(self) -> float:
        """Seconds that `take` has waited beside an evaluation since this was last asked."""
        waited, self._evaluation_wait_s = self._evaluation_wait_s, 0.0
        return waited

    @property
    def waiting_tokens(self) -> int:
        """Tokens of delivered completions that no step has taken."""
        waiting = [*self.buffer.finished, *self._useless]
        whole = sum(len(s.completion.token_ids) for g in waiting for s in g.completions)
        return whole + self.partial_tokens

    def close_ledger(self) -> dict[str, int]:
        """The token account at this moment; raises LedgerError if it does not close."""
        return self.ledger.close(
            generated=sum(c.tokens_generated for c in self.counters),
            in_flight=sum(c.tokens_in_flight for c in self.counters),
            waiting=self.waiting_tokens,
        )

    # What a checkpoint holds.

    @property
    def partial_tokens(self) -> int:
        """Tokens of delivered completions whose group is not finished."""
        return sum(p.tokens for p in self._pending.values())

    def pending_prompts(self) -> tuple[tuple[int, str], ...]:
        """(group number, prompt id) of every unfinished group, oldest first."""
        under_way = [(p.index, p.prompt.id) for p in self._pending.values()]
        return (*under_way, *((index, prompt.id) for index, prompt in self._reissue))

    def held_groups(self) -> tuple[Group, ...]:
        """Finished groups that no step has taken."""
        return (*self.buffer.finished, *self._useless)

    def restore(
        self,
        *,
        stream: Mapping[str, Any],
        next_group: int,
        finished: Sequence[Group],
        pending: Sequence[tuple[int, str]],
        version: int,
    ) -> None:
        """Begin where a checkpoint was: finished groups wait again, pending prompts are issued
        again under their old numbers, so that their samples draw the same random numbers."""
        self.stream.restore(stream)  # pending visits are still pending there
        self.next_group = next_group
        self._reissue = deque(
            (index, self.stream.prompt(prompt_id)) for index, prompt_id in pending
        )
        for group in finished:
            if self._is_useless(group):
                self._useless.append(group)
            else:
                self.buffer.restore(group)

    # What the generators say.

    def _receive(self, generator: int, message: FromGenerator) -> None:
        match message:
            case Progress():
                self.counters[generator] = message.counters
                for completion in message.completions:
                    self._complete(completion)
                if message.completions:
                    self._last_progress = self._clock()
            case WeightsLoaded():
                self._store.release(generator, message.slot)
                self._last_progress = self._clock()
            case Evaluated():
                self._evaluations.append(message)
                self.evaluating = False
                self._last_progress = self._clock()
            case Failed():
                raise RunError(f"generator {generator} failed: {message.reason}")

    def _complete(self, completion: Completion) -> None:
        pending = self._pending[completion.group]
        if completion.oldest_version < pending.version:
            raise RunError(
                f"group {completion.group}, admitted at version {pending.version}, has tokens of "
                f"version {completion.oldest_version}: a generator used older weights than it was "
                "sent"
            )
        pending.samples[completion.sample] = self._score(pending.prompt, completion)
        if not pending.missing:
            self._finish(self._pending.pop(completion.group))

    def _finish(self, pending: _Pending) -> None:
        group = Group(
            index=pending.index,
            prompt=pending.prompt,
            admitted_version=pending.version,
            completions=tuple(s for s in pending.samples if s is not None),
        )
        self.stream.record(group.prompt.id, group.pass_rate)
        self.buffer.finish(group)
        if self._is_useless(group):
            self.buffer.drop(group.index)
            self._useless.append(group)

    def _is_useless(self, group: Group) -> bool:
        """Dynamic sampling replaces a group without variance."""
        return self._rules.zero_variance == "dynamic" and not has_variance(group, self._rules)

    # Arithmetic and deadlines.

    def _appetite(self) -> int:
        outstanding = sum(p.missing for p in self._pending.values())
        slots = self._fleet.size * self._settings.slots
        return self.buffer.appetite(outstanding, slots, self._settings.completions)

    def _next_prompt(self) -> tuple[int, Prompt]:
        if self._reissue:
            return self._reissue.popleft()
        prompt = self.stream.draw()
        self.next_group += 1
        return self.next_group - 1, prompt

    def _least_busy(self) -> int:
        load = [0] * self._fleet.size
        for pending in self._pending.values():
            load[pending.generator] += pending.missing
        return load.index(min(load))

    def _take_useless(self) -> list[Group]:
        useless, self._useless = self._useless, []
        return useless

    def _check_dynamic_limit(self) -> None:
        limit = self._settings.dynamic_limit * self.buffer.groups
        if len(self._useless) > limit:
            raise RunError(
                f"dynamic sampling drew {len(self._useless)} groups without variance for one step "
                f"(algorithm.dynamic_limit = {self._settings.dynamic_limit} × "
                f"{self.buffer.groups}): every prompt seems always right or always wrong; use "
                "algorithm.zero_variance = 'filter', or other prompts"
            )

    def _check_stall(self, awaited: str) -> None:
        waited = self._clock() - self._last_progress
        if waited < self._settings.stall_s:
            return
        oldest = min(self._pending.values(), key=lambda p: p.index, default=None)
        where = (
            f"; oldest unfinished: group {oldest.index} on generator {oldest.generator}, prompt "
            f"{oldest.prompt.text[:60]!r}"
            if oldest
            else ""
        )
        raise RunError(f"waited {waited:.0f} s for {awaited} without progress{where}")
