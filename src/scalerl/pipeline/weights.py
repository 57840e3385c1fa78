"""How new weights reach the generators: a ring of buffers, each written whole before it is named.

    trainer: write(version) → WeightsReady(slot) ─▶ generator: read(slot), verify checksum
                     ▲                                         │
                     └────────── release(reader, slot) ◀── WeightsLoaded(slot)

A buffer is written again only after every reader has copied it, so a reader never sees half of one
version and half of another. Between processes a buffer is host memory that both have mapped, and
the bytes are safetensors: a reader on a card copies from there into its own parameters. Inside one
process it is a set of tensors on the device that they were written from. Neither touches a disk.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from typing import Any

import safetensors.torch
import torch

from scalerl.errors import RunError
from scalerl.messages import WeightsLoaded, WeightsReady

HOLDER = -1  # stands among the readers of a buffer that is held


class WeightsCorrupt(RuntimeError):
    """A reader's copy has another checksum than what was written."""


class WeightStore(ABC):
    """Buffers that hold one version each. `readers`: how many must copy a buffer to free it."""

    def __init__(self, slots: int, readers: int) -> None:
        self._slots = slots
        self._readers = readers
        self._unread: dict[int, set[int]] = {}  # slot → readers that have not copied it
        self._written: dict[int, WeightsReady] = {}  # slot → what was said of it last
        self.last: WeightsReady | None = None

    def free_slot(self) -> int | None:
        """A buffer that may be written now, or None while the readers are behind."""
        for slot in range(self._slots):
            if not self._unread.get(slot):
                return slot
        return None

    @property
    def behind(self) -> list[int]:
        """Readers that have not copied some buffer yet."""
        return sorted({r for unread in self._unread.values() for r in unread} - {HOLDER})

    def write(self, version: int, tensors: Mapping[str, torch.Tensor]) -> WeightsReady:
        """Copy `tensors` (name → parameter, any device) into a free buffer.

        Raises:
            BlockingIOError: no buffer is free; ask `free_slot` first.
            RunError: they do not fit in it.
        """
        slot = self.free_slot()
        if slot is None:
            raise BlockingIOError("every weight buffer is waiting for a generator to copy it")
        checksum = self._put(slot, version, tensors)
        self._unread[slot] = set(range(self._readers))
        self.last = WeightsReady(version=version, slot=slot, checksum=checksum)
        self._written[slot] = self.last
        return self.last

    def read(self, ready: WeightsReady) -> dict[str, torch.Tensor]:
        """The tensors of one version, to be copied before the buffer is released.

        Raises:
            WeightsCorrupt: what lies there is not what the message speaks of.
        """
        found, tensors = self._get(ready.slot)
        if found != ready.checksum:
            raise WeightsCorrupt(f"weights of version {ready.version} do not have their checksum")
        return tensors()

    def release(self, reader: int, loaded: WeightsLoaded) -> None:
        """`reader` has copied a buffer. Saying it twice, or too late, is harmless."""
        written = self._written.get(loaded.slot)
        if written is not None and written.version == loaded.version:
            self._unread[loaded.slot].discard(reader)

    def hold(self) -> WeightsReady:
        """Keep the buffer written last until `let_go`, however many follow."""
        if self.last is None:
            raise ValueError("nothing has been written yet")
        self._unread[self.last.slot].add(HOLDER)
        return self.last

    def let_go(self, held: WeightsReady) -> None:
        self._unread[held.slot].discard(HOLDER)

    def again(self, reader: int, held: WeightsReady | None = None) -> list[WeightsReady]:
        """A new process takes the place of `reader`: what it must copy, in order.

        Args:
            held: a buffer to copy before the last one.
        """
        for unread in self._unread.values():
            unread.discard(reader)
        if self.last is None:
            return []
        ready = [self.last] if held in (None, self.last) else [held, self.last]
        for one in ready:
            self._unread[one.slot].add(reader)
        return ready

    @abstractmethod
    def _put(self, slot: int, version: int, tensors: Mapping[str, torch.Tensor]) -> int:
        """Fill a buffer; the checksum of what is in it."""

    @abstractmethod
    def _get(self, slot: int) -> tuple[int, Callable[[], dict[str, torch.Tensor]]]:
        """The checksum of what is in a buffer now, and how to have it as tensors."""


