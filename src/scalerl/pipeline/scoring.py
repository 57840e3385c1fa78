"""Completions in, scored completions out: +1 correct and ended, −1 otherwise.

submit ─▶ told at once
       └▶ workers and sandboxes, beside training ─▶ collect
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable

from scalerl.errors import RunError
from scalerl.messages import Completion, Prompt, Scored
from scalerl.rewards.scorer import Checked, Scorer

PATIENCE_S = 1.0  # of one look while all scores are waited for

Score = Callable[[Prompt, Completion], Scored | None]


class Scoring:
    """The scorer of a run, asked about completions. For one thread.

    Args:
        decode: token ids to text.
    """

    def __init__(self, scorer: Scorer, decode: Callable[[list[int]], object]) -> None:
        self._scorer = scorer
        self._decode = decode
        self._tickets = itertools.count()
        self._asked: dict[int, Completion] = {}  # by ticket
        self._aside: list[Scored] = []  # came while `score_all` waited for others

    def submit(self, prompt: Prompt, completion: Completion) -> Scored | None:
        """The verdict where it is told at once; else None, and `collect` brings it."""
        return self._submit(next(self._tickets), prompt, completion)

    def collect(self) -> list[Scored]:
        """The verdicts that have come since this was last asked; never waits."""
        came, self._aside = self._aside, []
        return came + [answer for _, answer in self._came(0.0)]

    def wait(self, prompt: Prompt, completion: Completion) -> Scored:
        """The verdict on a completion, waited for."""
        return scored(completion, self._scorer.score_now(prompt, self._text(completion)))

    def score_all(self, answers: Iterable[tuple[Prompt, Completion]]) -> list[Scored]:
        """The verdicts on all of these, in their order; the checks run side by side.

        Raises:
            RunError: the workers broke, or no check ended by the time when one must.
        """
        found: list[Scored | None] = []
        places: dict[int, int] = {}  # in `found`, by ticket
        waiting: dict[int, Prompt] = {}  # by ticket
        for place, (prompt, completion) in enumerate(answers):
            ticket = next(self._tickets)
            found.append(self._submit(ticket, prompt, completion))
            if found[-1] is None:
                places[ticket], waiting[ticket] = place, prompt
        last = time.monotonic()
        while places:
            came = self._came(PATIENCE_S)
            for ticket, answer in came:
                if (place := places.pop(ticket, None)) is None:
                    self._aside.append(answer)
                else:
                    found[place] = answer
            if came:
                last = time.monotonic()
            elif time.monotonic() - last > (wait_s := self._scorer.wait_s):
                raise RunError(
                    f"waited {wait_s:.0f} s for the checks of {len(places)} answers, the first to "
                    f"prompt {waiting[min(places)].id!r}: no verdict"
                )
        return [answer for answer in found if answer is not None]

    def _submit(self, ticket: int, prompt: Prompt, completion: Completion) -> Scored | None:
        checked = self._scorer.submit_unless_told(ticket, prompt, self._text(completion))
        if checked is not None:
            return scored(completion, checked)
        self._asked[ticket] = completion
        return None

    def _came(self, timeout_s: float) -> list[tuple[int, Scored]]:
        if not self._asked:
            return []
        return [
            (c.ticket, scored(self._asked.pop(c.ticket), Checked(c.outcome, c.score)))
            for c in self._scorer.collect(timeout_s)
        ]

    def _text(self, completion: Completion) -> str:
        """What was written, without the token that ended it."""
        ids = completion.token_ids[:-1] if completion.finish == "stop" else completion.token_ids
        return str(self._decode(list(ids)))


def make_score(scoring: Scoring, *, waits: bool) -> Score:
    """How rollouts are scored: where a run must be the same every time, each verdict is waited for
    before anything goes on."""
    return scoring.wait if waits else scoring.submit


def scored(completion: Completion, checked: Checked) -> Scored:
    """The verdict as a reward. A completion cut at the limit is not passed, whatever it said before
    the cut, in the reward as in pass rates: where `algorithm.truncated` keeps it, writing on and on
    behind a right answer would otherwise be taught. Its outcome stays what the check said."""
    passed = checked.outcome == "correct" and completion.finish == "stop"
    return Scored(completion=completion, reward=1.0 if passed else -1.0, outcome=checked.outcome)
