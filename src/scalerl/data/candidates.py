"""Rows of one source as candidate prompts, checked one by one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scalerl.config.tasks import Source
from scalerl.data.columns import SHAPES, Columns, shape
from scalerl.data.golds import after_hashes, gold_answers
from scalerl.data.overlap import content_id
from scalerl.data.problems import Level, Problem
from scalerl.data.records import Row, is_saved, read_dataset, read_file, read_folder, text_faults
from scalerl.data.template import Tokenizer, messages_of, template_ids, text_of
from scalerl.errors import InputError
from scalerl.messages import Prompt

T = TypeVar("T")

SOLUTION = "solution"  # field of a code row with a program that the embedded model may be shown
HUB = "hub:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prompt with where it came from."""

    prompt: Prompt
    golds: tuple[str, ...]
    file: str
    line: int
    path: str  # of the source
    reward: str
    threshold: float
    use: str
    detail: dict[str, Any]  # what its reward needs beside the first gold answer
    compared: bool = True  # near overlap is looked for; generated prompts are all alike

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    def problem(self, level: Level, kind: str, text: str) -> Problem:
        return Problem(file=self.file, line=self.line, level=level, kind=kind, text=text)


def open_rows(source: Source) -> Iterator[Row | Problem]:
    """The raw rows of a file or data set, as far as `limit`."""
    columns = _columns(source)
    path = Path(source.path)
    subset, split = source.subset or columns.subset, source.split or columns.split
    rows: Iterator[Row | Problem] | None = None
    if path.is_dir() and not is_saved(path):
        rows = read_folder(path, subset=subset, split=split)
    if rows is None and (source.path.startswith(HUB) or path.is_dir()):
        name = source.path.removeprefix(HUB)
        rows = read_dataset(name, subset=subset, split=split, streaming=source.streaming)
    if rows is None and source.path in SHAPES and columns.hub:
        rows = read_dataset(columns.hub, subset=subset, split=split, streaming=source.streaming)
    return itertools.islice(rows or read_file(path), source.limit or None)


def _columns(source: Source) -> Columns:
    return shape(source.columns or (source.path if source.path in SHAPES else "plain"))


def read_rows(source: Source, tokenizer: Tokenizer) -> Iterator[Candidate | Problem]:
    columns = _columns(source)
    for row in open_rows(source):
        if isinstance(row, Problem):
            yield row
            continue
        prompt, no_prompt = _checked(messages_of_row, row, source, columns, "bad prompt")
        golds, no_answer = _checked(_golds, row, source, columns, "bad answer")
        yield from (*no_prompt, *no_answer)
        if prompt is None or golds is None:
            continue
        if fault := text_faults(text_of(prompt) + "\n" + "\n".join(golds)):
            yield row_problem(row, "warning", "encoding", fault)
        yield make_candidate(row, source, columns, prompt, golds, tokenizer)


def _checked(
    read: Callable[[Row, Source, Columns], T], row: Row, source: Source, columns: Columns, kind: str
) -> tuple[T | None, list[Problem]]:
    try:
        return read(row, source, columns), []
    except InputError as error:
        return None, [row_problem(row, "error", kind, str(error))]


def messages_of_row(row: Row, source: Source, columns: Columns) -> list[dict[str, str]]:
    messages = messages_of(_field(row, source.prompt or columns.prompt))
    starter = row.fields.get(columns.starter) if columns.starter else None
    added = "\n".join(text for text in (starter, source.suffix) if isinstance(text, str) and text)
    if added:
        *before, last = messages
        messages = [*before, {**last, "content": f"{last['content']}\n{added}"}]
    return messages


def _golds(row: Row, source: Source, columns: Columns) -> tuple[str, ...]:
    value = _field(row, source.answer or columns.answer)
    if columns.hashes and not source.answer:
        value = after_hashes(value)
    if columns.beside and not source.answer:
        parts = {path: _field(row, path) for path in (columns.answer, *columns.beside)}
        value = json.dumps(parts, ensure_ascii=False)
    return gold_answers(value)


def _field(row: Row, path: str) -> Any:
    value: Any = row.fields
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            there = ", ".join(map(str, row.fields)) or "none"
            raise InputError(f"no field {path!r}; there are: {there}; name the right one")
        value = value[name]
    return value


def make_candidate(
    row: Row,
    source: Source,
    columns: Columns,
    messages: list[dict[str, str]],
    golds: tuple[str, ...],
    tokenizer: Tokenizer,
) -> Candidate | Problem:
    text = text_of(messages)
    try:
        ids = template_ids(messages, tokenizer)
    except Exception as error:  # noqa: BLE001 any kind, by tokenizer; named below
        fault = f"cannot be encoded ({error}): choose a tokenizer that knows its characters"
        return row_problem(row, "error", "bad prompt", fault)
    reward = source.reward or columns.reward
    detail: dict[str, Any] = {}
    answer, *others = golds
    if others:
        detail = {"golds": list(golds)}
    if reward == "code":  # megabytes of tests do not travel with every message
        detail, answer = {"tests": answer}, f"tests {content_id(answer)[:12]}"
        if isinstance(row.fields.get(SOLUTION), str):
            detail[SOLUTION] = row.fields[SOLUTION]
    prompt = Prompt(
        id=content_id(text),
        text=text,
        token_ids=ids,
        answer=answer,
        task=source.task or source.columns or _stem(source.path),
    )
    return Candidate(
        prompt=prompt,
        golds=golds,
        file=row.file,
        line=row.line,
        path=source.path,
        reward=reward,
        threshold=source.threshold,
        use=source.use,
        detail=detail,
    )


def _stem(path: str) -> str:
    return Path(path.removeprefix(HUB)).stem


def row_problem(row: Row, level: Level, kind: str, text: str) -> Problem:
    return Problem(file=row.file, line=row.line, level=level, kind=kind, text=text)
