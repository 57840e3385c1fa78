"""What happens when a run goes wrong in a way that only its figures show.

    log rows ─▶ Judge ─▶ Alarm ─▶ Watch: alarms.jsonl, a warning, and `monitor.on_alarm`

Which figures are alarming is not decided here: the caller brings the judge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, Protocol

import msgspec

from scalerl.pipeline.records import RunDirectory

Action = Literal["warn", "stop", "rollback"]


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """One alarm, raised once when its condition first holds. Set by a judge."""

    kind: Literal["truncation", "interruption", "drawdown", "mismatch", "entropy"]
    level: Literal["amber", "red"]
    step: int  # at which it was raised
    since_step: int  # where the decline began: a checkpoint up to here is sound
    message: str


class Judge(Protocol):
    """Decides from log rows, in order; stateful, one a run."""

    def on_step(self, row: dict[str, Any]) -> list[Alarm]: ...
    def on_evaluation(self, row: dict[str, Any]) -> list[Alarm]: ...


class Silent:
    """The judge that never complains."""

    def on_step(self, row: dict[str, Any]) -> list[Alarm]:
        return []

    def on_evaluation(self, row: dict[str, Any]) -> list[Alarm]:
        return []


class Alarmed(Exception):
    """A red alarm whose action ends this stretch of the run; its logs are whole."""

    def __init__(self, alarm: Alarm) -> None:
        super().__init__(f"step {alarm.step}: {alarm.message}")
        self.alarm = alarm


class Listener(Protocol):
    """Whoever watches a run; set by the command line."""

    def on_step(self, row: dict[str, Any]) -> None: ...
    def on_evaluation(self, row: dict[str, Any]) -> None: ...
    def on_warning(self, text: str) -> None: ...


@dataclasses.dataclass(slots=True, kw_only=True)
class Watch:
    """A listener that asks the judge first and acts on what it says."""

    listener: Listener
    judge: Judge
    directory: RunDirectory
    action: Action
    stopping: Callable[[], bool] = lambda: False
    """Whether the run is on its way out: a signal's checkpoint and exit code come first."""

    def on_step(self, row: dict[str, Any]) -> None:
        self.listener.on_step(row)
        self._act(self.judge.on_step(row))

    def on_evaluation(self, row: dict[str, Any]) -> None:
        self.listener.on_evaluation(row)
        self._act(self.judge.on_evaluation(row))

    def on_warning(self, text: str) -> None:
        self.listener.on_warning(text)

    def _act(self, alarms: list[Alarm]) -> None:
        """Write every alarm down; raise Alarmed for a red one unless it only warns."""
        for alarm in alarms:
            action = self._action(alarm)
            self.directory.append("alarms", {**msgspec.to_builtins(alarm), "action": action})
            self.listener.on_warning(f"step {alarm.step}: {alarm.level}: {alarm.message}")
        for alarm in alarms:
            if self._action(alarm) != "warn":
                raise Alarmed(alarm)

    def _action(self, alarm: Alarm) -> Action:
        return "warn" if alarm.level != "red" or self.stopping() else self.action
