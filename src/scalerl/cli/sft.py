"""`scalerl sft`: the supervised stage that makes the start model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scalerl.cli.settings import SETTINGS_HELP, parse_with_settings

HELP = "Make the start model of the embedded default: supervised on a teacher's traces.\n" + (
    SETTINGS_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="TOML files, later ones win")
    parser.add_argument("--out", type=Path, default=Path("runs/starts"), help="folder of starts")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_settings(parser, words)


def run(arguments: argparse.Namespace) -> int:
    from scalerl.config import load_config
    from scalerl.errors import InputError
    from scalerl.pipeline.start import make_start

    config = load_config(arguments.configs, overrides=arguments.settings)
    if config.model.path:
        raise InputError(
            "model.path: the supervised stage starts from the embedded model; leave model.path out"
        )

    def on_step(step: int, loss: float) -> None:
        if step % 100 == 0 or step == config.supervised.steps:
            print(f"step {step:5d} of {config.supervised.steps}  loss {loss:.4f}", flush=True)

    print(make_start(config, arguments.out, on_step))
    return 0
