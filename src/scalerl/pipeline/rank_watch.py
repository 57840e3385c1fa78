"""The spawned ranks of a trainer, watched from rank 0 while it waits for them.

A collective has no ear for signals and does not say who is missing. So a thread beside it listens
for signs of life, and ends every rank when one is lost: the collective fails, and here it says why.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from scalerl.errors import RunError
from scalerl.placement.local import Arrival, Worker
from scalerl.train.sharded import RanksApart

START_S = 120.0  # a rank may be silent for so long while it starts, as a generator may
BEAT_S = 1.0
POLL_S = 0.2
TOLD_S = 10.0  # for the reason of a failed collective to be found
FREE_S = 20.0  # for rank 0 to leave a wait when the others are gone; on a card it may not
BUSY_S = 300.0  # the same where it has work of its own: long passes, a checkpoint to a slow disk


class RankWatch:
    """Ranks 1 to n.

    consumes:      signs of life of the ranks; the ends of their channels
    produces:      the end of all ranks once one has died, or has been silent for `silence_s` while
                   rank 0 waits for it; the end of rank 0 where it does not leave its wait
    waits for:     the next sign of life
    unblocked by:  the clock, at every poll

    Args:
        target: the life of a rank; it starts with `show_life`.
        arguments: for each rank.
        at_end: called when no rank is left, and where rank 0 is ended.
    """

    def __init__(
        self,
        target: Callable[..., None],
        arguments: Sequence[tuple[Any, ...]],
        *,
        silence_s: float,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.lost = ""  # which rank, and how
        self._silence_s = silence_s
        self._at_end = at_end
        self._inbox: queue.Queue[Arrival] = queue.Queue()
        self._workers = [
            Worker(rank, f"trainer rank {rank}", target, given, self._inbox)
            for rank, given in enumerate(arguments, start=1)
        ]
        self._quiet_s = dict.fromkeys(self._workers, 0.0)  # of those at work
        self._allowed_s: float | None = None  # for rank 0 to go on alone; None: it waits for nobody
        self._unfinished: Path | None = None
        self._found = threading.Event()  # that a rank is lost
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="trainer ranks", daemon=True)
        self._thread.start()

    def meet(self) -> None:
        """Wait until each rank has shown life; raises RunError if one does not."""
        while any(worker.heard_at is None for worker in self._workers):
            if self._found.wait(POLL_S):
                raise RunError(self.lost)

    @contextmanager
    def waited_for(self, allowed_s: float | None = None) -> Iterator[None]:
        """What rank 0 does inside needs all ranks; when it fails for a lost one, it says which.

        Args:
            allowed_s: how long it may last when a rank is lost (by default `FREE_S`).
        """
        self._allowed_s = FREE_S if allowed_s is None else allowed_s
        try:
            yield
        except RanksApart as error:
            if not self._found.wait(TOLD_S):
                raise
            raise RunError(self.lost) from error
        finally:
            self._allowed_s = None

    @contextmanager
    def unfinished(self, folder: Path) -> Iterator[None]:
        """A folder that is being written, and removed if rank 0 is ended meanwhile."""
        self._unfinished = folder
        try:
            yield
        finally:
            self._unfinished = None

    def close(self, grace_s: float) -> None:
        """Wait for the ranks to end by themselves, then kill them."""
        self._over.set()
        self._thread.join(TOLD_S)
        deadline = time.monotonic() + grace_s
        for worker in self._workers:
            worker.stop(max(0.0, deadline - time.monotonic()))
        self._at_end()

    def _watch(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self.lost = self._listen()
            self._count_silence(time.monotonic() - began)
            self.lost = self.lost or self._silent()
            if self.lost:
                self._end()
                return

    def _listen(self) -> str:
        """Hear what has come; who has died, and how, or nothing."""
        patience = POLL_S
        while True:
            try:
                arrival = self._inbox.get(timeout=patience)
            except queue.Empty:  # nothing more has come
                return ""
            patience = 0.0
            self._quiet_s[arrival.worker] = 0.0
            if arrival.data is None:
                obituary = arrival.worker.obituary()
                if arrival.worker.process.exitcode != 0:
                    return obituary
                del self._quiet_s[arrival.worker]  # it was told to go

    def _count_silence(self, passed_s: float) -> None:
        """A poll counts as a second at most: a job that was stopped is no silence."""
        for worker in self._quiet_s:
            self._quiet_s[worker] += min(passed_s, 1.0)
            if self._allowed_s is None:
                self._quiet_s[worker] = 0.0

    def _silent(self) -> str:
        for worker, quiet_s in self._quiet_s.items():
            allowed_s = self._silence_s
            if worker.heard_at is None:
                allowed_s = max(allowed_s, START_S)
            if quiet_s > allowed_s:
                return (
                    f"{worker.name} (pid {worker.process.pid}) gave no sign of life for "
                    f"{allowed_s:.0f} s (execution.stall_s)"
                )
        return ""

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        self._found.set()
        stuck_s, told = 0.0, False
        while not self._over.wait(POLL_S):
            allowed_s = self._allowed_s
            if allowed_s is None:
                stuck_s = 0.0
                continue
            stuck_s += POLL_S
            if stuck_s > min(FREE_S, allowed_s) and not told:
                told = True
                print(f"scalerl: {self.lost}", file=sys.stderr, flush=True)
            if stuck_s > allowed_s:
                self._clear_away()
                os._exit(1)

    def _clear_away(self) -> None:
        """What else would be left behind by rank 0 when it ends without its own last acts."""
        if (folder := self._unfinished) is not None:
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it goes on to its end
            self._at_end()


def show_life(connection: Connection) -> None:
    """Say from now on, once a second, that this rank is alive, whatever it is busy with."""

    def beat() -> None:
        with contextlib.suppress(OSError):  # rank 0 is gone, and this process with it
            while True:
                connection.send_bytes(b"alive")
                time.sleep(BEAT_S)

    threading.Thread(target=beat, name="signs of life", daemon=True).start()
