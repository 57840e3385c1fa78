"""Checkpoints that are whole or not there.

    write everything into .step-000040.partial/ → fsync each file → marker with sizes and checksums,
    last → fsync → rename to step-000040/ → fsync the parent

A folder without a marker that fits its files is not a checkpoint, whatever it is named: `latest`
passes it over and takes the newest whole one.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
from safetensors import SafetensorError

from scalerl.errors import RunError

MARKER = "COMPLETE.json"
PREFIX = "step-"


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The last file of a checkpoint: what must be there for it to be whole."""

    step: int
    files: dict[str, tuple[int, int]]  # path → bytes, CRC-32


def save(root: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Make the checkpoint of `step`; `write` fills the folder that it is given.

    Raises:
        RunError: it could not be written (disk full, no permission). Earlier checkpoints are
            untouched and nothing is left of the failed one.
    """
    final = root / f"{PREFIX}{step:06d}"
    aside = root / f".{PREFIX}{step:06d}.partial"
    before = root / f".{PREFIX}{step:06d}.before"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        write(aside)
        for file in _files(aside):
            sync(file)
        for folder in (f for f in aside.rglob("*") if f.is_dir()):
            sync(folder)
        marker = aside / MARKER
        marker.write_bytes(msgspec.json.encode(Marker(step=step, files=_manifest(aside))))
        sync(marker)
        sync(aside)
        shutil.rmtree(before, ignore_errors=True)
        if final.exists():
            final.rename(before)  # `latest` brings it back if the next line is never reached
        aside.rename(final)
        sync(root)
    except (OSError, SafetensorError) as error:  # safetensors wraps a full disk in its own
        shutil.rmtree(aside, ignore_errors=True)
        free = shutil.disk_usage(root).free if root.is_dir() else 0
        raise RunError(
            f"{final}: the checkpoint could not be written ({error}; {free:,} bytes free); "
            "earlier checkpoints are untouched"
        ) from error
    shutil.rmtree(before, ignore_errors=True)
    return final


def latest(root: Path, warn: Callable[[str], None], *, up_to: int | None = None) -> Path | None:
    """The newest whole checkpoint, of step `up_to` at most; `warn` hears of each newer one that
    is damaged."""
    for before in root.glob(f".{PREFIX}*.before"):
        final = root / before.name.removeprefix(".").removesuffix(".before")
        if not final.exists():  # a kill between the two renames of `save`
            before.rename(final)
    for path in _folders(root):
        if up_to is not None and step_of(path) > up_to:
            continue
        fault = damage(path)
        if fault is None:
            return path
        warn(f"{path}: passed over, {fault}")
    return None


def damage(path: Path, *, deep: bool = True) -> str | None:
    """What is wrong with a checkpoint folder; None if it is whole.

    Args:
        deep: read every file for its checksum, not its size alone.
    """
    try:
        files = msgspec.json.decode((path / MARKER).read_bytes(), type=Marker).files
    except FileNotFoundError:
        return "it was not finished (no marker)"
    except (OSError, msgspec.DecodeError) as error:
        return f"its marker cannot be read ({error})"
    for name, (size, checksum) in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
        if deep and _checksum(file) != checksum:
            return f"{name} is damaged (checksum)"
    return None


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


def prune(
    root: Path,
    *,
    saved: int,
    keep: int,
    keep_every: int,
    rates: Mapping[int, float] = MappingProxyType({}),
) -> None:
    """Remove old checkpoints but the newest `keep`, the best one and each `keep_every`-th step.

    Args:
        rates: held-out pass rates by step, which say what is best; of equals the earliest.
        saved: the step just saved. What is later is damaged (a run resumed from before it, and will
            write it again), and what has lost files counts for nothing: neither may push a whole
            checkpoint out.
    """
    earlier = [
        path for path in _folders(root) if step_of(path) <= saved and not damage(path, deep=False)
    ]
    rated = [step for step in map(step_of, earlier) if step in rates]
    best = max(rated, key=lambda step: (rates[step], -step), default=None)
    for path in earlier[keep:]:
        step = step_of(path)
        if step != best and not (keep_every and step % keep_every == 0):
            shutil.rmtree(path, ignore_errors=True)  # one too many is no reason to end a run


def discard_after(root: Path, step: int) -> None:
    """Remove every checkpoint later than `step`: the run has gone back, and nobody is to resume
    from there."""
    for path in _folders(root):
        if step_of(path) > step:
            shutil.rmtree(path)


def sync(path: Path) -> None:
    """Have the file's or folder's contents reach the disk. One that is not there is nothing."""
    if not path.exists():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _folders(root: Path) -> list[Path]:
    """Checkpoint folders, whole or not, the newest first."""
    named = [p for p in root.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdigit()]
    return sorted(named, key=step_of, reverse=True)


def _files(folder: Path) -> Iterator[Path]:
    return (f for f in sorted(folder.rglob("*")) if f.is_file())


def _manifest(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_size, _checksum(file))
        for file in _files(folder)
        if file.name != MARKER
    }


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as handle:
        while block := handle.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
