"""`scalerl report`: one self-contained page of a run, of several, or of a study."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HELP = "one self-contained HTML page of a run or a study"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="RUN_OR_STUDY",
        help="a run folder, or a folder that holds several; several give one page",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write it (default: report.html in the folder; in this one if several)",
    )
    parser.add_argument(
        "--fit-share",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="share of the compute that is fitted; the rest checks the forecast (default: 0.5)",
    )


def run(args: argparse.Namespace) -> int:
    from scalerl.experiments.report import write_report

    paths: list[Path] = args.paths
    out: Path = args.out or ((paths[0] if len(paths) == 1 else Path()) / "report.html")
    written = write_report(paths, out, fit_share=args.fit_share)
    sys.stdout.write(f"{written} ({written.stat().st_size / 1e6:.2f} MB)\n")
    return 0
