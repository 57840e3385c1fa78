"""Text files as columns of cells, each row with the line it came from."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from scalerl.errors import InputError

Cell = float | str | None
"""A number (NaN and infinity included), text, or nothing."""
THOUSANDS = re.compile(r"-?\d{1,3}([,.' \u00a0\u202f]\d{3})+(\.\d+)?")
"""1,500 and 1 500.25: a thousands separator, or a comma that might be one."""
DEEPEST = 40
"""Levels of nested keys that become columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of equal length, and the line or row number of each row."""

    source: str
    columns: dict[str, list[Cell]]
    lines: list[int]
    notes: tuple[str, ...] = ()
    row_word: str = "line"

    def where(self, i: int) -> str:
        """The place of row i for a message, such as `log.csv:12` or `runs.db, step 12`."""
        if self.row_word == "line":
            return f"{self.source}:{self.lines[i]}"
        return f"{self.source}, {self.row_word} {self.lines[i]}"

    def numeric(self, name: str) -> bool:
        """Whether a column has at least one finite number."""
        return any(isinstance(v, float) and math.isfinite(v) for v in self.columns[name])


def not_a_number(table: Table, column: str, i: int) -> str:
    """The message about text in row i of a column of numbers."""
    value = table.columns[column][i]
    advice = ""
    if isinstance(value, str) and THOUSANDS.fullmatch(value):
        advice = "; write thousands without a separator"
    elif isinstance(value, str) and re.fullmatch(r"-?\d+,\d+", value):
        advice = "; use a decimal point"
    return f"{table.where(i)}: column {column!r} has {value!r}, which is not a number{advice}"


def read_text(path: Path) -> str:
    """A file's text. Errors: InputError when it cannot be read or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a UTF-8 text file (byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def cell(text: str) -> Cell:
    """A CSV cell: empty is nothing, what parses as a number is one, the rest stays text."""
    text = text.strip()
    if not text:
        return None
    try:
        return float(text) if "_" not in text else text
    except ValueError:
        return text


def read_csv(path: Path, text: str | None = None) -> Table:
    """A CSV file with `,`, `;`, tab or spaces between cells; quoted cells may hold any of them.

    A file without a header gets the names `column 1`, `column 2`. Lines that start with `#` are
    skipped. Errors: InputError naming the line whose number of cells differs from the header's.
    """
    text = read_text(path) if text is None else text
    delimiter = _delimiter(text)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True, strict=True)
    header: list[str] | None = None
    rows: list[list[str]] = []
    lines: list[int] = []
    notes: list[str] = []
    try:
        for row in reader:
            if not any(c.strip() for c in row) or row[0].lstrip().startswith("#"):
                continue
            row = [c for c in row if c] if delimiter == " " else row
            if header is None:
                if all(isinstance(cell(c), float) for c in row):
                    header = [f"column {i + 1}" for i in range(len(row))]
                    notes.append("the file has no header; its columns are named by position")
                else:
                    header = _unique([c.strip() for c in row], path)
                    continue
            if len(row) != len(header):
                raise InputError(
                    f"{path}:{reader.line_num}: {len(row)} cells where the header has {len(header)}"
                )
            if [c.strip() for c in row] == header:
                notes.append(f"line {reader.line_num} repeats the header and was skipped")
                continue
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: {error}") from error
    if header is None or not rows:
        raise InputError(f"{path}: the file has no rows of data")
    columns = {name: [cell(row[i]) for row in rows] for i, name in enumerate(header)}
    return Table(source=str(path), columns=columns, lines=lines, notes=tuple(notes))


def _unique(header: list[str], path: Path) -> list[str]:
    named = [name or f"column {i + 1}" for i, name in enumerate(header)]
    for name in named:
        if named.count(name) > 1:
            raise InputError(f"{path}: the column {name!r} occurs {named.count(name)} times")
    return named


