"""`scalerl fit`: a compute curve's ceiling, speed and forecast, with a verdict."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from scalerl.errors import InputError

if TYPE_CHECKING:
    from scalerl.scaling import Curve, Fit, Pool
    from scalerl.scaling.window import WindowRow

HELP = "fit a compute curve: ceiling, speed, forecast, and what the data can tell"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `scalerl fit`."""
    parser.add_argument(
        "curve",
        metavar="CURVE",
        help="run directory, JSONL, CSV, W&B export, TensorBoard folder or SQLite store",
    )
    add_reading_arguments(parser)
    parser.add_argument(
        "--r0",
        metavar="VALUE|step0|free",
        help="pass rate before RL: a number, the step-0 evaluation (default if there), or free",
    )
    parser.add_argument(
        "--min-compute",
        metavar="X|auto",
        help="leave out evaluations below X; auto takes the cut that is proposed",
    )
    parser.add_argument(
        "--max-compute", type=float, metavar="X", help="leave out evaluations above X"
    )
    parser.add_argument(
        "--predict",
        type=float,
        nargs="+",
        default=[],
        metavar="C",
        help="forecast at these computes",
    )
    parser.add_argument(
        "--target",
        type=float,
        nargs="+",
        default=[],
        metavar="R",
        help="compute that reaches these pass rates",
    )
    parser.add_argument("--fix-ceiling", type=float, metavar="A", help="hold the ceiling at A")
    parser.add_argument(
        "--method",
        choices=("posterior", "paper", "power-law"),
        default="posterior",
        help="posterior (default), the paper's grid (A.5), or its power law (A.4)",
    )
    parser.add_argument(
        "--paper-grid",
        metavar="LOW:HIGH:COUNT",
        default="100:40000:100",
        help="C_mid values of --method paper (default 100:40000:100)",
    )
    parser.add_argument("--no-prior", action="store_true", help="no weak prior on B")
    parser.add_argument(
        "--keep-red", action="store_true", help="fit evaluations under a red warning too"
    )
    parser.add_argument(
        "--replicates",
        nargs="+",
        default=[],
        metavar="CURVE",
        help="further runs of the same recipe: also print them pooled with the first",
    )
    parser.add_argument(
        "--windows", action="store_true", help="also show the fit for other early cuts"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the fit (PNG, PDF or SVG by its ending)"
    )


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say how a curve file is to be read."""
    parser.add_argument("--compute", metavar="COL", help="column of the compute")
    parser.add_argument("--reward", metavar="COL", help="column of the pass rate")
    parser.add_argument("--run", metavar="NAME", help="which run, where a file holds several")
    parser.add_argument(
        "--reward-scale",
        choices=("fraction", "percent", "plus-minus-one"),
        help="how pass rates were logged, where not as a fraction",
    )
    parser.add_argument(
        "--restarts",
        choices=("refuse", "add", "sort"),
        default="refuse",
        help="what falling compute means: refuse it (default), add the parts up, or sort rows",
    )


def r0_argument(text: str | None) -> float | Literal["step0", "free"] | None:
    """The value of --r0. Errors: InputError when it is neither a word it knows nor a number."""
    if text is None or text == "step0" or text == "free":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--r0 {text!r} is neither a number, step0 nor free") from None


def paper_grid_argument(text: str) -> tuple[float, float, int]:
    """The value of --paper-grid. Errors: InputError when it is not LOW:HIGH:COUNT."""
    parts = text.split(":")
    try:
        low, high, count = float(parts[0]), float(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        raise InputError(
            f"--paper-grid {text!r} is not LOW:HIGH:COUNT, such as 100:4000:100"
        ) from None
    return low, high, count


def min_compute_argument(
    text: str | None,
    curve: "Curve",
    *,
    r0: float | Literal["step0", "free"] | None = None,
    max_compute: float | None = None,
    keep_red: bool = False,
) -> tuple[float | None, str | None]:
    """The early cut and what to say of it; proposed from what the other options leave to fit.

    Errors: InputError when it is no number and not auto.
    """
    from scalerl import scaling

    if text not in (None, "auto"):
        try:
            return float(text), None
        except ValueError:
            raise InputError(f"--min-compute {text!r} is neither a number nor auto") from None
    proposal = scaling.propose_window(curve, r0=r0, max_compute=max_compute, keep_red=keep_red)
    if proposal.min_compute is None:
        return None, proposal.reason if text == "auto" else None
    cut = f"{proposal.min_compute:.6g} {curve.unit}"
    if text == "auto":
        return proposal.min_compute, f"fitted from {cut} on: {proposal.reason}"
    return None, f"consider --min-compute {proposal.min_compute:.6g}: {proposal.reason}"


def read(path: str, args: argparse.Namespace) -> "Curve":
    """The curve at a path, read as the options say."""
    from scalerl import scaling

    return scaling.read_curve(
        path,
        compute=args.compute,
        reward=args.reward,
        run=args.run,
        scale=args.reward_scale,
        restarts=args.restarts,
    )


def run(args: argparse.Namespace) -> int:
    """Read, fit, print; 0 whatever the verdict is, for a verdict is an answer."""
    from scalerl import scaling

    curve = read(args.curve, args)
    part = {
        "r0": r0_argument(args.r0),
        "max_compute": args.max_compute,
        "keep_red": args.keep_red,
    }
    cut, said = min_compute_argument(args.min_compute, curve, **part)
    settings = {
        **part,
        "fix_ceiling": args.fix_ceiling,
        "method": args.method,
        "prior_b": not args.no_prior,
        "paper_grid": paper_grid_argument(args.paper_grid),
    }
    fitted = scaling.fit(
        curve, min_compute=cut, predict=args.predict, targets=args.target, **settings
    )
    pooled = None
    if args.replicates:
        runs = [curve, *(read(path, args) for path in args.replicates)]
        name = f"{curve.name} and replicates"
        pooled = scaling.pool(runs, name=name, predict=args.predict, min_compute=cut, **settings)
    if args.plot:
        scaling.save_figure(scaling.plot_fit(fitted, later=curve), args.plot)
    windows = scaling.window_table(curve, **settings) if args.windows else ()
    if args.json:
        print_json(fitted, curve, said, pooled, windows)
        return 0
    if cut is None and fitted.A.estimate is None:
        said = None  # no early cut makes a ceiling appear
    for note in [*curve.notes, *([said] if said else [])]:
        print(f"note: {note}", file=sys.stderr)
    print(fitted.summary())
    for warning in scaling.warn(curve):
        print(f"  ! {warning.message}")
    if pooled is not None:
        print("\n" + pooled.summary())
    if windows:
        print("\n" + scaling.window_lines(windows, curve.unit))
    print(f"\nplot: {args.plot}" if args.plot else "\n" + scaling.terminal_plot(fitted))
    return 0


def print_json(
    fitted: "Fit",
    curve: "Curve",
    said: str | None,
    pooled: "Pool | None",
    windows: "Sequence[WindowRow]",
) -> None:
    """The fit as one JSON object, with warnings and what the reader noted."""
    from scalerl import scaling

    saved = fitted.to_dict()
    saved["warnings"] = [
        {"level": w.level, "kind": w.kind, "compute": w.compute, "message": w.message}
        for w in scaling.warn(curve)
    ]
    saved["notes"] = [*curve.notes, *([said] if said else [])]
    if pooled is not None:
        saved["pooled"] = pooled.to_dict()
    if windows:
        saved["windows"] = [asdict(row) for row in windows]
    print(json.dumps(saved, allow_nan=False))
