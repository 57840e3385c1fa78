"""Checkpoints that are whole or not there.

    write everything into .step-000040.partial/ → fsync each file → marker with sizes and checksums,
    last → fsync → rename to step-000040/ → fsync the parent

A folder without a marker that fits its files is not a checkpoint, whatever it is named: `latest`
passes it over and takes the newest whole one.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from scalerl.errors import RunError

MARKER = "COMPLETE.json"
PREFIX = "step-"


def save(root: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Make the checkpoint of `step`; `write` fills the folder that it is given.

    Raises:
        RunError: it could not be written (disk full, no permission). Earlier checkpoints are
            untouched and nothing is left of the failed one.
    """
    final = root / f"{PREFIX}{step:06d}"
    aside = root / f".{PREFIX}{step:06d}.partial"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        write(aside)
        for file in _files(aside):
            _sync(file)
        marker = aside / MARKER
        marker.write_text(json.dumps({"step": step, "files": _manifest(aside)}), "utf-8")
        _sync(marker)
        _sync(aside)
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        _sync(root)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        free = shutil.disk_usage(root).free if root.is_dir() else 0
        raise RunError(
            f"{final}: the checkpoint could not be written ({error}; {free / 1e6:.0f} MB free); "
            "earlier checkpoints are untouched"
        ) from error
    return final


def latest(root: Path, warn: Callable[[str], None]) -> Path | None:
    """The newest whole checkpoint; `warn` hears of each newer one that is damaged."""
    for path in sorted(root.glob(f"{PREFIX}*"), reverse=True):
        fault = damage(path)
        if fault is None:
            return path
        warn(f"{path}: passed over, {fault}")
    return None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint folder; None if it is whole."""
    try:
        files = json.loads((path / MARKER).read_text("utf-8"))["files"]
    except FileNotFoundError:
        return "it was not finished (no marker)"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its marker cannot be read ({error})"
    for name, (size, checksum) in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
        if _checksum(file) != checksum:
            return f"{name} is damaged (checksum)"
    return None


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(PREFIX))


def prune(root: Path, *, keep: int, keep_every: int, best: int | None = None) -> None:
    """Remove old checkpoints but the newest `keep`, the best one and each `keep_every`-th step."""
    for path in sorted(root.glob(f"{PREFIX}*"), reverse=True)[keep:]:
        step = step_of(path)
        if step != best and not (keep_every and step % keep_every == 0):
            shutil.rmtree(path)


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
