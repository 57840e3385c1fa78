"""The one door to every reward: completions go in, outcomes come out, slow checks run beside.

    submit(ticket, prompt, text) ─▶ told at once: exact, no answer, same text, numbers
                                 └▶ worker processes: formulas, reasoning-gym, verifiers, plug-ins
                                 └▶ sandboxes: code
    collect() ─▶ [(ticket, outcome, score), …] in any order, each ticket once

Which check a task has is chosen in one place, `Scorer._start`.
"""

from __future__ import annotations

import itertools
import math
import queue
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from scalerl.errors import InputError, RunError
from scalerl.messages import Prompt
from scalerl.rewards.code import CodePool
from scalerl.rewards.exact import Outcome, exact_outcome
from scalerl.rewards.extraction import THINK, THINK_END, Mode, final_answer, solution_part
from scalerl.rewards.gold_check import code_tests
from scalerl.rewards.math import PRELOAD, math_job, quick_outcome
from scalerl.rewards.worker import TASKSET
from scalerl.rewards.workers import Verdict, Workers

BUILT_IN = ("exact", "math", "code", "reasoning_gym", "verifiers")
FOREIGN = ("reasoning_gym", "verifiers")  # scorers of other people, tried before a run
TRIED = 10  # entries of each of their data sets
JUNK = ("", "I do not know.", "?", "<answer></answer>", r"\boxed{}")
HOW_STATED = ", or say how it is stated, such as answer = '#### {answer}' in the source"
STATED = ("{}", r"\boxed{{{}}}", "<answer>{}</answer>", "Answer: {}")  # a right answer, as said
POLL_S = 0.01
WAIT_S = 600.0  # for one verdict: beyond the starts of workers and the limits of all programs

_OUTCOMES = frozenset(get_args(Outcome))


class Checked(NamedTuple):
    """The verdict on one completion."""

    outcome: Outcome
    score: float  # in [0, 1]; 1 or 0 where a check says only right or wrong


