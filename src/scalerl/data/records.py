"""Rows of a file or data set, one after the other, with the line each stands on.

JSONL and CSV are read as bytes, line by line, so that one bad line is one problem. Nothing is
typed from its first rows: a column may hold null, then text, then a number.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from scalerl.data.problems import Problem
from scalerl.errors import InputError

BATCH = 256  # rows of Parquet in memory at a time
READABLE = (".jsonl", ".ndjson", ".csv", ".parquet")
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")  # in names of files
_MOJIBAKE = re.compile("Ã[\u0080-\u00bf©¨¡³±¼¶¤]|â€[™œ“”¦“]|Â[°±²³·½]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    file: str
    line: int
    fields: Mapping[str, Any]


def read_file(path: Path) -> Iterator[Row | Problem]:
    """Rows of a .jsonl, .csv or .parquet file.

    Raises:
        InputError: it is not there, of another kind, or unreadable as a whole.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    match path.suffix:
        case ".jsonl" | ".ndjson":
            return _jsonl(path)
        case ".csv":
            return _csv(path)
        case ".parquet":
            return _parquet(path)
        case suffix:
            raise InputError(f"{path}: cannot read {suffix or 'it'}: give .jsonl, .csv or .parquet")


def _jsonl(path: Path) -> Iterator[Row | Problem]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if not raw.strip():
                continue
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                yield _fault(
                    path, number, "encoding", f"not UTF-8 at byte {error.start}: convert it"
                )
                continue
            try:
                fields = json.loads(text)
            except json.JSONDecodeError as error:
                text = f"{error.msg} at character {error.pos + 1}: mend or remove the line"
                yield _fault(path, number, "not JSON", text)
                continue
            except RecursionError:
                yield _fault(path, number, "not JSON", "nested too deeply: remove the line")
                continue
            if isinstance(fields, dict):
                yield Row(file=str(path), line=number, fields=fields)
            else:
                kind = type(fields).__name__
                yield _fault(path, number, "not an object", f"a {kind}: write {{…}} with fields")


def _csv(path: Path) -> Iterator[Row | Problem]:
    lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    reader = csv.reader(lines.splitlines(keepends=True), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            number = reader.line_num
            if not header:
                header = cells
            elif any(re.search("[\udc80-\udcff]", cell) for cell in cells):
                yield _fault(path, number, "encoding", "not UTF-8: convert the file")
            elif len(cells) == len(header):
                fields = {k: v or None for k, v in zip(header, cells, strict=True)}
                yield Row(file=str(path), line=number, fields=fields)
            elif cells:
                text = f"{len(cells)} cells, the header has {len(header)}: mend the line"
                yield _fault(path, number, "another number of cells", text)
    except csv.Error as error:
        yield _fault(path, reader.line_num, "not CSV", f"{error}: mend the line")


def _parquet(path: Path) -> Iterator[Row | Problem]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise InputError(f"{path}: Parquet needs pyarrow: pip install 'scalerl[data]'") from None
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not readable as Parquet: {error}") from None
    number = 0
    for batch in table.iter_batches(BATCH):
        for fields in batch.to_pylist():
            number += 1
            yield Row(file=str(path), line=number, fields=fields)


def read_folder(folder: Path, *, subset: str, split: str) -> Iterator[Row | Problem] | None:
    """Rows of the files in a folder, in the order of their names; None where it holds none that
    can be read here. `datasets` would type its columns by their first rows, and "033" beside 33
    would lose its zero.

    Args:
        subset: files whose path names it, where any does.
        split: of these, files whose path names it, where any names a split.

    Raises:
        InputError: no file is of this split.
    """
    found = sorted(p for p in folder.rglob("*") if p.suffix in READABLE and p.is_file())
    names = {path: str(path.relative_to(folder)) for path in found}
    files = [path for path in found if subset and _names(names[path], subset)] or found
    if any(_names(names[path], word) for path in files for word in SPLITS):
        files = [path for path in files if _names(names[path], split)]
    if found and not files:
        there = ", ".join(list(names.values())[:6])
        raise InputError(
            f"{folder}: no file of split {split!r}; there are: {there}; name one with `split`"
        )
    return chain.from_iterable(map(read_file, files)) if files else None


def _names(path: str, word: str) -> bool:
    return bool(re.search(rf"(?<![a-zA-Z]){re.escape(word)}(?![a-zA-Z])", path))


def read_dataset(name: str, *, subset: str, split: str, streaming: bool) -> Iterator[Row | Problem]:
    """Rows of a hub data set, or of a folder that `datasets` saved. No code of the set runs.

    Raises:
        InputError: it cannot be opened, or its columns hold what `datasets` cannot type.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetsError
    except ModuleNotFoundError:
        raise InputError(f"{name}: needs datasets: pip install 'scalerl[data]'") from None
    try:
        if is_saved(Path(name)):
            opened: Any = datasets.load_from_disk(name)
            rows = opened[split] if isinstance(opened, Mapping) else opened
        else:
            rows = datasets.load_dataset(name, subset or None, split=split, streaming=streaming)
    except (OSError, ValueError, KeyError, RuntimeError, DatasetsError) as error:
        raise InputError(f"{name}: cannot be opened (split {split!r}): {error}") from None
    number = 0
    try:
        for number, fields in enumerate(rows, start=1):
            yield Row(file=name, line=number, fields=fields)
    except (DatasetsError, ValueError, TypeError) as error:
        raise InputError(
            f"{name}: unreadable after row {number} ({error}): download its files and give their "
            "folder, which is read without typing columns"
        ) from None


def is_saved(folder: Path) -> bool:
    """Whether `datasets` has saved a set there."""
    return folder.is_dir() and any(folder.rglob("dataset_info.json"))


def text_faults(text: str) -> str | None:
    """What in a text looks like a wrong encoding."""
    if "\ufffd" in text:
        return "the sign � stands where a character was lost: convert the file from its encoding"
    if found := _MOJIBAKE.search(text):
        return f"{found[0]!r} looks like UTF-8 read as Latin-1: convert the file"
    if found := _CONTROL.search(text):
        return f"a control character ({found[0]!r}): remove it"
    return None


def _fault(path: Path, line: int, kind: str, text: str) -> Problem:
    return Problem(file=str(path), line=line, level="error", kind=kind, text=text)
