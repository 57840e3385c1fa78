"""The life of a generator process: what is spawned, and its loop around the channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from scalerl.messages import Failed, ToGenerator
from scalerl.pipeline.generator import GeneratorLoop, GeneratorSpec, build_loop
from scalerl.pipeline.weights import HostStore, SharedWeights

IDLE_POLL_S = 0.2

_encoder = msgspec.msgpack.Encoder()
_to_generator = msgspec.msgpack.Decoder(ToGenerator)


def generator_main(connection: Connection, spec_bytes: bytes, shared: SharedWeights) -> None:
    """Entry point of a spawned generator."""
    spec = msgspec.msgpack.decode(spec_bytes, type=GeneratorSpec)

    def build() -> GeneratorLoop:
        import torch

        torch.set_num_threads(spec.threads)
        return build_loop(spec, HostStore(shared.buffers, readers=1))

    serve(connection, build)


def serve(connection: Connection, build: Callable[[], GeneratorLoop]) -> None:
    """The loop of a generator process.

    consumes:      messages on the channel, all that are there before each tick
    produces:      what the loop's ticks say
    waits for:     a message, when the loop is idle
    unblocked by:  any message; the end of the channel, which ends the process
    """
    try:
        loop = build()
        while not loop.stopped:
            started = time.monotonic()
            while connection.poll(IDLE_POLL_S if loop.idle else 0.0):
                loop.post(_to_generator.decode(connection.recv_bytes()))
            loop.rest(time.monotonic() - started)
            for reply in loop.tick():
                connection.send_bytes(_encoder.encode(reply))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the trainer is gone: nobody is left to work for
    except Exception as error:  # tolerates nothing: the trainer hears of it, and this process ends
        connection.send_bytes(_encoder.encode(Failed(reason=f"{type(error).__name__}: {error}")))
        raise