def _delimiter(text: str) -> str:
    first = next(
        (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")),
        "",
    )
    counts = {d: len(next(csv.reader([first], delimiter=d))) for d in (",", ";", "\t")}
    best = max(counts, key=lambda d: counts[d])
    return best if counts[best] > 1 or " " not in first.strip() else " "


def parse_json(text: str, place: str) -> Any:
    """JSON with every number a float, however long: beyond the range of floats it is infinite.

    Errors: InputError at `place` when it is nested too deeply; JSONDecodeError when it is no JSON.
    """
    try:
        return json.loads(text, parse_int=float)
    except RecursionError as error:
        raise InputError(f"{place}: the JSON is nested too deeply to be a log") from error


def read_jsonl(path: Path, text: str | None = None) -> Table:
    """One JSON object a line; nested keys joined by `/`. A torn last line is skipped and noted.

    Errors: InputError naming file:line for any other line that is not a JSON object.
    """
    text = read_text(path) if text is None else text
    records: list[dict[str, Any]] = []
    lines: list[int] = []
    notes: list[str] = []
    parts = text.split("\n")
    for number, line in enumerate(parts, start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line, f"{path}:{number}")
        except json.JSONDecodeError as error:
            if number == len(parts):  # no newline after it: the writer was cut off
                notes.append(f"line {number} is cut off and was skipped")
                continue
            raise InputError(
                f"{path}:{number}: not JSON ({error.msg} at column {error.colno})"
            ) from error
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: expected a JSON object, found {line.strip()[:40]}")
        records.append(cast(dict[str, Any], record))
        lines.append(number)
    if not records:
        raise InputError(f"{path}: the file has no rows of data")
    return Table(source=str(path), columns=columns_of(records), lines=lines, notes=tuple(notes))


def read_json(path: Path, text: str | None = None) -> Table:
    """A JSON file: a list of objects, an object of lists, or an object that holds one of these.

    Reads, for instance, the `log_history` of a Hugging Face trainer_state.json. Errors: InputError.
    """
    text = read_text(path) if text is None else text
    try:
        saved = parse_json(text, str(path))
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return read_jsonl(path, text)
        raise InputError(f"{path}:{error.lineno}: not JSON ({error.msg})") from error
    inner = list(cast(dict[str, Any], saved).values()) if isinstance(saved, dict) else []
    for found in [cast(Any, saved), *inner]:
        records = _records(found)
        if records:
            return Table(
                source=str(path),
                columns=columns_of(records),
                lines=list(range(1, len(records) + 1)),
                row_word="record",
            )
    raise InputError(f"{path}: neither a list of objects nor an object of equally long lists")


def _records(found: Any) -> list[dict[str, Any]]:
    if isinstance(found, list):
        rows = cast(list[Any], found)
        return cast(list[dict[str, Any]], rows) if all(isinstance(r, dict) for r in rows) else []
    if isinstance(found, dict):
        columns = cast(dict[str, Any], found)
        lists = [cast(list[Any], v) for v in columns.values() if isinstance(v, list)]
        if 1 < len(lists) == len(columns) and len({len(v) for v in lists}) == 1:
            return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
    return []


def columns_of(records: Iterable[dict[str, Any]]) -> dict[str, list[Cell]]:
    """Records as columns, nothing where a record lacks a key; lists and deep nests are left out."""
    flat = [dict(_flatten(record, "")) for record in records]
    names = list(dict.fromkeys(name for record in flat for name in record))
    return {name: [record.get(name) for record in flat] for name in names}


def _flatten(record: dict[str, Any], prefix: str) -> Iterable[tuple[str, Cell]]:
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and prefix.count("/") < DEEPEST:
            yield from _flatten(cast(dict[str, Any], value), f"{name}/")
        elif value is None or isinstance(value, str):
            yield name, cell(value) if isinstance(value, str) and name != "task" else value
        elif isinstance(value, bool):
            yield name, str(value)
        elif isinstance(value, (int, float)):
            yield name, float(value)
