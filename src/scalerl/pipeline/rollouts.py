"""From prompts to scored groups: the trainer's side of generation.

    PromptStream ─draw→ admit ─Submit→ fleet ─Progress→ score ─→ Group ─→ Buffer ─take→ trainer
                                         ↑                           └─ pass rate → PromptStream
                            WeightsReady, Evaluate ← publish, evaluate

A score that takes time comes with a later poll; its completion waits in its pending group, and no
generator works on it any more. Nothing here knows whether the generators share this process.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from scalerl.algorithm.effective import Rules
from scalerl.data.curriculum import AllPromptsRetired, PromptStream
from scalerl.errors import RunError
from scalerl.messages import (
    Completion,
    Counters,
    Evaluate,
    Evaluated,
    Failed,
    Group,
    Progress,
    Prompt,
    Request,
    Scored,
    Submit,
    WeightsLoaded,
    WeightsReady,
)
from scalerl.pipeline.buffer import Buffer
from scalerl.pipeline.fleet import START_S, Fleet, Lost, Word, broadcast
from scalerl.pipeline.groups import Groups
from scalerl.pipeline.ledger import Ledger
from scalerl.pipeline.reception import (
    PendingGroup,
    fault_in_evaluation,
    fault_in_progress,
    news,
)
from scalerl.pipeline.stalls import culprit, in_checks
from scalerl.pipeline.weights import WeightStore

POLL_S = 0.05
LOST = "generator lost"  # the ledger's reason for tokens that a generator took with it


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
    restarts: int  # lost generators that are tolerated
    vocabulary: int | None = None  # of the trained model; None: only negative ids are refused


@dataclasses.dataclass(slots=True, kw_only=True)
class Waits:
    """Seconds that the trainer has waited for generators since this was last asked."""

    idle_s: float = 0.0
    evaluation_s: float = 0.0  # of waits while an evaluation held a generator


class Rollouts:
    """Keeps the generators busy within the buffer's bound and hands out finished groups.

    consumes:      prompts; Progress, WeightsLoaded and Evaluated of the generators
    produces:      Submit, WeightsReady and Evaluate; groups for the trainer
    waits for:     finished groups, in `take`; a free weight buffer, in `publish`; an evaluation
    unblocked by:  any word of a generator, any score. After `stall_s` without progress the
                   generator that is waited for is restarted; after `restarts` of them the run ends

    Args:
        score: the verdict on a completion, or None where `scores` brings it later.
        scores: the verdicts that have come since it was last asked; it never waits.
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
        score: Callable[[Prompt, Completion], Scored | None],
        scores: Callable[[], Sequence[Scored]] = lambda: (),
        request: Callable[[int, Prompt, int], Request],
        clock: Callable[[], float] = time.monotonic,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.fleet = fleet
        self.store = store
        self.buffer = buffer
        self.stream = stream
        self.ledger = ledger
        self.warn = warn
        self._settings = settings
        self._score = score
        self._scores = scores
        self._request = request
        self._clock = clock
        self.groups = Groups(buffer, stream, rules, dynamic_limit=settings.dynamic_limit)
        self.pending = self.groups.pending
        self.counters = [Counters() for _ in range(fleet.size)]  # of the living generators
        self.gone = Counters()  # busy and idle seconds, tokens of generators that are no more
        self.next_group = 0
        self.reissue: deque[tuple[int, Prompt]] = deque()  # groups that a resume begins anew
        self.exhausted = False  # every prompt is retired: no group will ever be admitted again
        self.restarts = 0
        self.duplicates = 0  # completions that came twice, or for a group that is over
        self.stop_signal: int | None = None  # set by a signal handler, heeded between two polls
        self._evaluation: tuple[Evaluate, WeightsReady] | None = None  # under way
        self._evaluations: list[Evaluated] = []
        self._starting = set(range(fleet.size))  # generators that have not said a word yet
        self._progress = 0  # moves whenever a generator got anything done, or a score came
        self._waits = Waits()

    # What the trainer asks for.

    def take(self, version: int) -> tuple[list[Group], list[Group]]:
        """The groups of the step at `version`, and those spent without variance on the way.

        The first list is empty only when no prompt is left to draw.

        Raises:
            RunError: nothing moves any more, or dynamic sampling is past its limit.
            Stopped: a signal came.
        """
        taken: list[Group] = []

        def ready() -> bool:
            self.admit(version)
            taken.extend(self.buffer.take(version, closing=self.exhausted) or ())
            self.groups.check_dynamic_limit()
            return bool(taken) or (self.exhausted and not self.buffer.untrained)

        self.poll(0.0)  # what came during the last step decides what is worth starting now
        self._await(ready, f"groups for step {version + 1}")
        if not taken:  # the end of the prompts: there is no step for the useless ones to go into
            return [], []
        return taken, self.groups.take_useless()

    def publish(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        """Push weights to every generator; completions in flight go on with them."""
        self._await(
            lambda: self.store.free_slot() is not None,
            "a generator to copy earlier weights",
            stoppable=False,
        )
        broadcast(self.fleet, self.store.write(version, tensors))

    def settle(self) -> None:
        """Wait until every generator has started and has the weights: none of that is idle time."""
        self._await(lambda: not self.store.behind, "the generators to start")

    def evaluate(self, step: int, requests: Sequence[Request]) -> None:
        """Ask the first generator for held-out completions at the weights published last, which
        are kept for it. One evaluation is under way at a time: an earlier one is waited for."""
        self._await(
            lambda: self._evaluation is None,
            "the held-out evaluation before this one",
            stoppable=False,
        )
        asked = Evaluate(step=step, requests=tuple(requests))
        self._evaluation = asked, self.store.hold()
        self.fleet.send(0, asked)

    def evaluations(self, *, wait: bool) -> list[Evaluated]:
        """Evaluations that have come in; with `wait`, the outstanding one too."""
        self._await(
            lambda: not wait or self._evaluation is None, "a held-out evaluation", stoppable=False
        )
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
            owed = self.groups.owed(self.fleet.size)
            generator = owed.index(min(owed))
            group = PendingGroup(index, prompt, version, generator, self._settings.completions)
            self.groups.admit(group)
            submit.setdefault(generator, []).extend(self._requests(group))
        for generator, requests in submit.items():
            self.fleet.send(generator, Submit(requests=tuple(requests)))

    def poll(self, timeout_s: float) -> None:
        """Take in scores and what the generators say, waiting at most `timeout_s` for the first."""
        came = self._scores()
        for scored in came:
            self.groups.put(self.pending[scored.completion.group], scored.completion, scored)
        self._progress += len(came)
        asked, evaluating = self._clock(), self._evaluation is not None
        words = self.fleet.poll(0.0 if came else timeout_s)
        waited = self._clock() - asked
        if evaluating:
            self._waits.evaluation_s += waited
        else:
            self._waits.idle_s += waited
        distrusted: set[int] = set()
        for generator, word in words:
            if generator not in distrusted and (reason := self._receive(generator, word)):
                distrusted.add(generator)
                self._replace(generator, reason)

    def take_waits(self) -> Waits:
        """How long the trainer has waited since this was last asked."""
        waits, self._waits = self._waits, Waits()
        return waits

    @property
    def waiting_tokens(self) -> int:
        """Tokens of delivered completions that no step has taken."""
        return self.groups.tokens

    def held_groups(self) -> tuple[Group, ...]:
        """Finished groups that no step has taken."""
        return self.groups.held()

    def close_ledger(self) -> dict[str, int]:
        """The token account at this moment; raises LedgerError if it does not close."""
        return self.ledger.close(
            generated=sum(c.tokens_generated for c in self.counters),
            in_flight=sum(c.tokens_in_flight for c in self.counters),
            waiting=self.waiting_tokens,
        )

    def end_generator(self, reason: str, last: Counters) -> None:
        """Book what a generator had done, by its last word; what is undelivered is discarded."""
        self.ledger.end_generator(
            reason, generated=last.tokens_generated, in_flight=last.tokens_in_flight
        )
        self.gone = Counters(
            tokens_generated=self.gone.tokens_generated + last.tokens_generated,
            busy_s=self.gone.busy_s + last.busy_s,
            idle_s=self.gone.idle_s + last.idle_s,
        )

    # What the generators say.

    def _receive(self, generator: int, word: Word) -> str | None:
        """Take one word in, or say why its sender is to be replaced."""
        self._starting.discard(generator)
        match word:
            case Lost(reason=reason):
                return reason
            case Failed(reason=reason):
                return f"generator {generator} failed: {reason}"
            case Progress():
                return self._receive_progress(generator, word)
            case WeightsLoaded():
                self.store.release(generator, word)
                self._progress += 1
            case Evaluated():
                asked, held = self._evaluation or (None, None)
                version = held.version if held else -1
                fault = fault_in_evaluation(word, asked, version, self._settings.vocabulary)
                if fault or held is None:
                    return f"generator {generator} answered garbage: {fault}"
                self.store.let_go(held)
                self._evaluation = None
                self._evaluations.append(word)
                self._progress += 1
        return None

    def _receive_progress(self, generator: int, word: Progress) -> str | None:
        before = self.counters[generator]
        fault = fault_in_progress(
            word,
            before,
            self.pending,
            issued=self.next_group,
            newest=self.store.last.version if self.store.last else 0,
            size=self._settings.completions,
            vocabulary=self._settings.vocabulary,
        )
        if fault:
            return f"generator {generator} answered garbage: {fault}"
        self.counters[generator] = now = word.counters
        awaited = news(word.completions, self.pending)
        self.duplicates += len(word.completions) - len(awaited)
        for completion in awaited:
            group = self.pending[completion.group]
            self.groups.put(group, completion, self._score(group.prompt, completion))
        if (now.tokens_generated, now.evaluation_s) != (
            before.tokens_generated,
            before.evaluation_s,
        ):
            self._progress += 1
        return None

    def _replace(self, generator: int, reason: str) -> None:
        """A generator is gone: what it had not delivered is discarded and asked for again, from
        the process in its place, which gets the newest weights first.

        Raises:
            RunError: too many were lost.
        """
        self.restarts += 1
        if self.restarts > self._settings.restarts:
            raise RunError(
                f"{reason}; execution.restarts = {self._settings.restarts} is used up"
                if self._settings.restarts
                else reason
            )
        self.warn(f"{reason}; restarted ({self.restarts} of {self._settings.restarts})")
        self.end_generator(LOST, self.counters[generator])
        self.counters[generator] = Counters()
        self.fleet.restart(generator)
        self._starting.add(generator)
        asked, held = self._evaluation if self._evaluation and generator == 0 else (None, None)
        for ready in self.store.again(generator, held):
            self.fleet.send(generator, ready)
            if asked and ready == held:
                self.fleet.send(generator, asked)
        mine = [p for p in self.pending.values() if p.generator == generator]
        if requests := [r for p in mine for r in self._requests(p)]:
            self.fleet.send(generator, Submit(requests=tuple(requests)))

    # Arithmetic and deadlines.

    def _appetite(self) -> int:
        outstanding = sum(self.groups.owed(self.fleet.size))
        slots = self.fleet.size * self._settings.slots
        return self.buffer.appetite(outstanding, slots, self._settings.completions)

    def _requests(self, group: PendingGroup) -> list[Request]:
        return [self._request(group.index, group.prompt, sample) for sample in group.missing]

    def _next_prompt(self) -> tuple[int, Prompt]:
        if self.reissue:
            return self.reissue.popleft()
        prompt = self.stream.draw()
        self.next_group += 1
        return self.next_group - 1, prompt

    def _await(self, done: Callable[[], bool], awaited: str, *, stoppable: bool = True) -> None:
        """The only wait. A poll counts as one second at most, so that a job that was stopped, or a
        machine that slept, does not look like a stall.

        Args:
            stoppable: the run's state is whole here, so a signal may end the wait.
        """
        quiet_s, seen = 0.0, self._progress
        while True:
            if done():
                return
            if stoppable and self.stop_signal is not None:
                raise Stopped(self.stop_signal)
            asked = self._clock()
            self.poll(POLL_S)
            quiet_s += min(1.0, self._clock() - asked)
            if self._progress != seen:
                quiet_s, seen = 0.0, self._progress
            stall_s = self._settings.stall_s
            if quiet_s > stall_s and not (
                quiet_s <= START_S and (self._starting or in_checks(self.pending))
            ):
                self._replace(
                    *culprit(
                        f"waited {stall_s:.0f} s for {awaited} without progress",
                        starting=self._starting,
                        evaluating=self._evaluation is not None,
                        store=self.store,
                        pending=self.pending,
                    )
                )
                quiet_s = 0.0
