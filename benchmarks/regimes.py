"""Streaming against alternating: what each side of a run waits for, and what a device-second buys.

    python benchmarks/regimes.py [--steps 48] [--seeds 2] [--start FOLDER] [--write FILE.json]

`pipeline` (k = 8), `ppo_off_policy` (k = 8) and `synchronous`, the same recipe and seeds on the
default task, one after another in one session; one generator process and the trainer, one thread
each. Then the event simulator plays the same three. It is given what a token costs each side while
it works, measured in that run (`simulated`), and must find how long the sides wait, how many tokens
a device-second buys and how stale they are. With the costs of the `pipeline` runs for all regimes
(`simulated_with_pipeline_costs`) it also has to do with a machine on which both processes working
at once slow each other down, which it knows nothing of.

A device-second counts both processes, working or waiting; start, evaluation and checkpoints are
apart. The first phase of k steps, while the pipeline fills, is left out on both sides.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.config import load_config
from scalerl.config.axes import Pipeline, PpoOffPolicy, RegimeConfig, Synchronous
from scalerl.messages import Completion, Prompt, Scored
from scalerl.pipeline import run as run_module
from scalerl.pipeline.records import current_rows
from scalerl.pipeline.session import run_new
from scalerl.pipeline.simulate import Machine, Workload, simulate

SKIP = 8  # steps at the beginning that are left out
REGIMES: dict[str, tuple[str, ...]] = {
    "pipeline(8)": ("--regime.type", "pipeline", "--regime.k", "8"),
    "ppo_off_policy(8)": ("--regime.type", "ppo_off_policy", "--regime.k", "8"),
    "synchronous": ("--regime.type", "synchronous"),
}
AS_CONFIG: dict[str, RegimeConfig] = {
    "pipeline(8)": Pipeline(k=8),
    "ppo_off_policy(8)": PpoOffPolicy(k=8),
    "synchronous": Synchronous(),
}


class Quiet:
    def on_step(self, row: dict[str, Any]) -> None:
        print(f"\r  step {row['step']}", end="", flush=True)

    def on_evaluation(self, row: dict[str, Any]) -> None:
        pass

    def on_warning(self, text: str) -> None:
        pass


def one_run(
    name: str, seed: int, steps: int, folder: Path, start: str
) -> tuple[list[dict[str, Any]], Any]:
    """Rows of the step log, and the lengths of all completions."""
    config = load_config(
        overrides=[
            *REGIMES[name],
            *("--steps", str(steps), "--seed", str(seed), "--evaluation.every", str(steps)),
            *("--checkpoint.every", str(steps), "--model.path", start),
        ]
    )
    lengths: list[int] = []
    make_score = run_module.make_score

    def recording(*arguments: Any, **words: Any) -> Any:
        score = make_score(*arguments, **words)

        def recorded(prompt: Prompt, completion: Completion) -> Scored:
            if prompt.id not in heldout:
                lengths.append(len(completion.token_ids))
            return score(prompt, completion)

        return recorded

    heldout: set[str] = set()
    run_prompts = run_module.run_prompts

    def remembering(*arguments: Any, **words: Any) -> Any:
        loaded = run_prompts(*arguments, **words)
        heldout.update(p.id for p in loaded.heldout)
        return loaded

    run_module.make_score, run_module.run_prompts = recording, remembering
    try:
        run = folder / f"{name}-{seed}"
        run_new(config, run, Quiet(), starts=folder / "starts")
    finally:
        run_module.make_score, run_module.run_prompts = make_score, run_prompts
    print(f"\r  {name} seed {seed} done")
    return current_rows(run / "steps.jsonl"), lengths


def seconds(row: dict[str, Any], side: str) -> tuple[float, float]:
    """(device-seconds, of which idle) of a side since the start of the run."""
    total = row[f"{side}_device_hours"] * 3600
    return total, total * row[f"{side}_idle_share"]


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of the steps after the first SKIP."""
    first, last = rows[SKIP - 1], rows[-1]
    generator, generator_idle = (
        b - a for a, b in zip(seconds(first, "generator"), seconds(last, "generator"), strict=True)
    )
    trainer, trainer_idle = (
        b - a for a, b in zip(seconds(first, "trainer"), seconds(last, "trainer"), strict=True)
    )
    trained = last["tokens_trained"] - first["tokens_trained"]
    through = last["ledger"]["generated"] - last["ledger"]["waiting"]
    through -= first["ledger"]["generated"] - first["ledger"]["waiting"]
    return {
        "generator_idle_share": generator_idle / generator,
        "trainer_idle_share": trainer_idle / trainer,
        "seconds_a_step": trainer / (len(rows) - SKIP),
        "tokens_trained_per_device_second": trained / (generator + trainer),
        "tokens_through_per_device_second": through / (generator + trainer),
        "staleness_mean": statistics.mean(row["staleness_mean"] for row in rows[SKIP:]),
        "trained_share": trained / through,
    }


Run = tuple[list[dict[str, Any]], list[int]]  # log rows, completion lengths


