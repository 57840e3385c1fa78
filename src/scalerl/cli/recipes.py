"""`scalerl recipes`: what each recipe sets, and where from."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scalerl.config import Config
    from scalerl.config.section import Section

HELP = "List the recipes, or print one with the reason for each line."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this recipe's file")


def run(arguments: argparse.Namespace) -> int:
    from scalerl.config import load_config, recipe_names, recipe_text

    if arguments.name:
        print(recipe_text(arguments.name), end="")
        return 0
    configs = {name: load_config(recipe=name) for name in recipe_names()}
    for cells in (_loss_and_regime, _data_and_precision):  # each fits 100 columns
        rows = [("recipe", *cells(configs["scalerl"]))]
        rows += [(name, *cells(config).values()) for name, config in configs.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(map(str.ljust, row, widths)).rstrip())
        print()
    print("scalerl recipes NAME prints one with its reasons; scalerl train --recipe NAME runs it.")
    return 0


def _loss_and_regime(config: Config) -> dict[str, str]:
    return {
        "loss": _numbers(config.loss),
        "aggregation": config.algorithm.aggregation,
        "advantage": config.algorithm.advantage,
        "regime": _numbers(config.regime),
        "zero var.": config.algorithm.zero_variance,
        "truncated": config.algorithm.truncated,
    }


def _data_and_precision(config: Config) -> dict[str, str]:
    return {
        "curriculum": _numbers(config.curriculum),
        "oversample": f"{config.batch.oversample:.4g}",
        "length": config.length.type,
        "fp32 head": "yes" if config.model.fp32_head else "no",
        "weights": config.model.weights,
    }


def _numbers(form: Section) -> str:
    """An axis in one cell: its type and its numbers."""
    return " ".join(v if isinstance(v, str) else f"{v:g}" for v in form.model_dump().values())
