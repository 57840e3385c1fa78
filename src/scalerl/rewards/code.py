"""Code answers: the last Python block of a completion, run against tests in the sandbox.

    pool = CodePool(workers=2)                       # InputError where no sandbox works
    pool.submit(ticket, completion_text, tests)      # returns at once
    for done in pool.collect(timeout_s=1.0): ...     # [Checked(ticket, outcome, detail), …]
    pool.close()                                     # at once, whatever still runs
    code_outcome(completion_text, tests)             # blocking, for one

`tests` come from `read_tests(prompt.answer)`. Outcomes, each with a line of detail:

- ``correct``    every test passed;
- ``wrong``      another output, an exception, an exit status other than 0, a limit other than time;
- ``no_answer``  no closed Python block after the thinking (`code_extract`);
- ``timeout``    a test ran past `Limits.time_s`, or all together past `Limits.total_s`;
- ``error``      the check itself failed: tests that prove nothing, or a sandbox that broke twice.

Expected outputs never enter the sandbox, and the comparison (`code_compare`) happens here. A test
whose expected output is empty is passed only by a program that came to its end, by itself or by
``sys.exit(0)``, and printed nothing; `os._exit` there is wrong.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from scalerl.errors import RunError
from scalerl.rewards.code_compare import same_output, same_value
from scalerl.rewards.code_extract import Mode, extract_code
from scalerl.rewards.code_tests import Tests, read_livecodebench, read_tests, write_tests
from scalerl.rewards.exact import Outcome
from scalerl.rewards.sandbox import Kind, Limits, Run, Sandbox, SandboxBroken
from scalerl.rewards.sandbox_probe import choose_kind

CLOSE_S = 15.0  # for all workers to end; their sandboxes are killed before

__all__ = [
    "Checked",
    "CodePool",
    "Limits",
    "Tests",
    "code_outcome",
    "extract_code",
    "read_livecodebench",
    "read_tests",
    "write_tests",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One finished check."""

    ticket: Hashable  # as given to `submit`
    outcome: Outcome
    detail: str  # one line: which test, and how it ended


def check_program(sandbox: Sandbox, text: str, tests: Tests, mode: Mode) -> tuple[Outcome, str]:
    """Extract the program of a completion and run it against every test, stopping at a failure."""
    if tests.problem:
        return "error", tests.problem
    source = extract_code(text, mode)
    if source is None:
        return "no_answer", "no closed Python block after the thinking"
    return _check_calls(sandbox, source, tests) or _check_printed(sandbox, source, tests)


def _check_printed(sandbox: Sandbox, source: str, tests: Tests) -> tuple[Outcome, str]:
    spent_s = 0.0
    for number, test in enumerate(tests.printed, 1):
        left_s = sandbox.limits.total_s - spent_s
        if left_s <= 0:
            return "timeout", f"test {number}: the tests together took longer than total_s"
        expected = test.stdout
        run = sandbox.run_script(
            source, test.stdin.encode(errors="replace"), expected_bytes=len(expected), wall_s=left_s
        )
        spent_s += run.wall_s
        where = f"test {number} of {len(tests)}"
        if failure := _failure(run, where):
            return failure
        if not expected.strip() and not run.completed:
            return "wrong", f"{where}: left before its end without output"
        if not same_output(run.stdout.decode(errors="replace"), expected):
            return "wrong", f"{where}: another output"
    return "correct", f"{len(tests)} tests passed"


def _check_calls(sandbox: Sandbox, source: str, tests: Tests) -> tuple[Outcome, str] | None:
    if not tests.calls:
        return None
    run = sandbox.run_calls(
        source,
        tests.function,
        [list(t.arguments) for t in tests.calls],
        expected_bytes=len(write_tests(tests)),
    )
    for number, (value, test) in enumerate(zip(run.values, tests.calls, strict=False), 1):
        if not same_value(value, test.value):
            return "wrong", f"test {number} of {len(tests)}: another value"
    where = f"test {len(run.values) + 1} of {len(tests)}"
    if failure := _failure(run, where):
        return failure
    if len(run.values) < len(tests.calls):
        return "wrong", f"{where}: left without a value"
    return "correct", f"{len(tests)} tests passed"


