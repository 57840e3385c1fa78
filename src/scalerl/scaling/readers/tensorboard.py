"""TensorBoard event files, read without TensorBoard: length-framed records of protobuf messages.

Only scalars are taken: `simple_value` of the first summaries and the scalar tensors of later ones.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from scalerl.errors import InputError
from scalerl.scaling.readers.table import Cell, Table

FLOAT, DOUBLE = 1, 2
"""TensorProto data types of scalars."""


def event_runs(folder: Path) -> list[tuple[str, list[Path]]]:
    """(run name, its event files in order of start) for each folder below that holds some."""
    groups: dict[Path, list[Path]] = {}
    for file in sorted(folder.rglob("*tfevents*")):
        if file.is_file():
            groups.setdefault(file.parent, []).append(file)
    return [
        (
            folder.resolve().name if parent == folder else str(parent.relative_to(folder)),
            sorted(files, key=_started),
        )
        for parent, files in groups.items()
    ]


def _started(file: Path) -> tuple[float, str]:
    """Wall time of the first event, then the name: the order in which files were begun."""
    for wall_time, _, _ in _events(file):
        return wall_time, file.name
    return 0.0, file.name


def read_events(files: list[Path]) -> Table:
    """Scalars by step, one column a tag. After a resume the later file wins, tag by tag.

    Files that share a tag are parts of one run: from the first step at which the later one has a
    shared tag, it replaces the tags that it has. A file of other tags (an evaluator's beside a
    trainer's) replaces nothing. Errors: InputError when no file holds a scalar.
    """
    rows: dict[int, dict[str, Cell]] = {}
    notes: list[str] = []
    for file in files:
        events = [(s, tag, v) for _, s, values in _events(file) for tag, v in values.items()]
        known = {tag for row in rows.values() for tag in row}
        mine = {tag for _, tag, _ in events}
        first = min((step for step, tag, _ in events if tag in known), default=None)
        if first is not None:
            replaced = [s for s, row in rows.items() if s >= first and not mine.isdisjoint(row)]
            for step in replaced:
                rows[step] = {tag: v for tag, v in rows[step].items() if tag not in mine}
            if replaced:
                notes.append(
                    f"{len(replaced)} steps from {min(replaced)} on are taken from the later file "
                    f"{file.name}"
                )
        again: dict[int, None] = {}
        for step, tag, value in events:
            row = rows.setdefault(step, {})
            if row.get(tag, value) != value:
                again[step] = None
            row[tag] = value
        if again:
            notes.append(
                f"{len(again)} steps of {file.name} are logged again and the last counts: step "
                f"{next(iter(again))} first"
            )
    if not rows:
        raise InputError(f"{files[0].parent}: the TensorBoard files hold no scalars")
    steps = sorted(s for s, row in rows.items() if row)
    tags = list(dict.fromkeys(tag for step in steps for tag in rows[step]))
    columns: dict[str, list[Cell]] = {tag: [rows[s].get(tag) for s in steps] for tag in tags}
    columns.setdefault("step", [float(s) for s in steps])
    return Table(
        source=str(files[0].parent),
        columns=columns,
        lines=steps,
        notes=tuple(notes),
        row_word="step",
    )


def _events(file: Path) -> Iterator[tuple[float, int, dict[str, float]]]:
    """(wall time, step, scalars by tag) of each record; a record cut off at the end is left out."""
    data = file.read_bytes()
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        start = at + 12
        if length > len(data) - start - 4:
            return
        wall_time, step, scalars = 0.0, 0, dict[str, float]()
        for field, value in _fields(data[start : start + length], file):
            if field == 1 and isinstance(value, bytes):
                wall_time = _float("<d", value, file)
            elif field == 2 and isinstance(value, int):
                step = value
            elif field == 5 and isinstance(value, bytes):
                scalars.update(_summary(value, file))
        yield wall_time, step, scalars
        at = start + length + 4


def _float(form: str, value: bytes, file: Path) -> float:
    if len(value) != struct.calcsize(form):
        raise InputError(f"{file}: not a TensorBoard event file (a number of {len(value)} bytes)")
    return struct.unpack(form, value)[0]


def _summary(message: bytes, file: Path) -> dict[str, float]:
    """Scalars of a Summary by tag."""
    out: dict[str, float] = {}
    for field, value in _fields(message, file):
        if field != 1 or not isinstance(value, bytes):
            continue
        tag, number = "", None
        for inner, content in _fields(value, file):
            if inner == 1 and isinstance(content, bytes):
                tag = content.decode("utf-8", "replace")
            elif inner == 2 and isinstance(content, bytes):
                number = _float("<f", content, file)
            elif inner == 8 and isinstance(content, bytes):
                number = _scalar_tensor(content, file)
        if tag and number is not None:
            out[tag] = float(number)
    return out


def _scalar_tensor(message: bytes, file: Path) -> float | None:
    """The number of a TensorProto of one float or double, else None."""
    kind, packed, content = 0, b"", b""
    for field, value in _fields(message, file):
        if field == 1 and isinstance(value, int):
            kind = value
        elif isinstance(value, bytes) and field in (5, 6):
            packed = value
        elif isinstance(value, bytes) and field == 4:
            content = value
    raw = content or packed
    if kind == FLOAT and len(raw) == 4:
        return struct.unpack("<f", raw)[0]
    if kind == DOUBLE and len(raw) == 8:
        return struct.unpack("<d", raw)[0]
    return None


def _fields(message: bytes, file: Path) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a protobuf message: varints as int, the rest as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at, file)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at, file)
            yield field, value
            continue
        if wire == 2:
            size, at = _varint(message, at, file)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise InputError(f"{file}: not a TensorBoard event file (wire type {wire})")
        if at + size > len(message):
            raise InputError(f"{file}: not a TensorBoard event file (field beyond its record)")
        yield field, message[at : at + size]
        at += size


def _varint(message: bytes, at: int, file: Path) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
    raise InputError(f"{file}: not a TensorBoard event file (bad number)")
