"""`scalerl recipes`: what each recipe sets, and where from."""

from __future__ import annotations

import argparse

HELP = "List the recipes, or print one with the reason for each line."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="print this recipe's file")


def run(arguments: argparse.Namespace) -> int:
    from scalerl.config import load_config, recipe_names, recipe_text

    if arguments.name:
        print(recipe_text(arguments.name), end="")
        return 0
    columns = ("recipe", "loss", "aggregation", "advantage", "regime", "fp32 head", "zero var.")
    rows: list[tuple[str, ...]] = [columns]
    for name in recipe_names():
        c = load_config(recipe=name)
        bounds = " ".join(f"{v:g}" for k, v in c.loss.model_dump().items() if k != "type")
        k = getattr(c.regime, "k", "")
        rows.append(
            (
                name,
                f"{c.loss.type} {bounds}",
                c.algorithm.aggregation,
                c.algorithm.advantage,
                f"{c.regime.type} {k}".strip(),
                "yes" if c.model.fp32_head else "no",
                c.algorithm.zero_variance,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    for row in rows:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
    print(
        "\nscalerl recipes NAME prints one with its reasons; scalerl train --recipe NAME runs it."
    )
    return 0
