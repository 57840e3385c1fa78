"""`scalerl demo`: the main job from start to report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from scalerl.cli.settings import SETTINGS_HELP, parse_with_settings

HELP = (
    "The whole road on a laptop: supervised start, ScaleRL, held-out curve, fit of the first half, "
    "forecast checked against the second, report.html.\n" + SETTINGS_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="TOML files, later ones win")
    parser.add_argument("--dir", type=Path, default=Path("demo"), help="where runs are written")
    parser.add_argument("--plain", action="store_true", help="plain lines, no live display")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_settings(parser, words)


def run(arguments: argparse.Namespace) -> int:
    from scalerl.cli.watch import watching
    from scalerl.config import load_config
    from scalerl.experiments.demo import forecast_table, fresh, run_demo, write_page
    from scalerl.pipeline.rollouts import Stopped

    defaults = resources.files("scalerl.experiments").joinpath("demo.toml")
    with resources.as_file(defaults) as laptop:
        config = load_config([laptop, *arguments.configs], overrides=arguments.settings)
    path = fresh(arguments.dir)
    with watching(config, path, plain=arguments.plain) as listener:
        try:
            ending = run_demo(config, path, listener, on_start=listener.on_start)
        except Stopped as stop:
            listener.close(f"{stop}; go on with: scalerl train --resume --run-dir {path}")
            return 128 + stop.number
        listener.finish(ending)
    page = write_page(path)
    print()
    print(forecast_table(path))
    print(f"\nThe page to look at: {page}")
    return 0
