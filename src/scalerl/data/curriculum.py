"""Which prompt comes next: seeded epochs, and prompts that have been mastered leave for good.

    draw → (generated, graded) → record(pass rate) → retired, or back in the next epoch

A prompt drawn and not yet recorded is *pending*. After a crash the pending ones of the checkpoint
are put back and drawn again first; nothing else of the epoch moves.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from scalerl.errors import InputError, RunError
from scalerl.messages import Prompt

Curriculum = Literal["no_positive_resampling", "uniform"]


class AllPromptsRetired(RunError):
    """Every prompt has been retired: there is nothing left to train on. The run has ended."""


class _State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream between two draws; every field JSON-able, prompts by id."""

    dataset: str  # fingerprint of the prompts' ids, tasks and answers
    seed: int
    curriculum: Curriculum
    threshold: float
    epoch: int  # of the order laid out last; 0 before the first draw
    rest: tuple[str, ...]  # still to be drawn of this epoch, in order
    again: tuple[str, ...]  # put back, to be drawn before the rest
    pending: tuple[str, ...]  # drawn and not recorded, in the order drawn
    history: dict[str, tuple[float, ...]]  # pass rate of every recorded visit


class PromptStream:
    """Draws prompts epoch by epoch from a seed.

    Each epoch is a seeded permutation of the prompts live when it begins, and visits each of them
    once, except those that retire before their turn. ``no_positive_resampling`` retires a prompt
    for good once a visit had pass rate ≥ ``threshold``; ``uniform`` retires none. The order
    depends on the set of prompts and the seed, not on the order of the file.

    Fewer prompts than a batch is fine: the next epoch follows at once, so a batch may hold a
    prompt more than once (as separate groups), and a prompt may be pending more than once.

    Paper: arXiv 2510.13786, section 3.2 (no-positive-resampling, threshold 0.9).
    Errors: InputError on no prompts, two with one id, or a threshold outside (0, 1].
    Deviations: none known; retirement takes effect at once, also for the rest of an epoch.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        *,
        seed: int,
        curriculum: Curriculum = "no_positive_resampling",
        threshold: float = 0.9,
    ) -> None:
        _check(prompts, seed, curriculum, threshold)
        self._prompts = {p.id: p for p in sorted(prompts, key=lambda p: p.id)}
        lines = (f"{p.id} {p.task} {p.answer!r}" for p in self._prompts.values())
        self._dataset = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        self._seed = seed
        self._curriculum: Curriculum = curriculum
        self._threshold = threshold
        self._epoch = 0
        self._rest: deque[str] = deque()
        self._again: deque[str] = deque()
        self._pending: list[str] = []
        self._history: dict[str, list[float]] = {}
        self._retired: set[str] = set()

    @property
    def epoch(self) -> int:
        """Ordinal of the epoch being drawn, from 1; 0 before the first draw."""
        return self._epoch

    @property
    def retired(self) -> frozenset[str]:
        """Ids that will never be drawn again."""
        return frozenset(self._retired)

    @property
    def n_live(self) -> int:
        """Prompts not retired."""
        return len(self._prompts) - len(self._retired)

    @property
    def history(self) -> Mapping[str, tuple[float, ...]]:
        """Pass rate of every recorded visit, by prompt id, in the order recorded."""
        return {prompt_id: tuple(rates) for prompt_id, rates in self._history.items()}

    def prompt(self, prompt_id: str) -> Prompt:
        """The prompt with this id. Errors: KeyError on one that the stream does not have."""
        return self._prompts[prompt_id]

    def draw(self) -> Prompt:
        """The next prompt: one put back if there is any, else the next of the epoch.

        It is pending until ``record`` or ``put_back``. Raises AllPromptsRetired if none is live.
        """
        prompt_id = self._next()
        self._pending.append(prompt_id)
        return self._prompts[prompt_id]

    def record(self, prompt_id: str, pass_rate: float) -> bool:
        """Take down the pass rate of one pending visit; whether the prompt is retired now.

        Record a visit when its group is used or its group is in the checkpoint: a recorded visit
        is not drawn again after a crash. Errors: ValueError on a prompt that is not pending or a
        rate outside [0, 1].
        """
        if not 0.0 <= pass_rate <= 1.0:
            raise ValueError(f"pass rate {pass_rate} of prompt {prompt_id} is not in [0, 1]")
        self._take_pending(prompt_id)
        self._history.setdefault(prompt_id, []).append(float(pass_rate))
        if self._retires(pass_rate):
            self._retired.add(prompt_id)
        return prompt_id in self._retired

    def unvisited(self, except_for: Iterable[str] = ()) -> tuple[str, ...]:
        """Pending prompts in the order drawn, once per visit.

        ``except_for``: visits the caller still holds, for example groups finished in a
        checkpoint; each mention takes off one, the earliest.
        """
        held = Counter(except_for)
        unvisited: list[str] = []
        for prompt_id in self._pending:
            if held[prompt_id] > 0:
                held[prompt_id] -= 1
            else:
                unvisited.append(prompt_id)
        return tuple(unvisited)

    def put_back(self, prompt_ids: Iterable[str]) -> None:
        """Give up pending visits: those prompts are drawn next, in this order, once each.

        Errors: ValueError on a prompt that is not pending as often as it is put back.
        """
        prompt_ids = tuple(prompt_ids)
        missing = Counter(prompt_ids) - Counter(self._pending)
        if missing:
            raise ValueError(f"put back but not pending: {', '.join(sorted(missing))}")
        for prompt_id in prompt_ids:
            self._take_pending(prompt_id)
        self._again.extendleft(reversed(prompt_ids))

    def state(self) -> dict[str, Any]:
        """Everything a restored stream needs, as JSON-able values."""
        state = _State(
            dataset=self._dataset,
            seed=self._seed,
            curriculum=self._curriculum,
            threshold=self._threshold,
            epoch=self._epoch,
            rest=tuple(self._rest),
            again=tuple(self._again),
            pending=tuple(self._pending),
            history={prompt_id: tuple(rates) for prompt_id, rates in self._history.items()},
        )
        return msgspec.to_builtins(state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; pending visits stay pending until put back or recorded.

        Errors: InputError on a state that is malformed, or of another dataset, seed, curriculum
        or threshold; the stream is then unchanged.
        """
        try:
            saved = msgspec.convert(dict(state), _State)
        except msgspec.ValidationError as error:
            raise InputError(f"curriculum state of the checkpoint is malformed: {error}") from error
        for key, then, now in (
            ("dataset", saved.dataset, self._dataset),
            ("seed", saved.seed, self._seed),
            ("curriculum", saved.curriculum, self._curriculum),
            ("threshold", saved.threshold, self._threshold),
        ):
            if then != now:
                raise InputError(
                    f"curriculum state of the checkpoint is of another {key}: {then} there, {now} "
                    "here; resume with what the run was started with, or start a new run"
                )
        for prompt_id in (*saved.rest, *saved.again, *saved.pending, *saved.history):
            if prompt_id not in self._prompts:
                raise InputError(
                    f"curriculum state of the checkpoint names unknown prompt {prompt_id}"
                )
        self._epoch = saved.epoch
        self._rest = deque(saved.rest)
        self._again = deque(saved.again)
        self._pending = list(saved.pending)
        self._history = {prompt_id: list(rates) for prompt_id, rates in saved.history.items()}
        self._retired = {
            prompt_id
            for prompt_id, rates in self._history.items()
            if any(self._retires(rate) for rate in rates)
        }

    def _retires(self, pass_rate: float) -> bool:
        return self._curriculum == "no_positive_resampling" and pass_rate >= self._threshold

    def _next(self) -> str:
        while True:
            for queue in (self._again, self._rest):
                while queue:
                    prompt_id = queue.popleft()
                    if prompt_id not in self._retired:
                        return prompt_id
            self._lay_out()

    def _lay_out(self) -> None:
        live = [prompt_id for prompt_id in self._prompts if prompt_id not in self._retired]
        if not live:
            raise AllPromptsRetired(
                f"all {len(self._prompts)} prompts are retired (a visit had pass rate ≥ "
                f"{self._threshold}); add harder prompts or raise the threshold"
            )
        self._epoch += 1
        order = np.random.default_rng((self._seed, self._epoch)).permutation(len(live))
        self._rest.extend(live[i] for i in order)

    def _take_pending(self, prompt_id: str) -> None:
        if prompt_id not in self._pending:
            raise ValueError(f"prompt {prompt_id} is not pending: not drawn, or recorded already")
        self._pending.remove(prompt_id)


def _check(prompts: Sequence[Prompt], seed: int, curriculum: str, threshold: float) -> None:
    if not prompts:
        raise InputError("no prompts to draw from: the training set is empty")
    twice = [prompt_id for prompt_id, n in Counter(p.id for p in prompts).items() if n > 1]
    if twice:
        raise InputError(f"{len(twice)} prompts occur more than once, among them {twice[0]}")
    if seed < 0:
        raise InputError(f"seed = {seed}: must not be negative")
    if curriculum not in ("no_positive_resampling", "uniform"):
        raise InputError(
            f"curriculum {curriculum!r} is unknown; choose no_positive_resampling or uniform"
        )
    if not 0.0 < threshold <= 1.0:
        raise InputError(f"threshold = {threshold}: a pass rate, must be above 0 and at most 1")
