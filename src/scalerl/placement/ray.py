"""Commands on a Ray cluster: one actor a command, wherever there are cores and GPUs for it.

    RayPlace.start ─▶ actor (waits for room) ─▶ start_here on its machine
    poll, signals  ─▶ the actor's answers; a machine that is lost reads as SIGKILL

Folders have to be on a file system that every machine mounts at the same path, as the Python that
runs this has to be. When the actor dies, because its driver did, the kernel asks the command to end
with SIGTERM, so that a run writes its checkpoint.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.errors import InputError, RunError
from scalerl.placement.commands import start_here

LOOK_S = 0.05
"""An answer of an actor is waited for so long in one look."""
END_S = 60.0
"""The command of an actor that was lost gets so long to write its checkpoint."""


class RayPlace:
    """A Ray cluster.

    Args:
        address: of a cluster, `auto` for the one this machine belongs to, or `local` to start one
            on this machine, which listens on loopback only.
        cpus, gpus: what a command asks for; both may be fractions.

    Raises:
        InputError: Ray is not installed, or no cluster is at the address.
    """

    def __init__(self, address: str, *, cpus: float = 1, gpus: float = 0) -> None:
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError("Ray is not installed: pip install 'scalerl[ray]'") from error
        self._ray = ray
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address == "local":
            quiet |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError) as error:
            raise InputError(f"no Ray cluster at {address!r}: {error}") from error
        self._seat = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=0)(Seat)

    def start(self, words: Sequence[str], *, log: Path, lock: Path) -> RayCommand:
        paths = {"log": log.resolve(), "lock": lock.resolve()}
        return RayCommand(self._ray, self._seat.remote(list(words), **paths))

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()


class Seat:
    """One command, in an actor on the machine that has room for it."""

    def __init__(self, words: Sequence[str], *, log: Path, lock: Path) -> None:
        self._refused = ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = start_here(words, log=log, lock=lock, patience_s=END_S)
        except (RunError, OSError) as error:
            self._refused = str(error)

    def poll(self) -> tuple[int | None, str]:
        """The return code, None while it runs; and why it did not start, if so."""
        return (self._process.poll() if self._process else 1), self._refused

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class RayCommand:
    """What the driver holds of a command. Its looks never wait longer than `LOOK_S`."""

    pid = None

    def __init__(self, ray: Any, actor: Any) -> None:
        self.returncode: int | None = None
        self._ray = ray
        self._actor = actor
        self._asked: Any = None

    def poll(self) -> int | None:
        """The return code if it has ended. A lost machine or actor reads as SIGKILL.

        Raises:
            RunError: the command did not start.
        """
        if self.returncode is not None:
            return self.returncode
        if self._asked is None:
            self._asked = self._actor.poll.remote()
        if not self._ray.wait([self._asked], timeout=LOOK_S)[0]:
            return None
        asked, self._asked = self._asked, None
        try:
            self.returncode, refused = self._ray.get(asked)
        except self._ray.exceptions.RayActorError:
            self.returncode, refused = -signal.SIGKILL, ""
        if refused:
            raise RunError(refused)
        if self.returncode is not None:
            self._ray.kill(self._actor)  # its cores are free for the next one
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a command on Ray", timeout or 0.0)
            time.sleep(LOOK_S)
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        self._actor.send_signal.remote(int(sig))

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
