"""Feeds a running program and reads what it says, never more than is allowed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from typing import Any, Literal

_CHUNK = 1 << 16
_STDERR_KEPT = 4096
_NOISE_ALLOWED = 16 << 20  # bytes of stderr that are read and thrown away before it is too much


class Reader:
    """The ends of one run's pipes: stdin, stdout, stderr, and the results of calls.

    Output is counted as it is read, and beyond the limit the program is ended and the rest thrown
    away. A program that writes to the pipe of results can only forge its own answers; lines without
    the nonce end the list of results.
    """

    def __init__(self, *, stdin: bytes, nonce: bytes, most_bytes: int, calls: int) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self.end: Literal["timeout", "output"] | None = None
        self._results = bytearray()
        self._stdin = memoryview(stdin)
        self._nonce, self._most_bytes, self._calls = nonce, most_bytes, calls
        self._said, self._noise = 0, 0  # bytes of stdout and of stderr
        self._lines = 0  # of results
        their_stdin, self._feed = os.pipe()
        self._out, their_out = os.pipe()
        self._err, their_err = os.pipe()
        self._res, their_res = os.pipe()
        self.their_ends = [their_stdin, their_out, their_err, their_res]
        self._open = {self._feed, self._out, self._err, self._res}
        for handle in self._open:
            os.set_blocking(handle, False)
        for handle in self.their_ends:  # another user may open them again, as /dev/stdin
            os.fchmod(handle, 0o666)

    @property
    def completed(self) -> bool:
        """The program's last sign, which it gives only when it came to its end by itself."""
        return self._calls == 0 and bytes(self._results) == self._nonce + b"\n"

    def values(self) -> list[Any]:
        """The JSON values of the calls that returned, in order."""
        found: list[Any] = []
        for line in bytes(self._results).split(b"\n")[:-1][: self._calls]:
            if not line.startswith(self._nonce):
                break
            try:
                found.append(json.loads(line[len(self._nonce) :]))
            except (
                ValueError,
                RecursionError,
            ):  # forged, or beyond what numbers and nesting may be
                break
        return found

    def close_their_ends(self) -> None:
        """After they have been handed over, so that the program's end is seen as end of file."""
        while self.their_ends:
            os.close(self.their_ends.pop())

    def close(self) -> None:
        self.close_their_ends()
        for handle in list(self._open):
            self._drop(handle)

    def follow(
        self, channel: socket.socket, *, time_s: float, end_at: float, reap_s: float
    ) -> dict[str, Any] | None:
        """Until the worker replies that the program and all it started are gone; its reply.

        Each call's value gives the program `time_s` more, up to `end_at` (monotonic). None where
        the worker does not reply within `reap_s` after it was told to kill. OSError: it has gone.
        """
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        poll.register(self._feed, select.POLLOUT)
        for handle in (self._out, self._err, self._res):
            poll.register(handle, select.POLLIN)
        deadline, values, told = min(end_at, time.monotonic() + time_s), 0, False
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0 and told:
                return None
            if left_s <= 0:
                self.end = "timeout"
            elif channel.fileno() in (ready := self._ready(poll, left_s)):
                message = channel.recv(_CHUNK)
                if not message:
                    raise ConnectionResetError("end of file")
                self._read(self._open - {self._feed}, poll, to_the_end=True)
                return json.loads(message)
            else:
                self._read(ready, poll)
            if self._too_much():
                self.end = self.end or "output"
            if told:
                continue
            if self.end is not None:
                channel.send(b"kill")
                told, deadline = True, time.monotonic() + reap_s
            elif values < self._lines <= self._calls:
                values, deadline = self._lines, min(end_at, time.monotonic() + time_s)

    def _too_much(self) -> bool:
        return (
            self._said > self._most_bytes
            or len(self._results) > self._most_bytes + _CHUNK
            or self._noise > _NOISE_ALLOWED
        )

    def _ready(self, poll: select.poll, left_s: float) -> set[int]:
        return {handle for handle, _ in poll.poll(int(left_s * 1000) + 1)}

    def _read(self, ready: set[int], poll: select.poll, *, to_the_end: bool = False) -> None:
        if self._feed in ready and self._feed in self._open and self._give():
            poll.unregister(self._feed)
            self._drop(self._feed)
        for handle in (self._out, self._err, self._res):
            more = handle in ready and handle in self._open
            while more:
                try:
                    chunk = os.read(handle, _CHUNK)
                except BlockingIOError:  # nothing there for now
                    break
                if not chunk:
                    poll.unregister(handle)
                    self._drop(handle)
                    break
                self._keep(handle, chunk)
                more = to_the_end

    def _keep(self, handle: int, chunk: bytes) -> None:
        if handle == self._res:
            if self.end is None:
                self._results += chunk
                self._lines += chunk.count(b"\n")
            return
        if handle == self._err:
            self._noise += len(chunk)
            self.stderr = (self.stderr + chunk)[-_STDERR_KEPT:]
            return
        self._said += len(chunk)
        if self._said <= self._most_bytes:
            self.stdout += chunk

    def _give(self) -> bool:
        """Write some of stdin; whether that is over."""
        if self._stdin:
            with contextlib.suppress(BlockingIOError):  # the pipe is full: the program is behind
                try:
                    written = os.write(self._feed, self._stdin[:_CHUNK])
                except BrokenPipeError:  # the program has closed it
                    return True
                self._stdin = self._stdin[written:]
        return not self._stdin

    def _drop(self, handle: int) -> None:
        self._open.discard(handle)
        os.close(handle)