class Collected(NamedTuple):
    ticket: int
    outcome: Outcome
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How the answers of a task are checked."""

    reward: str  # exact, math, code, reasoning_gym, verifiers, or package.module:function
    threshold: float = 1.0  # a score of at least this is correct


class Scorer:
    """Scores completions; usable from any thread.

    Args:
        checks: how each task is checked.
        details: by prompt id, what a reward needs beside the gold answer: `golds`, `tests`, or a
            entry of a reasoning-gym data set or verifiers taskset.
        thinking_open: the chat template has opened the thinking before the completion begins.
        limit_s: seconds a check may take in a worker before it is killed: outcome `timeout`.

    Raises:
        InputError: a task whose check is unknown.
    """

    def __init__(
        self,
        checks: Mapping[str, Check],
        details: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        thinking_open: bool = False,
        mode: Mode = "strict",
        workers: int = 1,
        limit_s: float = 3.0,
        memory_bytes: int = 2 << 30,
        allow_unsandboxed_code: bool = False,
    ) -> None:
        for task, check in checks.items():
            if check.reward not in BUILT_IN and ":" not in check.reward:
                raise InputError(
                    f"task {task!r}: no reward {check.reward!r}; there are {', '.join(BUILT_IN)}, "
                    "or your own as package.module:function"
                )
        self._checks = dict(checks)
        self._details = details or {}
        self._thinking_open = thinking_open
        self._mode: Mode = mode
        rewards = {check.reward for check in checks.values()}
        preload = (*(PRELOAD if "math" in rewards else ()),)
        preload += ("reasoning_gym",) if "reasoning_gym" in rewards else ()
        tasksets = {d["taskset"] for d in self._details.values() if "taskset" in d}
        preload += tuple(f"{TASKSET}{name}" for name in sorted(tasksets))
        self._workers = Workers(
            count=workers, limit_s=limit_s, memory_bytes=memory_bytes, preload=preload
        )
        self._code: CodePool | None = None
        if "code" in rewards:
            self._code = CodePool(workers=workers, allow_unsandboxed=allow_unsandboxed_code)
        self._code_futures: dict[int, Future[Checked]] = {}
        self._numbers = itertools.count()
        self._done: queue.SimpleQueue[tuple[int, str, Future[Checked]]] = queue.SimpleQueue()
        self._open = 0
        self.counts: Counter[tuple[str, str]] = Counter()  # (task, outcome) of all that was scored

    @property
    def pending(self) -> int:
        """Tickets submitted and not collected."""
        return self._open

    @property
    def wait_s(self) -> float:
        """Seconds in which some pending check gives its verdict, unless the workers hang."""
        return WAIT_S + self._workers.limit_s

    def submit(self, ticket: int, prompt: Prompt, text: str) -> None:
        """Have a completion scored; its ticket comes back from `collect` exactly once.

        Raises:
            InputError: a task that the scorer does not know.
            RunError: the workers do not start.
        """
        self._expect(ticket, prompt, self._start(prompt, text))

    def submit_unless_told(self, ticket: int, prompt: Prompt, text: str) -> Checked | None:
        """The verdict where it is told at once; else None, and the ticket comes from `collect`.

        Raises:
            InputError: a task that the scorer does not know.
            RunError: the workers do not start.
        """
        future = self._start(prompt, text)
        if not future.done():
            self._expect(ticket, prompt, future)
            return None
        checked = future.result()
        self.counts[prompt.task, checked.outcome] += 1
        return checked

    def _expect(self, ticket: int, prompt: Prompt, future: Future[Checked]) -> None:
        self._open += 1
        future.add_done_callback(lambda f: self._done.put((ticket, prompt.task, f)))

    def collect(self, timeout_s: float = 0.0) -> list[Collected]:
        """All that is ready; waits up to `timeout_s` for the first where any is pending.

        Raises:
            RunError: the workers broke.
        """
        ready: list[Collected] = []
        deadline = time.monotonic() + timeout_s
        while self._open > len(ready):
            self._drain_code()
            patience = deadline - time.monotonic() if not ready else 0.0
            if self._code_futures:
                patience = min(patience, POLL_S)
            try:
                ticket, task, future = (
                    self._done.get(timeout=patience) if patience > 0 else self._done.get_nowait()
                )
            except queue.Empty:  # nothing yet: look again until the time is up
                if ready or time.monotonic() >= deadline:
                    break
                continue
            checked = future.result()
            self.counts[task, checked.outcome] += 1
            ready.append(Collected(ticket, *checked))
        self._open -= len(ready)
        return ready

    def score_now(self, prompt: Prompt, text: str) -> Checked:
        """The verdict on one completion, waiting for it; apart from any tickets.

        Raises:
            RunError: the workers broke, or gave no verdict by the time when every check has one.
        """
        future = self._start(prompt, text)
        wait_s = self.wait_s
        deadline = time.monotonic() + wait_s
        while not future.done() and self._code_futures and time.monotonic() < deadline:
            self._drain_code()
            time.sleep(POLL_S / 10)
        try:
            checked = future.result(timeout=max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise RunError(
                f"waited {wait_s:.0f} s for the {self._checks[prompt.task].reward} check of an "
                f"answer to prompt {prompt.id!r}: no verdict"
            ) from None
        self.counts[prompt.task, checked.outcome] += 1
        return checked

    def prepare(self) -> None:
        """Try what is about to be relied on: plug-ins are imported, and reasoning-gym's scorers
        see empty, junk and right answers.

        Raises:
            InputError: a plug-in that cannot be imported; a scorer that grants junk the threshold
                or refuses its own answer.
        """
        for task, check in self._checks.items():
            if check.reward not in BUILT_IN:
                verdict = self._workers.check({"kind": "load", "path": check.reward})
                if verdict["outcome"] != "correct":
                    raise InputError(
                        f"task {task!r}: reward {check.reward!r} cannot be imported: "
                        f"{verdict.get('reason')}"
                    )

    def try_entries(self, prompts: list[Prompt]) -> None:
        """Give the scorers of these reasoning-gym and verifiers prompts empty, junk and right
        answers, `TRIED` prompts of each task.

        Raises:
            InputError: junk reaches the threshold, or the right answer does not.
        """
        tried: Counter[str] = Counter()
        for prompt in prompts:
            check = self._checks[prompt.task]
            if check.reward in FOREIGN and tried[prompt.task] < TRIED:
                tried[prompt.task] += 1
                self._try_entry(prompt, check)

    def _try_entry(self, prompt: Prompt, check: Check) -> None:
        """One entry: nonsense must stay below the threshold, the right answer reach it in one of
        the ways in which it may be stated. Where none is known, only nonsense is tried."""
        foreign = check.reward == "verifiers"
        right = [form.format(prompt.answer) for form in (STATED if foreign else STATED[:1])]
        tries = [(answer, False) for answer in JUNK if answer not in right]
        if prompt.answer:
            tries += [(answer, True) for answer in right]
        said: dict[bool, tuple[float, str, str]] = {}  # the best score of both kinds
        for answer, is_right in tries:
            job = self._task_job if foreign else self._entry_job
            verdict = self._workers.check(job(prompt, answer))
            told = (verdict.get("score", 0.0), answer, verdict.get("reason", ""))
            said[is_right] = max(said.get(is_right, told), told, key=lambda t: t[0])
        for is_right, (score, answer, reason) in said.items():
            if (score >= check.threshold) != is_right:
                raise InputError(
                    f"task {prompt.task!r}: {check.reward.replace('_', '-')} gives "
                    f"{'its own answer' if is_right else 'nonsense'} ({answer!r}) {score:g} at a "
                    f"threshold of {check.threshold:g}, for {prompt.text[:60]!r}"
                    f"{f' ({reason})' if reason else ''}: choose another threshold or another "
                    f"data set{HOW_STATED if foreign and is_right else ''}"
                )

    def close(self) -> None:
        """End workers and sandboxes; what is pending ends as `error`."""
        self._workers.close()
        if self._code is not None:
            self._code.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, prompt: Prompt, text: str) -> Future[Checked]:
        """Begin the check of a completion: the only place where rewards are told apart."""
        check = self._checks.get(prompt.task)
        if check is None:
            raise InputError(f"no reward is known for task {prompt.task!r}")
        match check.reward:
            case "exact":
                return _told(exact_outcome(text, prompt.answer))
            case "math":
                return self._math(prompt, text)
            case "reasoning_gym":
                return self._entry(prompt, text, check)
            case "verifiers":
                return self._taskset(prompt, text, check)
            case "code":
                return self._program(prompt, text)
            case path:
                fields = {n: getattr(prompt, n) for n in ("id", "text", "answer", "task")}
                fields["golds"] = self._golds(prompt)
                job = {"kind": "plugin", "path": path, "completion": text, "prompt": fields}
                return self._ask(job, check.threshold)

    def _golds(self, prompt: Prompt) -> list[str]:
        return list(self._details.get(prompt.id, {}).get("golds", [prompt.answer]))

    def _answer(self, text: str) -> str | None:
        return final_answer(text, mode=self._mode, thinking_open=self._thinking_open)

    def _math(self, prompt: Prompt, text: str) -> Future[Checked]:
        answer, golds = self._answer(text), self._golds(prompt)
        outcome = quick_outcome(answer, golds)
        if outcome is not None or answer is None:
            return _told(outcome or "no_answer")
        return self._ask(math_job(answer, golds), 1.0)

    def _entry(self, prompt: Prompt, text: str, check: Check) -> Future[Checked]:
        answer = self._answer(text)
        if answer is None:
            return _told("no_answer")
        if answer == prompt.answer.strip():
            return _told("correct")
        return self._ask(self._entry_job(prompt, answer), check.threshold)

    def _entry_job(self, prompt: Prompt, answer: str) -> dict[str, Any]:
        detail = dict(self._details.get(prompt.id, {}))
        return {"kind": "reasoning_gym", "detail": detail, "answer": answer}

    def _taskset(self, prompt: Prompt, text: str, check: Check) -> Future[Checked]:
        """The whole solution is judged: a taskset extracts the answer as it likes."""
        answer = solution_part(text, thinking_open=self._thinking_open)
        if answer is None or not answer.strip():
            return _told("no_answer")
        thinking = text[: len(text) - len(answer)].removeprefix(THINK).removesuffix(THINK_END)
        return self._ask(self._task_job(prompt, answer, thinking), check.threshold)

    def _task_job(self, prompt: Prompt, answer: str, thinking: str = "") -> dict[str, Any]:
        detail = {n: self._details[prompt.id][n] for n in ("taskset", "settings", "data")}
        return {"kind": "verifiers", "detail": detail, "thinking": thinking, "answer": answer}

    def _program(self, prompt: Prompt, text: str) -> Future[Checked]:
        assert self._code is not None
        future: Future[Checked] = Future()
        number = next(self._numbers)
        self._code_futures[number] = future
        tests = code_tests(self._details[prompt.id]["tests"])
        self._code.submit(number, text, tests)
        return future

    def _drain_code(self) -> None:
        if self._code is None:
            return
        for done in self._code.collect(0.0):
            future = self._code_futures.pop(int(str(done.ticket)))
            future.set_result(_told(done.outcome).result())

    def _ask(self, job: dict[str, Any], threshold: float) -> Future[Checked]:
        future: Future[Checked] = Future()

        def told(verdict: Future[Verdict]) -> None:
            try:
                future.set_result(_judged(verdict.result(), threshold))
            except RunError as error:  # raised where the verdict is waited for
                future.set_exception(error)

        self._workers.submit(job).add_done_callback(told)
        return future


def _judged(verdict: Verdict, threshold: float) -> Checked:
    """A worker's word as an outcome: a score is correct from the threshold on."""
    if "score" in verdict:
        score = verdict["score"]
        if not math.isfinite(score):
            return Checked("error", 0.0)
        return Checked("correct" if score >= threshold else "wrong", score)
    outcome = verdict["outcome"]
    if outcome not in _OUTCOMES:  # a plug-in's own word
        return Checked("error", 0.0)
    return Checked(outcome, float(outcome == "correct"))


def _told(outcome: Outcome) -> Future[Checked]:
    future: Future[Checked] = Future()
    future.set_result(Checked(outcome, float(outcome == "correct")))
    return future