def measured_costs(name: str, each: list[Run], slots: int, shape: tuple[float, float]) -> Machine:
    """A line through (trained tokens, busy seconds) of the trainer's steps, through their mean; the
    cost of decoding such that a generated token takes the generator as long as it was measured to,
    at the number of active slots that the simulator finds."""
    runs = [rows for rows, _ in each]
    tokens, busy = [], []
    generated = generator_busy = 0.0
    for rows in runs:
        for before, row in zip(rows[SKIP - 1 :], rows[SKIP:], strict=False):
            tokens.append(row["tokens_trained"] - before["tokens_trained"])
            busy.append(row["busy_s"])
        first, last = rows[SKIP - 1], rows[-1]
        totals = [seconds(row, "generator") for row in (first, last)]
        generator_busy += (totals[1][0] - totals[1][1]) - (totals[0][0] - totals[0][1])
        generated += last["ledger"]["generated"] - first["ledger"]["generated"]
    slope = min(max(0.0, float(np.polyfit(tokens, busy, 1)[0])), np.mean(busy) / np.mean(tokens))
    base = np.mean(busy) - slope * np.mean(tokens)
    base_s, slot_s = shape
    token_s = generator_busy / generated
    scale = token_s / (base_s / slots + slot_s)
    machine = Machine(
        generators=1,
        trainers=1,
        slots=slots,
        decode_base_s=base_s * scale,
        decode_slot_s=slot_s * scale,
        train_base_s=float(base),
        train_token_s=float(slope),
    )
    for _ in range(5):
        played = simulate(machine, workload(name, *each[0]))
        busy_s = (1 - played.generator_idle_share) * played.seconds
        scale = token_s / (busy_s / played.tokens_generated)
        machine = dataclasses.replace(
            machine,
            decode_base_s=machine.decode_base_s * scale,
            decode_slot_s=machine.decode_slot_s * scale,
        )
    return machine


def workload(name: str, rows: list[dict[str, Any]], lengths: list[int]) -> Workload:
    return Workload(
        regime=AS_CONFIG[name],
        groups=rows[0]["groups"],
        completions=rows[0]["completions"] // rows[0]["groups"],
        steps=400,  # long, so that filling the pipeline does not count
        length=lambda rng: rng.choice(lengths),
        trained_share=figures(rows)["trained_share"],
    )


def decode_shape() -> tuple[float, float]:
    """Seconds of a decode step, as base and share of a slot, from the engine alone."""
    import time

    from scalerl.generate.engine import Engine
    from scalerl.generate.sampling import SamplingParams
    from scalerl.messages import Request
    from scalerl.model.tiny import tiny_model

    model = tiny_model(seed=0)
    points: list[tuple[int, float]] = []
    for slots in (16, 64, 256):
        engine = Engine(
            model,
            slots=slots,
            max_length=80,
            params=SamplingParams(max_new_tokens=40),
            interruption=None,
            end_ids=[],
        )
        engine.submit(
            [Request(group=i, sample=0, prompt_ids=(3,) * 12, seed=i) for i in range(slots)]
        )
        engine.step()
        times: list[float] = []
        for _ in range(30):
            began = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - began)
        points.append((slots, statistics.median(times)))
    slope, base = np.polyfit([n for n, _ in points], [t for _, t in points], 1)
    return max(1e-6, float(base)), float(slope)


def predicted(name: str, machine: Machine, rows: list[dict[str, Any]], lengths: list[int]) -> Any:
    result = simulate(machine, workload(name, rows, lengths))
    return {
        "generator_idle_share": result.generator_idle_share,
        "trainer_idle_share": result.trainer_idle_share,
        "seconds_a_step": result.seconds / result.steps,
        "tokens_trained_per_device_second": result.trained_per_device_second,
        "staleness_mean": result.staleness_token_mean,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--start", default="", help="start model; without it, it is made first")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    runs: dict[str, list[tuple[list[dict[str, Any]], list[int]]]] = {name: [] for name in REGIMES}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(arguments.seeds):
            for regime in REGIMES:
                runs[regime].append(
                    one_run(regime, seed, arguments.steps, Path(name), arguments.start)
                )
    shape = decode_shape()
    machines = {regime: measured_costs(regime, each, 256, shape) for regime, each in runs.items()}
    found: dict[str, Any] = {
        "steps": arguments.steps,
        "steps_left_out": SKIP,
        "seeds": arguments.seeds,
        "load_average": os.getloadavg()[0],
        "threads_a_process": 1,
        "regimes": {},
    }
    for regime, each in runs.items():
        measured = [figures(rows) for rows, _ in each]
        own, piped = (
            [
                predicted(regime, machine or measured_costs(regime, [one], 256, shape), *one)
                for one in each
            ]
            for machine in (None, machines["pipeline(8)"])
        )
        middle = {key: statistics.median(m[key] for m in measured) for key in measured[0]}
        expected, transferred = (
            {key: statistics.median(s[key] for s in simulated) for key in simulated[0]}
            for simulated in (own, piped)
        )
        speed = "tokens_trained_per_device_second"
        found["regimes"][regime] = {
            "measured": middle,
            "each_seed": measured,
            "machine": dataclasses.asdict(machines[regime]),
            "simulated": expected,
            "simulated_with_pipeline_costs": transferred,
            "simulated_over_measured_throughput": expected[speed] / middle[speed],
        }
    print(json.dumps(found, indent=2))
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
