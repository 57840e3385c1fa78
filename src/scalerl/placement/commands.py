"""Commands as processes of their own: here, or wherever a place puts them.

A command holds the lock of its folder through an inherited descriptor for as long as it lives, so
that whoever comes after a crash can tell whether it still works. On Linux it gets SIGTERM when the
thread that started it is gone, killed or not: nothing works on unseen.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from scalerl.errors import RunError
from scalerl.placement.local import PR_SET_PDEATHSIG

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Command(Protocol):
    """A command that was started. `returncode` is negative after a signal, None while it runs."""

    returncode: int | None

    @property
    def pid(self) -> int | None:
        """On this machine; None where the command is on another."""

    def poll(self) -> int | None:
        """The return code if it has ended; never waits."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; raises subprocess.TimeoutExpired after `timeout` seconds."""

    def send_signal(self, sig: int, /) -> None: ...

    def kill(self) -> None: ...


class Place(Protocol):
    """Where commands run."""

    def start(self, words: Sequence[str], *, log: Path, lock: Path) -> Command:
        """Start a command: its output goes to the end of `log`, and it holds `lock`.

        Raises:
            RunError: another process holds the lock.
        """
        ...


class Here:
    """On this machine."""

    def start(self, words: Sequence[str], *, log: Path, lock: Path) -> subprocess.Popen[bytes]:
        return start_here(words, log=log, lock=lock)


def start_here(
    words: Sequence[str],
    *,
    log: Path,
    lock: Path,
    patience_s: float = 0.0,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, holding `lock`.

    Args:
        patience_s: an earlier process gets so long to end and let go of the lock.

    Raises:
        RunError: another process holds the lock.
    """
    held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + patience_s
        while not (locked := try_lock(held)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not locked:
            raise RunError(f"{lock}: another process is at work on this run; end it first")
        with log.open("ab") as out:
            return subprocess.Popen(
                list(words), stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment(),
                start_new_session=True, pass_fds=(held,), preexec_fn=_end_with_starter,
            )  # fmt: skip
    finally:
        os.close(held)


def _end_with_starter() -> None:
    """In the new process, before its program begins."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, for as long as it or a child's copy of it is open."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def environment() -> dict[str, str]:
    """One thread a command: several run side by side."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
