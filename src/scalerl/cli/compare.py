"""`scalerl compare`: which recipe ends higher, which is faster, or that the data cannot tell."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from scalerl.cli.fit import add_reading_arguments, r0_argument
from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.scaling import Curve

HELP = "compare recipes by their compute curves: ceiling first, then speed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scalerl compare`."""
    parser.add_argument(
        "curves",
        nargs="+",
        metavar="CURVE",
        help="files or run directories; NAME=CURVE names one, NAME=CURVE,CURVE has replicates",
    )
    add_reading_arguments(parser)
    parser.add_argument(
        "--r0", metavar="VALUE|step0|free", help="pass rate before RL, for every curve"
    )
    parser.add_argument("--min-compute", type=float, metavar="X", help="leave out below X")
    parser.add_argument("--max-compute", type=float, metavar="X", help="leave out above X")
    parser.add_argument(
        "--target", type=float, metavar="R", help="pass rate at which speeds are compared"
    )
    parser.add_argument(
        "--run-sd", type=float, metavar="SD", help="SD of A between runs of one recipe"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves (PNG, PDF or SVG)")
    parser.add_argument("--plot-transform", metavar="FILE", help="draw their F-transforms")


def read_groups(args: argparse.Namespace) -> dict[str, list["Curve"]]:
    """Recipes and their runs from the arguments. Errors: InputError for a name used twice."""
    from scalerl import scaling

    groups: dict[str, list[Curve]] = {}
    for argument in args.curves:
        name, paths = _split(argument)
        curves = [
            curve
            for path in paths
            for curve in scaling.read_curves(
                path,
                compute=args.compute,
                reward=args.reward,
                run=args.run,
                scale=args.reward_scale,
                restarts=args.restarts,
            )
            if "/task " not in curve.name
        ]
        own = {name: curves} if name else {c.name: [c] for c in curves}
        for key, runs in own.items():
            if key in groups:
                raise InputError(
                    f"two curves are named {key!r}; name them, such as one={paths[0]} two=OTHER"
                )
            groups[key] = runs
    return groups


def _split(argument: str) -> tuple[str | None, list[str]]:
    """`NAME=A,B` as (NAME, [A, B]); a plain path as (None, [path])."""
    from pathlib import Path

    name, equals, rest = argument.partition("=")
    if not equals or Path(argument).exists():
        return None, [argument]
    return name, rest.split(",") if not Path(rest).exists() else [rest]


def run(args: argparse.Namespace) -> int:
    """Read, fit, compare, print."""
    from scalerl import scaling

    groups = read_groups(args)
    result = scaling.compare(
        groups,
        target=args.target,
        run_sd=args.run_sd,
        r0=r0_argument(args.r0),
        min_compute=args.min_compute,
        max_compute=args.max_compute,
    )
    if args.plot:
        scaling.save_figure(scaling.plot_comparison(result), args.plot)
    if args.plot_transform:
        known = [r.fits[0] for r in result.recipes if r.fits[0].A.estimate is not None]
        if not known:
            raise InputError("--plot-transform: no curve has an estimate of A to transform by")
        scaling.save_figure(scaling.plot_f_transform(known), args.plot_transform)
    if args.json:
        print(json.dumps(result.to_dict(), allow_nan=False))
        return 0
    for name, curves in groups.items():
        for curve in curves:
            for note in curve.notes:
                print(f"note: {name}: {note}", file=sys.stderr)
            for warning in scaling.warn(curve):
                print(f"warning: {name}: {warning.message}", file=sys.stderr)
    print(result.summary())
    for path in (args.plot, args.plot_transform):
        if path:
            print(f"\nplot: {path}")
    return 0
