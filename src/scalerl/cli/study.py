"""`scalerl study`: many runs as one experiment."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

HELP = (
    "Run a study: a recipe, its variants, seeds and a budget, from one TOML file; resumable.\n\n"
    "Ended at any moment, by anything, the same command goes on from there: finished runs are\n"
    "never repeated. The result is a table, result.json and report.html in the study's folder."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, metavar="STUDY.toml")
    parser.add_argument("--dir", type=Path, help="the study's folder (default: studies/NAME)")
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at once (default: the file's)")
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="run on a Ray cluster: its address, `auto` or `local`"
    )
    parser.add_argument(
        "--cpus", type=float, default=1, metavar="N", help="cores a run asks of Ray (default: 1)"
    )
    parser.add_argument(
        "--gpus", type=float, default=0, metavar="N", help="GPUs a run asks of Ray (default: 0)"
    )
    parser.add_argument(
        "--until", choices=("run", "fit", "extend", "check"), default="check", help="last stage"
    )
    parser.add_argument("--retry-failed", action="store_true", help="resume runs that failed, too")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    only.add_argument("--status", action="store_true", help="print how far it is and stop")
    only.add_argument(
        "--result", action="store_true", help="print the result of what is there and stop"
    )
    only.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write tables, every curve's data and a figure of what is there to DIR, and stop",
    )
    only.add_argument(
        "--replay-race",
        action="store_true",
        help="print what a race would have saved on the runs that are there, and stop",
    )


def run(arguments: argparse.Namespace) -> int:
    from scalerl.errors import InputError
    from scalerl.experiments import study as studies
    from scalerl.experiments.result_table import table
    from scalerl.experiments.study_file import load_study

    study = load_study(arguments.study)
    arguments.jobs = study.plan.jobs if arguments.jobs is None else arguments.jobs
    if arguments.jobs < 1:
        raise InputError(f"--jobs {arguments.jobs}: at least one run at a time")
    folder = arguments.dir or Path("studies") / study.name
    if arguments.dry_run:
        print(studies.plan_of(study))
        return 0
    if arguments.status:
        print(studies.status(study, folder, arguments.jobs))
        return 0
    if arguments.replay_race:
        print(studies.replay_race(study, folder))
        return 0
    if arguments.export:
        from scalerl.experiments.study_export import export

        written = export(study, folder, arguments.export)
        print(f"{len(written)} files in {arguments.export}")
        return 0
    if arguments.result:
        result = studies.result_so_far(study, folder)
    else:
        try:
            result = _conduct(study, folder, arguments)
        except studies.Stopped as stop:
            print(f"{stop}; the same command goes on from here", file=sys.stderr)
            return 128 + stop.number
    if result is not None:
        text = json.dumps(result.to_dict(), allow_nan=False) if arguments.json else table(result)
        print(text)
    return 1 if studies.failures(folder) and not arguments.result else 0


def _conduct(study, folder: Path, arguments: argparse.Namespace):
    """Run the study with signals caught: the first asks every run to checkpoint and end."""
    from scalerl.experiments import study as studies
    from scalerl.experiments.study_runner import Runner

    out = sys.stderr if arguments.json else sys.stdout
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.0f} s  {text}", file=out, flush=True)

    def on_runner(runner: Runner) -> None:
        def ask(number: int, frame: object) -> None:
            if runner.stop_signal is None:
                say("stopping: runs write a checkpoint and end")
            runner.stop_signal = number

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, ask)

    with _place(arguments) as place:
        return studies.conduct(
            study,
            folder,
            say,
            jobs=arguments.jobs,
            until=arguments.until,
            retry_failed=arguments.retry_failed,
            place=place,
            on_runner=on_runner,
        )


@contextmanager
def _place(arguments: argparse.Namespace):
    """Where runs go; the cluster is left at the end."""
    if arguments.ray is None:
        yield None
        return
    from scalerl.placement.ray import RayPlace

    cluster = RayPlace(arguments.ray, cpus=arguments.cpus, gpus=arguments.gpus)
    try:
        yield cluster
    finally:
        cluster.close()
