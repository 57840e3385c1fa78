"""Stands for `scalerl train` and `scalerl sft` in tests of a study's runner: logs, no training.

The pass rate follows a sigmoid whose ceiling is taken from a setting, so that a study has planted
winners: loss.ratio_max = 8 has .7, any other .6. Some settings make a run misbehave.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import tomllib
from pathlib import Path
from types import FrameType


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("settings", type=Path)
    for name in ("--run-dir", "--starts", "--out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    if args.command == "sft":
        (args.out / "start-fake").mkdir()
        print(args.out / "start-fake")
        return 0
    return train(args)


def train(args: argparse.Namespace) -> int:
    config = tomllib.loads(args.settings.read_text())
    signal.signal(signal.SIGTERM, end)
    steps, curve = args.run_dir / "steps.jsonl", args.run_dir / "curve.jsonl"
    fresh = not (args.run_dir / "config.toml").exists()
    if fresh == args.resume:
        print("scalerl: --resume where there is no run, or none where there is", file=sys.stderr)
        return 2
    (args.run_dir / "config.toml").write_text(args.settings.read_text())
    lines = steps.read_text().splitlines() if steps.exists() else []
    done = len(lines)
    attempt = json.loads(lines[-1])["attempt"] + 1 if lines else 0
    if fresh:
        append(curve, row(config, 0, args.seed, attempt))
    pace = float(os.environ.get("FAKE_PACE", "0.001"))
    for step in range(done + 1, args.steps + 1):
        time.sleep(pace)
        misbehave(config, step, args)
        append(steps, {"attempt": attempt, "step": step, "tokens_generated": 100 * step})
        if step % config["evaluation"]["every"] == 0:
            append(curve, row(config, step, args.seed, attempt))
    return 0


def misbehave(config: dict, step: int, args: argparse.Namespace) -> None:
    cap = config["loss"].get("ratio_max")
    if cap == 13 and step == 5:
        print("some line\nscalerl: the disk is full:\n  of fakes", file=sys.stderr)
        raise SystemExit(1)
    if cap == 14 and step == 5 and not args.resume:
        os.kill(os.getpid(), signal.SIGKILL)
    if cap == 15 and step == 5 * (1 + sum(1 for _ in args.run_dir.glob("died-*"))):
        (args.run_dir / f"died-{step}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if cap == 16 and step == 12:
        raise SystemExit(0)  # every prompt retired


def row(config: dict, step: int, seed: int, attempt: int) -> dict:
    ceiling = 0.7 if config["loss"].get("ratio_max") == 8 else 0.6
    gain = 0.0 if step == 0 else (ceiling - 0.3) / (1 + (12 / step) ** 2)
    wiggle = 0.003 * (((step * 7919 + seed * 104729) % 101) / 50 - 1)
    return {
        "attempt": attempt, "step": step, "pass_rate": 0.3 + gain + wiggle, "pass_rate_se": 0.004,
        "n_prompts": 8, "n_samples": 2, "entropy": 0.5, "truncation_rate": 0.0,
        "interruption_rate": 0.0, "mean_length": 10.0, "device_hours": 0.001 * step,
        "tokens_generated": 100 * step, "tokens_trained": 90 * step, "flops": 1e9 * step,
    }  # fmt: skip


def append(file: Path, values: dict) -> None:
    with file.open("a") as log:
        log.write(json.dumps(values) + "\n")


def end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
