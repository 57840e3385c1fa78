"""How new weights reach the generators: a ring of buffers, each written whole before it is named.

    trainer: write(version) → WeightsReady(slot) ─▶ generator: read(slot), verify checksum
                     ▲                                         │
                     └────────── release(reader, slot) ◀── WeightsLoaded(slot)

A buffer is written again only after every reader has copied it, so a reader never sees half of one
version and half of another. The bytes are safetensors.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from multiprocessing import shared_memory

import safetensors.torch
import torch

from scalerl.messages import WeightsReady


class WeightsCorrupt(RuntimeError):
    """A reader's copy has another checksum than what was written."""


class WeightStore:
    """Buffers that hold one version each. `readers`: how many must copy a buffer to free it."""

    def __init__(self, buffers: Sequence[memoryview], readers: int) -> None:
        self._buffers = list(buffers)
        self._lengths: dict[int, int] = {}
        self._readers = readers
        self._unread: dict[int, set[int]] = {}  # slot → readers that have not copied it

    def free_slot(self) -> int | None:
        """A buffer that may be written now, or None while the readers are behind."""
        for slot in range(len(self._buffers)):
            if not self._unread.get(slot):
                return slot
        return None

    def write(self, version: int, tensors: Mapping[str, torch.Tensor]) -> WeightsReady:
        """Copy `tensors` (name → parameter, any device) into a free buffer.

        Raises:
            BlockingIOError: no buffer is free; ask `free_slot` first.
        """
        slot = self.free_slot()
        if slot is None:
            raise BlockingIOError("every weight buffer is waiting for a generator to copy it")
        data = pack(tensors)
        buffer = self._buffers[slot]
        buffer[:8] = len(data).to_bytes(8, "little")
        buffer[8 : 8 + len(data)] = data
        self._unread[slot] = set(range(self._readers))
        return WeightsReady(version=version, slot=slot, checksum=zlib.crc32(data))

    def read(self, ready: WeightsReady) -> dict[str, torch.Tensor]:
        """The tensors of one version, copied out of the store.

        Raises:
            WeightsCorrupt: what lies there is not what the message speaks of.
        """
        buffer = self._buffers[ready.slot]
        length = int.from_bytes(buffer[:8], "little")
        data = bytes(buffer[8 : 8 + length])
        if zlib.crc32(data) != ready.checksum:
            raise WeightsCorrupt(f"weights of version {ready.version} do not have their checksum")
        return safetensors.torch.load(data)

    def release(self, reader: int, slot: int) -> None:
        """`reader` has copied this buffer. Saying it twice is harmless."""
        self._unread.get(slot, set()).discard(reader)

    def forget(self, reader: int) -> None:
        """`reader` is gone: nothing waits for it any more."""
        for unread in self._unread.values():
            unread.discard(reader)


class SharedWeights:
    """The shared memory under a store. The creator unlinks it; readers attach by name."""

    def __init__(self, segments: Sequence[shared_memory.SharedMemory], *, owner: bool) -> None:
        self._segments = list(segments)
        self._owner = owner

    @classmethod
    def create(cls, size: int, slots: int) -> SharedWeights:
        made = [shared_memory.SharedMemory(create=True, size=size + 8) for _ in range(slots)]
        return cls(made, owner=True)

    @classmethod
    def attach(cls, names: Sequence[str]) -> SharedWeights:
        return cls([shared_memory.SharedMemory(name=name) for name in names], owner=False)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(segment.name for segment in self._segments)

    @property
    def buffers(self) -> list[memoryview]:
        return [buf for segment in self._segments if (buf := segment.buf) is not None]

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
            if self._owner:
                segment.unlink()
        self._segments = []


def local_buffers(size: int, slots: int) -> list[memoryview]:
    """The same buffers inside one process."""
    return [memoryview(bytearray(size + 8)) for _ in range(slots)]


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return safetensors.torch.save({n: t.detach().contiguous() for n, t in tensors.items()})