class HostStore(WeightStore):
    """Buffers of host memory that readers in other processes have mapped, too."""

    def __init__(self, buffers: Sequence[memoryview], readers: int) -> None:
        super().__init__(len(buffers), readers)
        self._buffers = list(buffers)

    def _put(self, slot: int, version: int, tensors: Mapping[str, torch.Tensor]) -> int:
        data = pack(tensors)
        buffer = self._buffers[slot]
        if len(data) > len(buffer) - 8:
            raise RunError(
                f"weights of version {version} are {len(data)} bytes, and a buffer holds "
                f"{len(buffer) - 8}"
            )
        buffer[:8] = len(data).to_bytes(8, "little")
        buffer[8 : 8 + len(data)] = data
        return zlib.crc32(data)

    def _get(self, slot: int) -> tuple[int, Callable[[], dict[str, torch.Tensor]]]:
        buffer = self._buffers[slot]
        data = bytes(buffer[8 : 8 + int.from_bytes(buffer[:8], "little")])
        return zlib.crc32(data), lambda: safetensors.torch.load(data)


class InProcessStore(WeightStore):
    """Copies on the writer's own device, each made when it is first needed."""

    def __init__(self, slots: int, readers: int) -> None:
        super().__init__(slots, readers)
        self._copies: dict[int, dict[str, torch.Tensor]] = {}

    def _put(self, slot: int, version: int, tensors: Mapping[str, torch.Tensor]) -> int:
        copies = self._copies.setdefault(slot, {})
        for name, tensor in tensors.items():
            if name in copies:
                copies[name].copy_(tensor.detach())
            else:
                copies[name] = tensor.detach().clone(memory_format=torch.contiguous_format)
        return bit_sum(copies)

    def _get(self, slot: int) -> tuple[int, Callable[[], dict[str, torch.Tensor]]]:
        copies = self._copies.get(slot, {})
        return bit_sum(copies), lambda: copies


class SharedWeights:
    """The memory under a store, shared with spawned processes by handing them its descriptor.

    It has no name, so whatever kills the processes, nothing is left behind.

    Raises:
        RunError: there is not so much memory.
    """

    def __init__(self, size: int, slots: int, descriptor: int | None = None) -> None:
        self._size, self._slots = size + 8, slots
        try:
            if descriptor is None:
                descriptor = _nameless_file(self._size * slots)
            self._map = mmap.mmap(descriptor, self._size * slots)
        except OSError as error:
            raise RunError(
                f"no {self._size * slots:,} bytes of shared memory for {slots} versions of the "
                f"weights: {error}"
            ) from error
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        """Only works while a process is being spawned, which gets the descriptor."""
        return _attached, (self._size - 8, self._slots, reduction.DupFd(self._descriptor))

    @property
    def buffers(self) -> list[memoryview]:
        whole = memoryview(self._map)
        return [whole[i * self._size : (i + 1) * self._size] for i in range(self._slots)]

    def close(self) -> None:
        """The memory itself goes with the last process that has it mapped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _attached(size: int, slots: int, duplicate: Any) -> SharedWeights:
    return SharedWeights(size, slots, duplicate.detach())


def _nameless_file(size: int) -> int:
    """A descriptor of `size` reserved bytes: writing to them later cannot fail."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("scalerl-weights")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)
    return descriptor


def bit_sum(tensors: Mapping[str, torch.Tensor]) -> int:
    """The bits of contiguous tensors as 32- or 16-bit integers, added up where they are; the sums
    of the tensors are weighted by their places, all modulo 2^63."""
    kinds = {4: torch.int32, 2: torch.int16, 8: torch.int64, 1: torch.int8}
    sums = [t.view(kinds[t.element_size()]).sum(dtype=torch.int64) for t in tensors.values()]
    if not sums:
        return 0
    return sum(i * s for i, s in enumerate(torch.stack(sums).tolist(), start=1)) % (1 << 63)


def pack(tensors: Mapping[str, torch.Tensor]) -> bytes:
    return safetensors.torch.save({n: t.detach().contiguous() for n, t in tensors.items()})
