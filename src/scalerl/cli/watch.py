"""What a person sees of a run: one live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from scalerl.config import Config

BARS = "▁▂▃▄▅▆▇█"


@contextmanager
def watching(config: Config, path: Path, *, plain: bool) -> Iterator[Watcher]:
    """A listener for the time of one run; the live panel is gone afterwards, the lines stay."""
    console = Console(highlight=False)
    watcher = Watcher(config, path, console, live=console.is_terminal and not plain)
    try:
        yield watcher
    finally:
        watcher.stop()


class Watcher:
    """Listens to a run and shows step, held-out pass rate, speed, staleness, waits, time left."""

    def __init__(self, config: Config, path: Path, console: Console, *, live: bool) -> None:
        self._config = config
        self._console = console
        self._began = time.monotonic()
        self._first_step_at: tuple[int, float] | None = None
        self._step: dict[str, Any] = {}
        self._before: dict[str, Any] = {}
        self._curve: list[dict[str, Any]] = []
        self._warned: set[str] = set()
        self._live = Live(console=console, refresh_per_second=4, transient=True) if live else None
        self._print(arithmetic(config, path))
        if self._live:
            self._live.start()

    def on_start(self, step: int, loss: float) -> None:
        total = self._config.supervised.steps
        if self._live:
            self._live.update(Text(f"supervised start  step {step}/{total}  loss {loss:.3f}"))
        elif step % 200 == 0 or step == total:
            self._print(f"supervised start  step {step:5d}/{total}  loss {loss:.4f}")

    def on_step(self, row: dict[str, Any]) -> None:
        now = time.monotonic()
        self._first_step_at = self._first_step_at or (row["step"], now)
        self._before, self._step = self._step, row
        self._warn(row)
        if self._live:
            self._live.update(self._panel())
        elif row["step"] % self._config.evaluation.every == 0:
            self._print(self._line())

    def on_evaluation(self, row: dict[str, Any]) -> None:
        self._curve.append(row)
        if self._live:
            self._live.update(self._panel())
        else:
            self._print(
                f"held-out  step {row['step']:5d}  pass rate {row['pass_rate']:.3f} "
                f"± {row['pass_rate_se']:.3f}  entropy {row['entropy']:.3f}  "
                f"{row['device_hours'] * 3600:.1f} device-seconds"
            )

    def on_warning(self, text: str) -> None:
        self._print(f"warning: {text}")

    def finish(self, ending: str) -> None:
        reason = {"done": "done", "prompts_retired": "ended early: every prompt is retired"}[ending]
        if self._curve:
            first, last = self._curve[0], self._curve[-1]
            reason += (
                f": held-out pass rate {first['pass_rate']:.3f} → {last['pass_rate']:.3f} "
                f"after {last['step']} steps"
            )
        self.close(f"{reason}, {time.monotonic() - self._began:.0f} s")

    def close(self, text: str) -> None:
        self.stop()
        self._print(text)

    def stop(self) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def _warn(self, row: dict[str, Any]) -> None:
        if row.get("skip_reason") and "skip" not in self._warned:
            self._warned.add("skip")
            self.on_warning(f"step {row['step']} taught nothing: {row['skip_reason']}")

    def _speeds(self) -> tuple[float, float]:
        """Tokens a device-second over the last step, of generators and trainer."""
        now, before = self._step, self._before
        if not before:
            before = dict.fromkeys(now, 0.0)
        hours = now["generator_device_hours"] - before["generator_device_hours"]
        made = now["tokens_generated"] - before["tokens_generated"]
        trained = now["tokens_trained"] - before["tokens_trained"]
        return made / max(1e-9, hours * 3600), trained / max(1e-9, now["busy_s"])

    def _left(self) -> str:
        if self._first_step_at is None or self._step["step"] == self._first_step_at[0]:
            return "…"
        first, at = self._first_step_at
        each = (time.monotonic() - at) / (self._step["step"] - first)
        seconds = round(each * (self._config.steps - self._step["step"]))
        return f"{seconds // 60}:{seconds % 60:02d}"

    def _line(self) -> str:
        row, (made, trained) = self._step, self._speeds()
        return (
            f"step {row['step']:5d}/{self._config.steps}  train pass rate {row['pass_rate']:.3f}  "
            f"groups {row['groups_trained']}/{row['groups']}  tokens/s {made:,.0f} | {trained:,.0f}"
            f"  staleness {row.get('staleness_mean', 0):.1f} max {row.get('staleness_max', 0)}  "
            f"idle {row['generator_idle_share']:.0%} | {row['trainer_idle_share']:.0%}  "
            f"truncated {row['truncation_rate']:.1%}  left {self._left()}"
        )

    def _panel(self) -> Group | Text:
        if not self._step:
            return Text("starting the generators, evaluating the start model …")
        row, (made, trained) = self._step, self._speeds()
        table = Table.grid(padding=(0, 2))
        table.add_row("step", f"{row['step']} of {self._config.steps}", "left", self._left())
        table.add_row("held-out pass rate", self._sparkline(), "", "")
        table.add_row(
            "training pass rate",
            f"{row['pass_rate']:.3f}",
            "groups trained",
            f"{row['groups_trained']} of {row['groups']}",
        )
        table.add_row("tokens/s generators", f"{made:,.0f}", "tokens/s trainer", f"{trained:,.0f}")
        table.add_row(
            "idle generators",
            f"{row['generator_idle_share']:.0%}",
            "idle trainer",
            f"{row['trainer_idle_share']:.0%}",
        )
        table.add_row(
            "staleness mean (max)",
            f"{row.get('staleness_mean', 0):.1f} ({row.get('staleness_max', 0)})",
            "truncated",
            f"{row['truncation_rate']:.1%}",
        )
        return Group(table)

    def _sparkline(self) -> str:
        if not self._curve:
            return "…"
        rates = [row["pass_rate"] for row in self._curve]
        bars = "".join(BARS[min(7, int(8 * rate))] for rate in rates[-32:])
        return f"{bars} {rates[-1]:.3f}"

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)
        sys.stdout.flush()


def arithmetic(config: Config, path: Path) -> str:
    """The run's sizes in words, before it starts."""
    batch, regime = config.batch, config.regime
    bound = f" k = {regime.k}" if hasattr(regime, "k") else ""  # type: ignore[union-attr]
    total = config.steps * batch.groups * batch.completions
    return (
        f"{path}: recipe {config.recipe}, {regime.type}{bound}, {config.loss.type}\n"
        f"{config.steps} optimiser steps × {batch.groups} prompts × {batch.completions} "
        f"completions = {total:,} completions of at most "
        f"{config.sampling.max_new_tokens} tokens; held-out: {config.data.validation_prompts} "
        f"prompts × {config.evaluation.completions} every {config.evaluation.every} steps"
    )
