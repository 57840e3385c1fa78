"""Publication of weights: whole versions only, in one process and between two."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from scalerl.errors import RunError
from scalerl.messages import WeightsLoaded, WeightsReady
from scalerl.pipeline.weights import (
    HostStore,
    InProcessStore,
    SharedWeights,
    WeightsCorrupt,
    WeightStore,
    bit_sum,
    pack,
)
from scalerl.placement.local import CONTEXT


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "a": torch.full((3,), float(value)),
        "b": torch.full((2, 2), -value, dtype=torch.bfloat16),
    }


SIZE = len(pack(tensors(0.0)))


def host_store(slots: int, readers: int, size: int = SIZE) -> HostStore:
    return HostStore([memoryview(bytearray(size + 8)) for _ in range(slots)], readers=readers)


Make = Callable[[int, int], WeightStore]


@pytest.fixture(params=[host_store, InProcessStore])
def make_store(request: pytest.FixtureRequest) -> Make:
    """`make_store(slots, readers)`: between processes and inside one, the same store."""
    return request.param


def loaded(ready: WeightsReady) -> WeightsLoaded:
    return WeightsLoaded(version=ready.version, slot=ready.slot)


def test_what_is_read_is_what_was_written(make_store: Make) -> None:
    store = make_store(3, 2)
    ready = store.write(4, tensors(2.5))
    back = store.read(ready)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors(2.5).items())
    assert ready.version == 4


def test_a_buffer_is_written_again_only_when_every_reader_has_it(make_store: Make) -> None:
    store = make_store(2, 2)
    first, second = store.write(0, tensors(0)), store.write(1, tensors(1))
    assert store.free_slot() is None
    with pytest.raises(BlockingIOError):
        store.write(2, tensors(2))
    store.release(0, loaded(first))
    store.release(0, loaded(first))  # twice
    assert store.free_slot() is None
    assert store.behind == [0, 1]
    store.release(1, loaded(first))
    assert store.write(2, tensors(2)).slot == first.slot
    assert torch.equal(store.read(second)["a"], torch.ones(3))


def test_half_written_or_overwritten_weights_are_noticed() -> None:
    store = host_store(1, 0)
    ready = store.write(0, tensors(1))
    store._buffers[0][-5] ^= 1
    with pytest.raises(WeightsCorrupt, match="version 0"):
        store.read(ready)
    store.write(1, tensors(2))
    with pytest.raises(WeightsCorrupt, match="version 0"):
        store.read(ready)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_copy_in_the_process_that_has_changed_is_noticed(name: str) -> None:
    store = InProcessStore(1, 0)
    ready = store.write(0, tensors(1))
    store.read(ready)[name].view(-1)[1] += 1
    with pytest.raises(WeightsCorrupt, match="version 0"):
        store.read(ready)


def test_a_copy_in_the_process_does_not_follow_the_weights_that_it_was_made_of() -> None:
    store, trained = InProcessStore(1, 0), tensors(1)
    ready = store.write(0, trained)
    trained["a"] += 1
    assert store.read(ready)["a"].tolist() == [1.0] * 3
    again = store.write(1, trained)
    assert store.read(again)["a"].tolist() == [2.0] * 3
    assert bit_sum({"x": torch.tensor(1.0)}) != bit_sum({"x": torch.tensor(2.0)})
    assert bit_sum({}) == 0


def test_a_held_version_outlives_those_that_follow(make_store: Make) -> None:
    store = make_store(3, 1)
    held = store.write(0, tensors(0)) and store.hold()
    store.release(0, loaded(held))
    for version in range(1, 9):
        store.release(0, loaded(store.write(version, tensors(version))))
    assert torch.equal(store.read(held)["a"], torch.zeros(3))
    assert [ready.version for ready in store.again(0, held)] == [0, 8]
    store.let_go(held)
    assert store.behind == [0]


def test_a_new_reader_in_an_old_place_gets_the_last_version_and_holds_up_no_other(
    make_store: Make,
) -> None:
    store = make_store(3, 2)
    for version in range(3):
        store.release(1, loaded(store.write(version, tensors(version))))
    assert store.free_slot() is None  # reader 0 has died with three unread
    [ready] = store.again(0)
    assert ready.version == 2
    assert store.behind == [0]
    assert store.write(3, tensors(3)).slot != ready.slot
    assert torch.equal(store.read(ready)["a"], torch.full((3,), 2.0))
    assert make_store(3, 2).again(0) == []


def _reader(connection: Connection, shared: SharedWeights, ready: list[WeightsReady]) -> None:
    store = HostStore(shared.buffers, readers=1)
    connection.send([store.read(one)["a"].tolist() for one in ready])


def test_another_process_reads_the_same_memory_which_has_no_name() -> None:
    before = set(os.listdir("/dev/shm")) if sys.platform == "linux" else set()
    shared = SharedWeights(SIZE, 2)
    store = HostStore(shared.buffers, readers=1)
    ready = [store.write(version, tensors(version)) for version in (5, 6)]
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_reader, args=(theirs, shared, ready))
    process.start()
    assert ours.poll(60)
    assert ours.recv() == [[5.0] * 3, [6.0] * 3]
    process.join(30)
    if sys.platform == "linux":
        assert not {n for n in os.listdir("/dev/shm") if "scalerl" in n} - before
        assert "scalerl" in os.readlink(f"/proc/self/fd/{shared._descriptor}")
    shared.close()
    shared.close()


def test_weights_that_do_not_fit_are_refused_whole() -> None:
    store = host_store(1, 1, SIZE - 1)
    with pytest.raises(
        RunError, match=f"version 3 are {SIZE} bytes, and a buffer holds {SIZE - 1}"
    ):
        store.write(3, tensors(0))
    assert store.last is None


def test_too_little_memory_is_a_message_not_a_bus_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RunError, match=r"no 2,[0-9]+ bytes of shared memory for 2 versions"):
        SharedWeights(1000, 2)


def test_this_file_names_no_shared_memory() -> None:
    """Named segments outlive a killed process group; the store must not use any."""
    source = Path(WeightStore.__module__.replace(".", "/")).with_suffix(".py")
    root = Path(__file__).parents[3] / "src"
    assert "shared_memory" not in (root / source).read_text("utf-8")
