"""Kill a training run at random moments, resume it each time, and count what was lost: nothing.

    python benchmarks/random_kills.py [--kills 200] [--minutes M] [--seed 0] [--write FILE.json]

SIGKILL goes to trainer and generators in turn, most of the time while steps are being taken and
sometimes while processes start. After a killed trainer nobody may be left, and the run is resumed;
a killed generator must be replaced by the trainer. At the end every group number must have been
trained once, every epoch must be a permutation of the prompts, and every step's ledger closed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPTS = 90
SETTINGS = f"""
steps = 1000000
[model.tiny]
hidden = 32
layers = 1
heads = 2
feed_forward = 48
[data]
train_prompts = {PROMPTS}
validation_prompts = 8
max_operations = 1
[supervised]
steps = 150
lr = 8e-3
[batch]
prompts = 3
completions = 4
rows_per_pass = 16
[sampling]
max_new_tokens = 24
slots = 24
[length]
low = 12
high = 14
solution_tokens = 6
[curriculum]
type = "uniform"
[evaluation]
every = 20
completions = 2
[checkpoint]
every = 10
[regime]
type = "pipeline"
k = 4
[execution]
generators = 2
restarts = 100000
"""


def launch(folder: Path, *, resume: bool) -> int:
    """A trainer as a fork of this process, which has imported everything already."""
    pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from scalerl.cli.main import main

        words = ["train", str(folder / "settings.toml"), "--plain"]
        words += ["--run-dir", str(folder / "run"), *(["--resume"] if resume else [])]
        code = main(words)
    finally:  # a fork must never return into its parent's code, whatever happened
        if sys.exc_info()[1] is not None:
            traceback.print_exc()  # into the log; the exit code 99 ends the benchmark
        os._exit(code)


def children_of(pid: int) -> dict[int, str]:
    """Living children with their command lines."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended while we looked
            if int(parent) == pid and state != "Z":
                found[int(entry.name)] = words
    return found


def generators_of(pid: int) -> list[int]:
    return [p for p, words in children_of(pid).items() if "resource_tracker" not in words]


def await_true(
    what: Callable[[], bool], deadline_s: float, awaited: str, trainer: int | None = None
) -> float:
    began = time.monotonic()
    while not what():
        if trainer and os.waitpid(trainer, os.WNOHANG)[0]:
            raise SystemExit(f"the trainer ended by itself while {awaited} was awaited")
        if time.monotonic() - began > deadline_s:
            raise SystemExit(f"waited {deadline_s} s for {awaited}")
        time.sleep(0.01)
    return time.monotonic() - began


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def kill_all(folder: Path, kills: int, minutes: float, rng: random.Random) -> dict[str, Any]:
    log = folder / "run/steps.jsonl"
    alive_after: list[float] = []
    back_after: list[float] = []
    count = {"trainer": 0, "generator": 0, "while starting": 0}
    trainer = launch(folder, resume=False)
    await_true(lambda: size_of(log) > 0, 300, "the first step", trainer)
    began = time.monotonic()
    for number in range(kills):
        if time.monotonic() - began > 60 * minutes:
            break
        target = ("trainer", "generator")[number % 2]
        generators = generators_of(trainer)
        time.sleep(rng.uniform(0.0, 1.0))
        if target == "generator" and (generators := generators_of(trainer)):
            os.kill(rng.choice(generators), signal.SIGKILL)
        else:
            target = "trainer"
            generators = generators_of(trainer)
            os.kill(trainer, signal.SIGKILL)
            os.waitpid(trainer, 0)
            gone = lambda pids=generators: not any(Path(f"/proc/{p}").exists() for p in pids)  # noqa: E731
            alive_after.append(await_true(gone, 10, "the generators to end"))
            trainer = launch(folder, resume=True)
        count[target] += 1
        size = size_of(log)
        if rng.random() < 0.4:  # the next one comes while processes start
            count["while starting"] += 1
            time.sleep(rng.uniform(0.0, 3.0))
            continue
        back_after.append(
            await_true(lambda size=size: size_of(log) > size, 300, "the next step", trainer)
        )
        print(f"\r{number + 1} of {kills} kills", end="", file=sys.stderr, flush=True)
    await_true(lambda: bool(generators_of(trainer)), 120, "the last restart")
    size = size_of(log)
    await_true(lambda: size_of(log) > size, 300, "the last step", trainer)
    os.kill(trainer, signal.SIGTERM)
    _, status = os.waitpid(trainer, 0)
    return {
        "kills": count,
        "exit_code_after_sigterm": os.waitstatus_to_exitcode(status),
        "generators_alive_after_trainer_s_max": max(alive_after, default=0.0),
        "next_step_after_kill_s_median": sorted(back_after)[len(back_after) // 2],
    }


def judge(run: Path) -> dict[str, Any]:
    """What the logs, read as any reader reads them, say of the whole run."""
    from scalerl.pipeline.records import current_rows, read_rows

    steps, curve = current_rows(run / "steps.jsonl"), current_rows(run / "curve.jsonl")
    groups = [g for row in steps for g in row["groups_taken"]]
    prompt_of = dict(
        pair
        for row in steps
        for pair in zip(row["groups_taken"], row["prompts_taken"], strict=True)
    )
    # The newest few groups are still under way when the run is stopped.
    frontier = min(set(range(max(groups) + 2)) - set(groups))
    epochs = frontier // PROMPTS
    permutations = [
        len({prompt_of[g] for g in range(e * PROMPTS, (e + 1) * PROMPTS)}) == PROMPTS
        for e in range(epochs)
    ]
    open_ledgers = [
        row["step"]
        for row in steps
        if row["ledger"]["generated"]
        != sum(v for k, v in row["ledger"].items() if k != "generated")
    ]
    last = steps[-1]["ledger"]
    return {
        "steps": len(steps),
        "steps_in_order": [row["step"] for row in steps] == list(range(1, len(steps) + 1)),
        "curve_in_order": [r["step"] for r in curve] == sorted({r["step"] for r in curve}),
        "rows_superseded": len(read_rows(run / "steps.jsonl")) - len(steps),
        "attempts": 1 + steps[-1]["attempt"],
        "groups_trained": len(groups),
        "groups_trained_twice": len(groups) - len(set(groups)),
        "groups_missing_beyond_the_newest": max(0, max(groups) - frontier) > 5 * 3,
        "epochs_whole": epochs,
        "epochs_that_are_permutations": sum(permutations),
        "staleness_max": max(row.get("staleness_max", 0) for row in steps),
        "steps_with_open_ledger": len(open_ledgers),
        "tokens_discarded_share": last["discarded"] / last["generated"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    for heavy in ("scalerl.pipeline.session", "transformers.models.llama.modeling_llama"):
        importlib.import_module(heavy)  # once, before the forks
    memory = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "settings.toml").write_text(SETTINGS)
        figures = kill_all(
            folder, arguments.kills, arguments.minutes, random.Random(arguments.seed)
        )
        figures |= judge(folder / "run")
    figures["shared_memory_left"] = len(set(os.listdir("/dev/shm")) - memory)
    print(json.dumps(figures, indent=2))
    if arguments.write:
        arguments.write.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
