"""A checkpoint is whole or it is not there: kills, damage, full disks, and which are kept."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from scalerl.errors import RunError
from scalerl.train import checkpoint

FILES = {"model/weights": b"w" * 3000, "state": b"s" * 500, "empty": b""}


def write(folder: Path) -> None:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def warnings_of(root: Path) -> tuple[Path | None, list[str]]:
    said: list[str] = []
    return checkpoint.latest(root, said.append), said


def test_a_saved_checkpoint_is_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 40, write)
    assert path == tmp_path / "step-000040"
    assert {n: (path / n).read_bytes() for n in FILES} == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["step-000040"]
    assert checkpoint.damage(path) is None
    assert checkpoint.step_of(path) == 40
    assert warnings_of(tmp_path) == (path, [])


def test_every_file_reaches_the_disk_before_the_marker_and_the_marker_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def watched_fsync(descriptor: int) -> None:
        events.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def watched_rename(self: Path, target: Path) -> Path:
        events.append(f"→ {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(Path, "rename", watched_rename)
    checkpoint.save(tmp_path, 1, write)
    assert events == [
        "empty",
        "weights",
        "state",
        "model",
        checkpoint.MARKER,
        ".step-000001.partial",
        "→ step-000001",
        tmp_path.name,
    ]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no marker": lambda p: (p / checkpoint.MARKER).unlink(),
    "half a marker": lambda p: (p / checkpoint.MARKER).write_text('{"step": 2, "fi'),
    "a marker of something else": lambda p: (p / checkpoint.MARKER).write_text("[]"),
    "a marker with no sizes": lambda p: (p / checkpoint.MARKER).write_text('{"files": [1]}'),
    "missing": lambda p: (p / "state").unlink(),
    "truncated": lambda p: os.truncate(p / "model/weights", 1234),
    "zero bytes": lambda p: os.truncate(p / "state", 0),
    "one bit": lambda p: (p / "state").write_bytes(b"t" + b"s" * 499),
    "not a folder": lambda p: (shutil.rmtree(p), p.write_text("")),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path, kind: str) -> None:
    whole = checkpoint.save(tmp_path, 1, write)
    damaged = checkpoint.save(tmp_path, 2, write)
    DAMAGE[kind](damaged)
    found, said = warnings_of(tmp_path)
    assert found == whole
    assert len(said) == 1
    assert said[0].startswith(f"{damaged}: passed over, ")


def test_leftovers_and_foreign_names_are_not_checkpoints(tmp_path: Path) -> None:
    assert warnings_of(tmp_path / "nowhere") == (None, [])
    (tmp_path / ".step-000009.partial").mkdir()
    (tmp_path / "step-000007.tmp").mkdir()
    (tmp_path / "step-latest").symlink_to(tmp_path / "step-000099")
    whole = checkpoint.save(tmp_path, 3, write)
    assert warnings_of(tmp_path) == (whole, [])
    checkpoint.prune(tmp_path, saved=99, keep=1, keep_every=0)
    assert whole.is_dir()


KILLED = """
import os, sys
from pathlib import Path
from scalerl.train import checkpoint
left = int(sys.argv[2])
def dying(name, real):
    def act(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
        return real(*args, **kwargs)
    return act
os.fsync = dying("fsync", os.fsync)
Path.rename = dying("rename", Path.rename)
Path.mkdir = dying("mkdir", Path.mkdir)
checkpoint.shutil.rmtree = dying("rmtree", checkpoint.shutil.rmtree)
def write(folder):
    for i in range(3):
        with open(folder / str(i), "wb") as f:
            for _ in range(3):
                f.write(sys.argv[3].encode() * 100); f.flush(); os.fsync(f.fileno())
checkpoint.save(Path(sys.argv[1]), 2, write)
"""


def test_killed_at_any_point_of_a_save_a_whole_checkpoint_is_found(tmp_path: Path) -> None:
    """Also when the checkpoint of the very step is replaced: the old one or the new one."""
    seen: set[bytes] = set()
    for left in range(60):
        root = tmp_path / str(left)
        checkpoint.save(root, 1, write)
        checkpoint.save(root, 2, lambda folder: (folder / "0").write_bytes(b"old"))
        ended = subprocess.run([sys.executable, "-c", KILLED, root, str(left), "n"], check=False)
        found, said = warnings_of(root)
        assert found is not None
        assert found.name == "step-000002"
        assert said == []
        content = (found / "0").read_bytes()[:3]
        assert content in (b"old", b"nnn")
        seen.add(content)
        if ended.returncode == 0:
            assert content == b"nnn"
            break
        assert ended.returncode == -9
    else:
        pytest.fail("the save never came to its end")
    assert seen == {b"old", b"nnn"}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
    ],
)
def test_a_full_disk_is_a_message_with_path_and_bytes_and_harms_nothing(
    tmp_path: Path, error: Exception
) -> None:
    whole = checkpoint.save(tmp_path, 1, write)

    def full(folder: Path) -> None:
        write(folder)
        raise error

    with pytest.raises(RunError, match=r"step-000002: .*No space left.*[0-9,]+ bytes free"):
        checkpoint.save(tmp_path, 2, full)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001"]
    with pytest.raises(RunError, match="step-000001"):
        checkpoint.save(tmp_path, 1, full)
    assert warnings_of(tmp_path) == (whole, [])
    assert {n: (whole / n).read_bytes() for n in FILES} == FILES


def test_a_file_size_limit_of_the_kernel_is_no_different(tmp_path: Path) -> None:
    whole = checkpoint.save(tmp_path, 1, write)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RunError, match="File too large"):
            checkpoint.save(tmp_path, 2, write)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert warnings_of(tmp_path) == (whole, [])


@settings(max_examples=60, deadline=None)
@given(
    steps=st.sets(st.integers(1, 30), min_size=1, max_size=12),
    rates=st.dictionaries(st.integers(1, 30), st.floats(0, 1), max_size=12),
    keep=st.integers(1, 3),
    keep_every=st.integers(0, 5),
)
def test_the_latest_the_best_and_each_nth_are_kept(
    tmp_path_factory: pytest.TempPathFactory,
    steps: set[int],
    rates: dict[int, float],
    keep: int,
    keep_every: int,
) -> None:
    root = tmp_path_factory.mktemp("kept")
    for step in steps:
        folder = root / f"step-{step:06d}"
        folder.mkdir()
        (folder / checkpoint.MARKER).write_text(json.dumps({"step": step, "files": {}}))
    checkpoint.prune(root, saved=max(steps), keep=keep, keep_every=keep_every, rates=rates)
    left = {checkpoint.step_of(p) for p in root.iterdir()}
    expected = set(sorted(steps)[-keep:]) | {s for s in steps if keep_every and s % keep_every == 0}
    evaluated = [s for s in steps if s in rates]
    top = max((rates[s] for s in evaluated), default=None)
    assert left == expected | set(sorted(s for s in evaluated if rates[s] == top)[:1])


def test_damaged_checkpoints_push_no_whole_one_out(tmp_path: Path) -> None:
    """Resumed from 30 because 50 and 60 are damaged: 40 is written, and it is there."""
    write = lambda folder: (folder / "weights").write_text("12345")  # noqa: E731
    for step in (10, 20, 30, 50, 60):
        checkpoint.save(tmp_path, step, write)
    (tmp_path / "step-000020" / "weights").unlink()
    (tmp_path / "step-000050" / "weights").write_text("1234")
    (tmp_path / "step-000060" / "weights").write_text("54321")
    newest, said = warnings_of(tmp_path)
    assert newest == tmp_path / "step-000030"
    assert len(said) == 2
    checkpoint.save(tmp_path, 40, write)
    checkpoint.prune(tmp_path, saved=40, keep=1, keep_every=0, rates={60: 0.9, 20: 0.8, 30: 0.7})
    assert checkpoint.damage(tmp_path / "step-000030") is None  # the best of the whole ones
    assert warnings_of(tmp_path)[0] == tmp_path / "step-000040"
    for step in (50, 60, 70):
        checkpoint.save(tmp_path, step, write)
        checkpoint.prune(tmp_path, saved=step, keep=2, keep_every=0)
    assert warnings_of(tmp_path) == (tmp_path / "step-000070", [])
    whole = [p for p in tmp_path.iterdir() if checkpoint.damage(p) is None]
    assert {checkpoint.step_of(p) for p in whole} == {60, 70}
