"""Commands: their lock, their output, and their end with whoever started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from scalerl.errors import RunError
from scalerl.placement.commands import Here, start_here, try_lock

STARTER = """
import os, signal, sys
from pathlib import Path
from scalerl.placement.commands import start_here
folder = Path(sys.argv[1])
start_here(["sleep", "60"], log=folder / "log", lock=folder / "lock")
os.kill(os.getpid(), signal.SIGKILL)
"""


def free(lock, seconds: float) -> bool:
    """Whether a lock becomes free in time."""
    deadline = time.monotonic() + seconds
    descriptor = os.open(lock, os.O_RDWR)
    try:
        while time.monotonic() < deadline:
            if try_lock(descriptor):
                return True
            time.sleep(0.02)
        return False
    finally:
        os.close(descriptor)


def test_output_goes_to_the_end_of_the_log(tmp_path):
    (tmp_path / "log").write_text("before\n")
    command = Here().start(["echo", "now"], log=tmp_path / "log", lock=tmp_path / "lock")
    assert command.wait(10) == 0
    assert (tmp_path / "log").read_text() == "before\nnow\n"


def test_a_lock_that_is_held_is_refused_or_waited_for(tmp_path):
    first = start_here(["sleep", "1"], log=tmp_path / "log", lock=tmp_path / "lock")
    with pytest.raises(RunError, match="another process is at work on this run"):
        start_here(["true"], log=tmp_path / "log", lock=tmp_path / "lock")
    second = start_here(["true"], log=tmp_path / "log", lock=tmp_path / "lock", patience_s=30)
    assert (first.wait(10), second.wait(10)) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of a parent's death")
def test_a_command_ends_with_whoever_started_it(tmp_path):
    starter = subprocess.run([sys.executable, "-c", STARTER, str(tmp_path)], check=False)
    assert starter.returncode == -signal.SIGKILL
    assert free(tmp_path / "lock", 20)
