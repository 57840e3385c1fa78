"""Runs of a study as processes: `scalerl train` one by one or several at once, and their ends.

    waiting ─▶ start or resume ─▶ running ─▶ exit 0: done
                     ▲                    ├─▶ exit 1, 2: failed, with the reason it printed
                     └── ended by a signal┘   (resumed, RETRIES times)

A run is asked to end when its runner is gone, and holds the lock of its folder for as long as it
lives: the next runner waits for that, ends what does not end by itself, and resumes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scalerl.config import Config, dump_toml
from scalerl.errors import RunError
from scalerl.experiments.study_file import STARTS, Study, Variant
from scalerl.experiments.study_progress import (
    ends,
    last_words,
    overview,
    progress,
    time_left,
    words_of_time,
)
from scalerl.experiments.study_state import RunRow, StudyState
from scalerl.placement.commands import Command, Here, Place, environment, try_lock

RETRIES = 2
"""Times in one sitting that a run ended by a signal is resumed."""
POLL_S = 0.2
END_S = 60.0
"""A run that was asked to end gets so long before it is killed."""
LOG = "run.log"
SCALERL = (sys.executable, "-m", "scalerl")

Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Child:
    """A run at work."""

    row: RunRow
    process: Command
    began: float
    seconds_before: float
    steps: int = -1
    """Done, when it was last written down."""
    told: float = 0.0
    """When that was."""
    asked: bool = False
    """Whether it was asked to end because it has generated its tokens."""


class Runner:
    """Brings every waiting run of a study to its wanted steps."""

    def __init__(
        self,
        study: Study,
        state: StudyState,
        say: Say,
        *,
        jobs: int,
        command: Sequence[str] = SCALERL,
        place: Place | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.study = study
        self.state = state
        self.say = say
        self.jobs = jobs
        self.command = tuple(command)
        self.place = place or Here()
        self.clock = clock
        self.stop_signal: int | None = None
        self._children: list[Child] = []
        self._deaths: dict[str, int] = {}
        self._told = clock()

    def run(self) -> None:
        """Run until nothing waits, or until a signal asks to stop; then no child is left."""
        try:
            while self.stop_signal is None:
                self._fill()
                if not self._children:
                    return
                time.sleep(POLL_S)
                self._look()
        finally:
            self._end_children()

    def recover(self) -> None:
        """After a runner was killed: its orphans end, and their runs wait to be resumed."""
        for row in self.state.runs():
            if row.state != "running":
                continue
            self._end_orphan(row)
            steps, tokens = progress(self.state.folder / row.folder)
            self.state.update(
                row.variant, row.seed, state="waiting", pid=None,
                steps_done=steps, tokens_generated=tokens,
            )  # fmt: skip
            self.say(f"{row.name}: was interrupted at step {steps}, and will be resumed")

    # ── starting ────────────────────────────────────────────────────────────────────────────────
    def _fill(self) -> None:
        busy = {child.row.name for child in self._children}
        for row in self.state.runs():
            if len(self._children) >= self.jobs or self.stop_signal is not None:
                return
            if row.state != "waiting" or row.name in busy:
                continue
            variant = self.study.variant(row.variant)
            if not self._start_model(variant.config):
                return
            self._start(row, variant)

    def _start_model(self, config: Config) -> bool:
        """Make the start model once for all runs that share it; False if a signal came.

        Raises:
            RunError: it could not be made.
        """
        if config.model.path:
            return True
        decides = [config.model.tiny.model_dump(), config.supervised.model_dump()]
        decides.append(config.data.model_dump(exclude={"train_prompts"}))
        key = f"start {json.dumps(decides, sort_keys=True)}"
        made = self.state.fact(key)
        starts = self.state.folder / STARTS
        if made and (starts / made).is_dir():
            return True
        starts.mkdir(parents=True, exist_ok=True)
        lock = os.open(starts / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            while not try_lock(lock):  # one that a killed runner left; its next word ends it
                time.sleep(POLL_S)
            made = self._supervise(config, starts, lock)
        finally:
            os.close(lock)
        if made is None:
            return False
        self.state.note(key, made)
        return True

    def _supervise(self, config: Config, starts: Path, lock: int) -> str | None:
        """Name of the start model just made; None if a signal came."""
        file = starts / "config.toml"
        file.write_text(dump_toml(config), "utf-8")
        self.say("making the start model that the runs share")
        with (starts / "sft.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.command, "sft", str(file), "--out", str(starts)],
                stdout=subprocess.PIPE, stderr=log, env=environment(), start_new_session=True,
                pass_fds=(lock,),
            )  # fmt: skip
            out = self._await(process)
        if self.stop_signal is not None:
            return None
        if process.returncode:
            raise RunError(f"the start model could not be made: {last_words(starts / 'sft.log')}")
        return Path(out.strip().splitlines()[-1]).name

    def _await(self, process: subprocess.Popen[bytes]) -> str:
        """What a process prints, when it has ended, or was killed because a signal came."""
        while True:
            try:
                return process.communicate(timeout=POLL_S)[0].decode()
            except subprocess.TimeoutExpired:
                if self.stop_signal is not None:
                    process.kill()

    def _start(self, row: RunRow, variant: Variant) -> None:
        folder = self.state.folder / row.folder
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder.parent / "variant.toml"
        _settle(settings, dump_toml(variant.config))
        words = [
            *(*self.command, "train", str(settings), "--plain"),
            *("--run-dir", str(folder), "--starts", str(self.state.folder / STARTS)),
            *("--seed", str(row.seed), "--steps", str(row.steps_wanted)),
        ]
        if (folder / "config.toml").is_file():
            words.append("--resume")
        self.state.update(  # before it starts: a runner killed in between leaves nothing unseen
            row.variant, row.seed, state="running", reason="", pid=None, attempts=row.attempts + 1
        )
        process = self.place.start(words, log=folder / LOG, lock=_lock_file(folder))
        self.state.update(row.variant, row.seed, pid=process.pid)
        self._children.append(
            Child(row=row, process=process, began=self.clock(), seconds_before=row.seconds)
        )
        again = " (resumed)" if "--resume" in words else ""
        self.say(f"{row.name}: started{again}, to step {row.steps_wanted}")

    # ── watching ────────────────────────────────────────────────────────────────────────────────
    def _look(self) -> None:
        for child in list(self._children):
            ended = child.process.poll() is not None
            self._record(child)
            if ended:
                self._children.remove(child)
                self._judge(child)
        if self.clock() - self._told > 30:
            self._told = self.clock()
            self.say(overview(self.state.runs(), self.jobs))

    def _record(self, child: Child) -> None:
        row = child.row
        steps, tokens = progress(self.state.folder / row.folder)
        now = self.clock()
        if steps != child.steps or now - child.told > 5 or child.process.poll() is not None:
            child.steps, child.told = steps, now
            self.state.update(
                row.variant, row.seed, steps_done=steps, tokens_generated=tokens,
                seconds=child.seconds_before + now - child.began,
            )  # fmt: skip
        limit = self.study.plan.budget.tokens
        if limit and tokens >= limit and not child.asked and child.process.poll() is None:
            child.asked = True
            child.process.send_signal(signal.SIGTERM)

    def _judge(self, child: Child) -> None:
        """What a process's end means for its run."""
        row, code = child.row, child.process.returncode or 0
        folder = self.state.folder / row.folder
        steps, tokens = progress(folder)
        by_signal = code < 0 or code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        limit = self.study.plan.budget.tokens
        if code == 0 or (child.asked and tokens >= limit):
            reason = ""
            if child.asked and steps < row.steps_wanted:
                reason = f"ended at step {steps}: {limit:,} tokens generated (budget.tokens)"
            elif steps < row.steps_wanted:
                reason = f"ended at step {steps}: every prompt is retired"
            self.state.update(row.variant, row.seed, state="done", reason=reason, pid=None)
            self.say(self._finished(row, reason))
            return
        deaths = self._deaths[row.name] = self._deaths.get(row.name, 0) + by_signal
        if by_signal and (self.stop_signal is not None or deaths <= RETRIES):
            self.state.update(row.variant, row.seed, state="waiting", pid=None)
            if self.stop_signal is None:
                self.say(f"{row.name}: ended by {_signal_name(code)} at step {steps}, resuming")
            return
        reason = last_words(folder / LOG)
        if by_signal:
            reason = f"ended by {_signal_name(code)} {deaths} times, last at step {steps}"
        self.state.update(row.variant, row.seed, state="failed", reason=reason, pid=None)
        self.say(f"{row.name}: FAILED: {reason}")

    def _finished(self, row: RunRow, reason: str) -> str:
        rows = self.state.runs()
        seconds = next(r.seconds for r in rows if r.name == row.name)
        over = sum(r.state in ("done", "failed", "stopped") for r in rows)
        gain = " → ".join(f"{rate:.3f}" for rate in ends(self.state.folder / row.folder))
        tail = f"; {reason}" if reason else ""
        left = time_left(rows, self.jobs)
        return f"[{over}/{len(rows)}] {row.name}: done, held-out {gain}, {seconds:.0f} s{tail}" + (
            f"; about {words_of_time(left)} left" if left else ""
        )

    # ── ending ──────────────────────────────────────────────────────────────────────────────────
    def _end_children(self) -> None:
        """Ask every run to checkpoint and end; kill what does not."""
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        for child in self._children:
            try:
                child.process.wait(END_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            self._record(child)
            self.stop_signal = self.stop_signal or signal.SIGTERM
            self._judge(child)
        self._children.clear()

    def _end_orphan(self, row: RunRow) -> None:
        """End the process that still holds the run's lock, if there is one.

        Raises:
            RunError: it does not end; it may be on another machine.
        """
        file = _lock_file(self.state.folder / row.folder)
        if not file.exists():
            return
        lock = os.open(file, os.O_RDWR)
        deadline = self.clock() + END_S
        number, killed = signal.SIGTERM, False
        try:
            while not try_lock(lock):
                if row.pid is not None and number is not None:
                    _send(row.pid, number)
                    number = None
                time.sleep(POLL_S)
                if self.clock() > deadline:
                    if killed:
                        raise RunError(f"{file}: a process that does not end holds this run")
                    number, deadline, killed = signal.SIGKILL, self.clock() + END_S, True
        finally:
            os.close(lock)


def _settle(file: Path, text: str) -> None:
    """Write settings in one move: a run of another seed may be reading them."""
    aside = file.with_name(f".{file.name}")
    aside.write_text(text, "utf-8")
    os.replace(aside, file)


def _lock_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended in between
        os.kill(pid, number)


def _signal_name(code: int) -> str:
    return signal.Signals(-code if code < 0 else code - 128).name
