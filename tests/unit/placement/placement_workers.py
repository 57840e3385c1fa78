"""Lives of worker processes for the tests; importable without torch."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection


def echo(connection: Connection) -> None:
    while True:
        try:
            connection.send_bytes(connection.recv_bytes())
        except EOFError:
            return


def die(connection: Connection) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(connection: Connection, code: int) -> None:
    raise SystemExit(code)


def deaf(connection: Connection) -> None:
    connection.send_bytes(b"here")
    time.sleep(1000)


def babble(connection: Connection) -> None:
    connection.send_bytes(b"\xc1 no message")
    time.sleep(1000)


def busy(connection: Connection) -> None:
    connection.send_bytes(str(os.getpid()).encode())
    while True:
        pass


def late(connection: Connection, seconds: float) -> None:
    """Says a word after some time, and no other."""
    import msgspec

    from scalerl.messages import Counters, Progress

    time.sleep(seconds)
    word = Progress(completions=(), version=0, counters=Counters())
    connection.send_bytes(msgspec.msgpack.encode(word))
    time.sleep(1000)


def unsure(connection: Connection, logp: float | None) -> None:
    """Delivers one completion whose second token has this log-prob."""
    import msgspec

    completion = {
        "group": 0,
        "sample": 0,
        "token_ids": [5, 6],
        "logp_gen": [-1.0, logp],
        "mask": [1, 1],
        "segments": [[0, 0]],
        "finish": "stop",
        "interrupted": False,
        "entropy": 1.0,
    }
    counters = {"tokens_generated": 2}
    word = {"type": "Progress", "completions": [completion], "version": 0, "counters": counters}
    connection.send_bytes(msgspec.msgpack.encode(word))
    time.sleep(1000)


def generator(connection: Connection) -> None:
    """Says that it is there, acknowledges weights, and fails on anything else."""
    import msgspec

    from scalerl.messages import (
        Counters,
        Failed,
        Progress,
        ToGenerator,
        WeightsLoaded,
        WeightsReady,
    )

    encode = msgspec.msgpack.encode
    connection.send_bytes(encode(Progress(completions=(), version=0, counters=Counters())))
    while True:
        try:
            message = msgspec.msgpack.decode(connection.recv_bytes(), type=ToGenerator)
        except EOFError:
            return
        if isinstance(message, WeightsReady):
            said = WeightsLoaded(version=message.version, slot=message.slot)
            connection.send_bytes(encode(said))
        else:
            connection.send_bytes(encode(Failed(reason="WeightsCorrupt: no such checksum")))
            return