def _failure(run: Run, where: str) -> tuple[Outcome, str] | None:
    """How a run that did not end well failed; None for one that did."""
    match run.end:
        case "timeout":
            return "timeout", f"{where}: ran past its time"
        case "output":
            return "wrong", f"{where}: printed more than could be right"
        case "exit" if run.status == 0:
            return None
        case "exit":
            said = run.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            how = f"signal {-run.status}" if run.status < 0 else f"exit status {run.status}"
            return "wrong", f"{where}: {how}{': ' if said else ''}{said[:200]}"


class CodePool:
    """Workers that check programs beside the caller, each with a warm sandbox of its own.

    A worker is a thread that waits for its sandbox; it uses next to no CPU in this process. Every
    submitted ticket comes back exactly once, whatever its program does.
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        limits: Limits | None = None,
        allow_unsandboxed: bool = False,
        mode: Mode = "strict",
        kind: Kind | None = None,
    ) -> None:
        self.kind: Kind = kind or choose_kind(allow_unsandboxed=allow_unsandboxed)
        self.limits = limits or Limits()
        self._mode: Mode = mode
        self._todo: queue.SimpleQueue[tuple[Hashable, str, Tests] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Checked | BaseException] = queue.SimpleQueue()
        self._open = 0
        self._closed = False
        self._sandboxes = [Sandbox(kind=self.kind, limits=self.limits) for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._work, args=(sandbox,), name=f"code-{i}", daemon=True)
            for i, sandbox in enumerate(self._sandboxes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pending(self) -> int:
        """Tickets submitted and not yet collected."""
        return self._open

    def submit(self, ticket: Hashable, text: str, tests: Tests) -> None:
        """Have one completion checked; its verdict comes with a later `collect`.

        Raises:
            RunError: the pool is closed.
        """
        if self._closed:
            raise RunError("code answers cannot be checked: the pool is closed")
        self._open += 1
        self._todo.put((ticket, text, tests))

    def collect(self, timeout_s: float) -> list[Checked]:
        """All finished checks; waits up to `timeout_s` for the first where tickets are pending.

        Raises:
            RunError: a worker met a fault of its own and ended; names it.
        """
        found: list[Checked | BaseException] = []
        with contextlib.suppress(queue.Empty):  # nothing more has finished by now
            if self._open:
                found.append(self._done.get(timeout=max(timeout_s, 1e-3)))
            while self._open:
                found.append(self._done.get_nowait())
        done: list[Checked] = []
        for item in found:
            if isinstance(item, BaseException):
                raise RunError(
                    f"a worker for code answers ended ({type(item).__name__}: {item}); this is no "
                    "answer's fault: `scalerl doctor` says which sandboxes work here"
                ) from item
            done.append(item)
        self._open -= len(done)
        return done

    def close(self) -> None:
        """End the workers and their sandboxes, with whatever still runs in them."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._todo.put(None)
        for sandbox in self._sandboxes:
            sandbox.abort()
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:  # one that is held up is a daemon: it ends with this process
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _work(self, sandbox: Sandbox) -> None:
        try:
            with sandbox:
                while (item := self._todo.get()) is not None and not self._closed:
                    ticket, text, tests = item
                    outcome, detail = self._check(sandbox, text, tests)
                    self._done.put(Checked(ticket=ticket, outcome=outcome, detail=detail))
        except Exception as error:  # tolerates nothing: `collect` raises it in the run's thread
            self._done.put(error)
            raise

    def _check(self, sandbox: Sandbox, text: str, tests: Tests) -> tuple[Outcome, str]:
        for attempt in range(2):
            try:
                return check_program(sandbox, text, tests, self._mode)
            except SandboxBroken as error:  # it starts anew with the next run
                if attempt or self._closed:
                    return "error", f"the sandbox broke twice: {error}"
        raise AssertionError("unreachable")


def code_outcome(
    text: str, tests: Tests, limits: Limits | None = None, *, allow_unsandboxed: bool = False
) -> Outcome:
    """Check one completion in a sandbox made for it (about a tenth of a second); blocking."""
    with CodePool(limits=limits, allow_unsandboxed=allow_unsandboxed) as pool:
        pool.submit(0, text, tests)
        while not (done := pool.collect(1.0)):
            pass
        return done[0].outcome
