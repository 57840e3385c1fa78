"""`scalerl sft`: the supervised stage, on a file of traces or as the embedded start."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scalerl.cli.settings import SETTINGS_HELP, parse_with_settings

HELP = (
    "Supervised training before RL. With sft.data: on chat traces (.jsonl, .parquet), from "
    "model.path, into --run-dir.\nWithout: the start model of the embedded default, on a teacher's "
    "traces, into --out.\n" + SETTINGS_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="TOML files, later ones win")
    parser.add_argument("--out", type=Path, default=Path("runs/starts"), help="folder of starts")
    parser.add_argument("--run-dir", type=Path, help="where to write (default: runs/sft)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --run-dir")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_settings(parser, words)


def run(arguments: argparse.Namespace) -> int:
    from scalerl.config import Config, load_config
    from scalerl.errors import InputError
    from scalerl.model.source import resolve_model
    from scalerl.pipeline.start import make_start
    from scalerl.pipeline.supervised import supervise_file

    files = [Path(f) for f in arguments.configs]
    path = arguments.run_dir or Path("runs/sft")
    if arguments.resume:
        files = [path / "config.toml", *files]
    config: Config = load_config(files, overrides=arguments.settings)

    def on_step(step: int, loss: float) -> None:
        if step % 100 == 0 or step == config.supervised.steps:
            print(f"step {step:5d} of {config.supervised.steps}  loss {loss:.4f}", flush=True)

    if config.sft.data:
        if config.model.path:
            start = resolve_model(config.model.path, arguments.out)
        else:
            start = make_start(config, arguments.out, on_step)
        print(supervise_file(config, path, start, resume=arguments.resume))
        return 0
    if config.model.path:
        raise InputError(
            "model.path: the embedded stage starts from the embedded model; give traces with "
            "sft.data, or leave model.path out"
        )
    print(make_start(config, arguments.out, on_step))
    return 0
