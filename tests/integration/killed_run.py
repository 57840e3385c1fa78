"""A training run that does something to itself at a step: `python killed_run.py RUN START MODE
STEP WHAT [--section.key value …]`, where MODE is new or resume and WHAT one of

trainer, generator      SIGKILL of that process
SIGINT, SIGTERM, twice  the signal to the trainer; twice: two SIGINTs
disk                    no file may grow beyond what a checkpoint needs
nothing
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from scalerl.cli import main as cli
from scalerl.cli import watch
from scalerl.config import Config


def act(what: str) -> None:
    match what:
        case "trainer":
            os.kill(os.getpid(), signal.SIGKILL)
        case "generator":
            for child in multiprocessing.active_children():
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
        case "disk":
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        case "twice":
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        case "nothing":
            pass
        case name:
            os.kill(os.getpid(), signal.Signals[name])


class Acting(watch.Watcher):
    """The command's own watcher, until the step comes."""

    def on_step(self, row: dict[str, Any]) -> None:
        super().on_step(row)
        if row["step"] == int(sys.argv[4]):
            print("pids", *(child.pid for child in multiprocessing.active_children()), flush=True)
            act(sys.argv[5])


if __name__ == "__main__":
    assert Config  # spawned generators import this module, and must find nothing to do
    watch.Watcher = Acting  # type: ignore[misc]
    run, start, mode = sys.argv[1:4]
    from training_runs import command

    words = command(Path(run), Path(start), *sys.argv[6:])[3:]
    sys.exit(cli.main([*words, "--resume"] if mode == "resume" else words))
