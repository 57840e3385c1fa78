"""`scalerl simulate`: idle shares, staleness and throughput of a cluster, without the cluster."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.pipeline.simulate import Machine, Simulated, Workload

HELP = """\
Play the dynamics of generators and trainer with the admission code of a real run: how long each
side waits, how stale the trained tokens are, how many are trained a device-second, and how the
devices would best be split. The defaults are the paper's sizes (64 generators, 16 trainers, 48
prompts of 16 completions up to 14,336 tokens) with round guesses of speed: give your own.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    number = parser.add_argument
    number("--generators", type=int, default=64, metavar="N", help="generator devices (64)")
    number("--trainers", type=int, default=16, metavar="N", help="trainer devices (16)")
    number("--slots", type=int, default=128, help="completions a generator samples at once (128)")
    number(
        "--tokens-per-second",
        type=float,
        default=4000.0,
        metavar="X",
        help="of one generator with all slots busy (4000)",
    )
    number(
        "--decode-latency-s",
        type=float,
        default=0.015,
        metavar="S",
        help="a decode step with one slot busy (0.015)",
    )
    number(
        "--train-tokens-per-second",
        type=float,
        default=6000.0,
        metavar="X",
        help="of one trainer device (6000)",
    )
    number("--step-overhead-s", type=float, default=5.0, metavar="S", help="of a step (5)")
    number("--publish-s", type=float, default=1.0, metavar="S", help="loading new weights (1)")
    number(
        "--lengths",
        default="lognormal:6000:0.7:14336",
        help="tokens of a completion: lognormal:MEAN:CV:MAX, fixed:N, file:PATH",
    )
    number("--prompts", type=int, default=48, help="prompts a step, P (48)")
    number("--completions", type=int, default=16, help="completions a prompt, G (16)")
    number(
        "--trained-share",
        type=float,
        default=1.0,
        metavar="X",
        help="of a step's tokens that the filters leave (1)",
    )
    number("--regime", choices=["pipeline", "ppo_off_policy", "synchronous"], default="pipeline")
    number("--k", type=int, default=8, help="staleness bound or steps of a phase (8)")
    number("--steps", type=int, default=60, help="optimiser steps to play (60)")
    number("--seed", type=int, default=0)
    number("--no-split", action="store_true", help="do not look for a better split")
    number("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace) -> int:
    from scalerl.pipeline.simulate import simulate, splits

    machine, work = _read(arguments)
    result = simulate(machine, work)
    tried = []
    if not arguments.no_split and machine.generators + machine.trainers > 2:
        tried = splits(machine, work, machine.generators + machine.trainers)
    if arguments.json:
        print(json.dumps(_object(machine, result, tried)))
    else:
        print(_text(machine, work, result, tried))
    return 0


def _read(arguments: argparse.Namespace) -> tuple[Machine, Workload]:
    from scalerl.config.axes import Pipeline, PpoOffPolicy, Synchronous
    from scalerl.pipeline.simulate import Machine, Workload, parse_lengths

    for name in ("generators", "trainers", "slots", "prompts", "completions", "steps"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name}: must be at least 1")
    for name in ("tokens_per_second", "train_tokens_per_second", "decode_latency_s"):
        if not getattr(arguments, name) > 0:
            raise InputError(f"--{name.replace('_', '-')}: must be above 0")
    least = 1 if arguments.regime == "ppo_off_policy" else 0
    if arguments.k < least:
        raise InputError(f"--k: must be at least {least} with --regime {arguments.regime}")
    full_s = arguments.slots / arguments.tokens_per_second
    if full_s < arguments.decode_latency_s:
        raise InputError(
            f"--tokens-per-second: {arguments.slots} slots make a token each in {full_s:.4f} s, "
            f"faster than one slot alone (--decode-latency-s {arguments.decode_latency_s})"
        )
    try:
        length = parse_lengths(arguments.lengths)
    except (ValueError, OSError) as error:
        raise InputError(f"--lengths: {error}") from None
    regimes = {
        "pipeline": lambda: Pipeline(k=arguments.k),
        "ppo_off_policy": lambda: PpoOffPolicy(k=arguments.k),
        "synchronous": Synchronous,
    }
    slot_s = (full_s - arguments.decode_latency_s) / max(1, arguments.slots - 1)
    machine = Machine(
        generators=arguments.generators,
        trainers=arguments.trainers,
        slots=arguments.slots,
        decode_base_s=arguments.decode_latency_s - slot_s,
        decode_slot_s=slot_s,
        train_base_s=arguments.step_overhead_s,
        train_token_s=1 / arguments.train_tokens_per_second,
        publish_s=arguments.publish_s,
    )
    work = Workload(
        regime=regimes[arguments.regime](),
        groups=arguments.prompts,
        completions=arguments.completions,
        steps=arguments.steps,
        length=length,
        trained_share=arguments.trained_share,
        seed=arguments.seed,
    )
    return machine, work


def _object(
    machine: Machine, result: Simulated, tried: list[tuple[int, Simulated]]
) -> dict[str, Any]:
    figures = dataclasses.asdict(result)
    figures["staleness"] = dict(sorted(Counter(result.staleness).items()))
    split = [
        {
            "generators": generators,
            "trainers": machine.generators + machine.trainers - generators,
            "trained_per_device_second": each.trained_per_device_second,
            "generator_idle_share": each.generator_idle_share,
            "trainer_idle_share": each.trainer_idle_share,
        }
        for generators, each in tried
    ]
    return {"machine": dataclasses.asdict(machine), "result": figures, "splits": split}


def _text(
    machine: Machine, work: Workload, result: Simulated, tried: list[tuple[int, Simulated]]
) -> str:
    counts = Counter(result.staleness)
    total = sum(counts.values())
    lines = [
        f"{machine.generators} generators + {machine.trainers} trainers, {work.regime.type}, "
        f"{result.steps} steps of {work.groups} × {work.completions} completions: "
        f"{result.seconds:,.0f} s, {result.seconds / result.steps:,.1f} s a step",
        f"idle            generators {result.generator_idle_share:6.1%}   "
        f"trainer {result.trainer_idle_share:6.1%}",
        f"trained         {result.trained_per_device_second:,.1f} tokens a device-second",
        f"staleness       {result.staleness_token_mean:.2f} steps, mean over tokens; of the oldest "
        "token of a completion:",
        *(
            f"  {lag:4d}  {count / total:6.1%}  {'█' * round(40 * count / total)}"
            for lag, count in sorted(counts.items())
        ),
    ]
    if tried:
        devices = machine.generators + machine.trainers
        best, fastest = tried[0]
        gain = fastest.trained_per_device_second / result.trained_per_device_second - 1
        lines += [
            f"best split      {best} generators + {devices - best} trainers: "
            f"{fastest.trained_per_device_second:,.1f} tokens a device-second ({gain:+.0%}), idle "
            f"{fastest.generator_idle_share:.0%} | {fastest.trainer_idle_share:.0%}",
        ]
    return "\n".join(lines)
