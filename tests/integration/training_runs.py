"""Small real runs for the tests: a model that is right sometimes, and what a run has left."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalerl.config import Config
from scalerl.data.chain import Teacher, supervised_pairs
from scalerl.model.load import save_model
from scalerl.model.tiny import END, tiny_model, tiny_tokenizer
from scalerl.train.sft import SupervisedSettings, Trace, supervise

# What a log row holds that another run of the same computation may hold otherwise.
TIMES = {
    "attempt",
    "from_step",
    "busy_s",
    "waited_s",
    "device_hours",
    "generator_device_hours",
    "trainer_device_hours",
    "generator_idle_share",
    "trainer_idle_share",
    "evaluation_hours",
}

SETTINGS = """
steps = 20
[data]
train_prompts = 24
validation_prompts = 8
max_operations = 1
[batch]
prompts = 3
completions = 6
rows_per_pass = 16
[sampling]
max_new_tokens = 24
slots = 16
[length]
low = 12
high = 14
solution_tokens = 6
[curriculum]
type = "uniform"
[optimizer]
lr = 2e-3
[evaluation]
every = 5
completions = 2
[checkpoint]
every = 5
[regime]
type = "pipeline"
k = 2
[execution]
grace_s = 20
"""


Settings = Callable[..., Config]


class Crash(Exception):
    """The trainer's end in the middle of things, as far as one process can have it."""


class Watch:
    """Listens to a run, and may do something to it after a step."""

    def __init__(self, at: int | None = None, act: Callable[[], object] | None = None) -> None:
        self.at = at
        self.act = act
        self.warnings: list[str] = []

    def on_step(self, row: dict[str, Any]) -> None:
        if row["step"] == self.at:
            if self.act is None:
                raise Crash
            self.act()

    def on_evaluation(self, row: dict[str, Any]) -> None:
        pass

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)


def make_start(folder: Path) -> Path:
    """A model that has the form of an answer and is right now and then."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(seed=0, hidden=32, layers=1, heads=2, intermediate=48)
    pairs = supervised_pairs(
        count=1600, seed=0, teacher=Teacher.make(0), exclude=[], operations=(1, 1)
    )
    end = int(tokenizer.convert_tokens_to_ids(END))  # type: ignore[arg-type]
    traces = [
        Trace(prompt_ids=tuple(tokenizer.encode(p)), answer_ids=(*tokenizer.encode(t), end))
        for p, t in pairs
    ]
    settings = SupervisedSettings(steps=120, rows=16, lr=8e-3, warmup_steps=10)
    supervise(model, traces, settings, seed=0)
    save_model(model, folder, tokenizer)
    return folder


def command(run: Path, start: Path, *words: str) -> list[str]:
    """`scalerl train` with the small settings; later words win."""
    settings = run.parent / "small.toml"
    if not settings.exists():
        settings.write_text(SETTINGS)
    return [
        *(sys.executable, "-m", "scalerl", "train", str(settings), "--plain"),
        *("--run-dir", str(run), "--model.path", str(start), *words),
    ]


def train(
    run: Path, start: Path, *words: str, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(run, start, *words),
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def killed(
    run: Path, start: Path, mode: str, step: int, what: str, *words: str
) -> subprocess.CompletedProcess[str]:
    """A run that does `what` to itself after `step`; see killed_run.py."""
    script = Path(__file__).with_name("killed_run.py")
    return subprocess.run(
        [sys.executable, str(script), str(run), str(start), mode, str(step), what, *words],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )


def rows(run: Path, name: str, *, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A log as its readers see it, apart from times."""
    from scalerl.pipeline.records import current_rows

    kept = current_rows(run / f"{name}.jsonl")
    return [{k: v for k, v in row.items() if k not in TIMES | set(without)} for row in kept]


def digest(run: Path, step: int) -> dict[str, str]:
    """Checksums of a checkpoint's weights and optimiser."""
    folder = run / "checkpoints" / f"step-{step:06d}"
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("model/model.safetensors", "optimizer.safetensors")
    }


def raw_rows(run: Path, name: str = "steps") -> list[dict[str, Any]]:
    file = run / f"{name}.jsonl"
    if not file.exists():
        return []
    whole = file.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.split("\n") if line]
