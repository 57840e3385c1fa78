"""`scalerl train`: one run, new or resumed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scalerl.cli.settings import SETTINGS_HELP, parse_with_settings

HELP = (
    "Train by reinforcement learning. Without arguments: the laptop experiment with the ScaleRL "
    "recipe.\n" + SETTINGS_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="TOML files, later ones win")
    parser.add_argument("--recipe", help="start from this recipe (see `scalerl recipes`)")
    parser.add_argument("--run-dir", type=Path, help="where to write (default: runs/RECIPE-SEED)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --run-dir")
    parser.add_argument(
        "--starts", type=Path, help="folder of start models (default: starts, beside the run)"
    )
    parser.add_argument("--plain", action="store_true", help="plain lines, no live display")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_settings(parser, words)


def run(arguments: argparse.Namespace) -> int:
    from scalerl.cli.watch import watching
    from scalerl.config import load_config
    from scalerl.errors import InputError
    from scalerl.experiments.monitor import Monitor
    from scalerl.pipeline import ranks
    from scalerl.pipeline.rollouts import Stopped
    from scalerl.pipeline.run import make_trainer
    from scalerl.pipeline.session import run_new, run_on

    if ranks.follows():
        ranks.run_follower(make_trainer)
        return 0
    files = [Path(f) for f in arguments.configs]
    path = arguments.run_dir
    if arguments.resume:
        if path is None:
            raise InputError("--resume needs --run-dir DIR, the run to go on with")
        files = [path / "config.toml", *files]
    config = load_config(files, recipe=arguments.recipe, overrides=arguments.settings)
    path = path or Path("runs") / f"{config.recipe}-{config.seed}"
    starts = arguments.starts or path.parent / "starts"
    with watching(config, path, plain=arguments.plain) as listener:
        try:
            if arguments.resume:
                ending = run_on(path, listener, starts=starts, config=config, make_judge=Monitor)
            else:
                ending = run_new(
                    config,
                    path,
                    listener,
                    starts=starts,
                    on_start=listener.on_start,
                    make_judge=Monitor,
                )
        except Stopped as stop:
            listener.close(f"{stop}; go on with: scalerl train --resume --run-dir {path}")
            return 128 + stop.number
        finally:
            ranks.leave()
        listener.finish(ending)
    return 0
