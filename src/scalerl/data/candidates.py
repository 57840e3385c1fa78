"""Rows of one source as candidate prompts, checked one by one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from scalerl.config.schema import Source
from scalerl.data.chain import TASK, make_chain_prompts
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
HUB, GYM, CHAIN = "hub:", "reasoning_gym:", "chain"


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


def read_source(
    source: Source, tokenizer: Tokenizer, max_prompt_tokens: int
) -> Iterator[Candidate | Problem]:
    """Candidates and problems of a source, in its own order.

    Raises:
        InputError: the source as a whole cannot be read.
    """
    if source.path.partition("?")[0] == CHAIN:
        found: Iterator[Candidate | Problem] = _chain(source, tokenizer)
    elif source.path.startswith(GYM):
        found = _reasoning_gym(source, tokenizer)
    else:
        found = _rows(source, tokenizer)
    for item in found:
        if isinstance(item, Candidate) and len(item.prompt.token_ids) > max_prompt_tokens:
            text = (
                f"{len(item.prompt.token_ids)} tokens with the chat template, the limit is "
                f"{max_prompt_tokens}: remove it or raise data.max_prompt_tokens (a question is "
                "never cut: without its end it is another)"
            )
            yield item.problem("error", "prompt too long", text)
        else:
            yield item


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


def _rows(source: Source, tokenizer: Tokenizer) -> Iterator[Candidate | Problem]:
    columns = _columns(source)
    for row in open_rows(source):
        if isinstance(row, Problem):
            yield row
            continue
        prompt, no_prompt = _checked(_messages, row, source, columns, "bad prompt")
        golds, no_answer = _checked(_golds, row, source, columns, "bad answer")
        yield from (*no_prompt, *no_answer)
        if prompt is None or golds is None:
            continue
        if fault := text_faults(text_of(prompt) + "\n" + "\n".join(golds)):
            yield _problem(row, "warning", "encoding", fault)
        yield _candidate(row, source, columns, prompt, golds, tokenizer)


def _checked(
    read: Callable[[Row, Source, Columns], T], row: Row, source: Source, columns: Columns, kind: str
) -> tuple[T | None, list[Problem]]:
    try:
        return read(row, source, columns), []
    except InputError as error:
        return None, [_problem(row, "error", kind, str(error))]


def _messages(row: Row, source: Source, columns: Columns) -> list[dict[str, str]]:
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


def _candidate(
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
    except Exception as error:  # noqa: BLE001 tokenizers raise their own kinds on unknown text
        fault = f"cannot be encoded ({error}): choose a tokenizer that knows its characters"
        return _problem(row, "error", "bad prompt", fault)
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


def _chain(source: Source, tokenizer: Tokenizer) -> Iterator[Candidate]:
    """The embedded task; its held-out prompts are drawn first, whatever `heldout_share` is."""
    settings = {"train": 2000, "heldout": 256, "seed": 0, "max_operations": 6, **_query(source)}
    sides = make_chain_prompts(
        train=int(settings["train"]),
        heldout=int(settings["heldout"]),
        seed=int(settings["seed"]),
        encode=tokenizer.encode,
        operations=(1, int(settings["max_operations"])),
    )
    for use, prompts in zip(("train", "heldout"), sides, strict=True):
        for line, prompt in enumerate(prompts, start=1):
            yield _generated(source, prompt, line, source.task or TASK, use, "exact", {})


def _reasoning_gym(source: Source, tokenizer: Tokenizer) -> Iterator[Candidate | Problem]:
    name = source.path.removeprefix(GYM).partition("?")[0]
    settings = {"size": 200, "seed": 0, **_query(source)}
    try:
        import reasoning_gym
    except ModuleNotFoundError:
        raise InputError(
            f"{source.path}: needs reasoning-gym: pip install 'scalerl[environments]'"
        ) from None
    try:
        entries = reasoning_gym.create_dataset(name, **settings)
    except (ValueError, TypeError, AssertionError) as error:
        raise InputError(f"{source.path}: reasoning-gym refuses: {error}") from None
    columns = Columns(prompt="question", answer="answer", reward="exact")
    for index, entry in enumerate(itertools.islice(entries, int(settings["size"]))):
        row = Row(file=source.path, line=index + 1, fields=entry)
        try:
            messages = _messages(row, source, columns)
            golds = gold_answers(entry["answer"])
        except InputError as error:
            yield _problem(row, "error", "bad entry", str(error))
            continue
        made = _candidate(row, source, columns, messages, golds, tokenizer)
        if isinstance(made, Problem):
            yield made
            continue
        detail = {"dataset": name, "settings": settings, "index": index}
        task = source.task or name
        yield _generated(
            source, made.prompt, index + 1, task, source.use, source.reward or GYM[:-1], detail
        )


def _generated(
    source: Source,
    prompt: Prompt,
    line: int,
    task: str,
    use: str,
    reward: str,
    detail: dict[str, Any],
) -> Candidate:
    return Candidate(
        prompt=Prompt(
            id=prompt.id,
            text=prompt.text,
            token_ids=prompt.token_ids,
            answer=prompt.answer,
            task=task,
        ),
        golds=(prompt.answer,),
        file=source.path,
        line=line,
        path=source.path,
        reward=reward,
        threshold=source.threshold,
        use=use,
        detail=detail,
        compared=False,
    )


def _query(source: Source) -> dict[str, Any]:
    """`?size=200&seed=1&name=text` as numbers, true or false, and text."""
    settings: dict[str, Any] = {}
    for key, text in parse_qsl(source.path.partition("?")[2], keep_blank_values=True):
        settings[key] = _value(text)
    return settings


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _stem(path: str) -> str:
    return Path(path.removeprefix(HUB)).stem


def _problem(row: Row, level: Level, kind: str, text: str) -> Problem:
    return Problem(file=row.file, line=row.line, level=level, kind=kind, text=text)
