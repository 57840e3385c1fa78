"""Prompts that are made rather than read: the embedded task, and reasoning-gym's data sets."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

from scalerl.config.tasks import Source
from scalerl.data.candidates import Candidate, make_candidate, messages_of_row, row_problem
from scalerl.data.chain import TASK, make_chain_prompts
from scalerl.data.columns import Columns
from scalerl.data.golds import gold_answers
from scalerl.data.problems import Problem
from scalerl.data.records import Row
from scalerl.data.template import Tokenizer
from scalerl.errors import InputError
from scalerl.messages import Prompt

CHAIN, GYM = "chain", "reasoning_gym:"


def read_chain(source: Source, tokenizer: Tokenizer) -> Iterator[Candidate]:
    """The embedded task; its held-out prompts are drawn first, whatever `heldout_share` is."""
    settings = {
        "train": 2000,
        "heldout": 256,
        "seed": 0,
        "max_operations": 6,
        **query_settings(source.path),
    }
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


def read_reasoning_gym(source: Source, tokenizer: Tokenizer) -> Iterator[Candidate | Problem]:
    name = source.path.removeprefix(GYM).partition("?")[0]
    settings = {"size": 200, "seed": 0, **query_settings(source.path)}
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
            messages = messages_of_row(row, source, columns)
            golds = gold_answers(entry["answer"])
        except InputError as error:
            yield row_problem(row, "error", "bad entry", str(error))
            continue
        made = make_candidate(row, source, columns, messages, golds, tokenizer)
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


def query_settings(path: str) -> dict[str, Any]:
    """`?size=200&seed=1&name=text` as numbers, true or false, and text."""
    settings: dict[str, Any] = {}
    for key, text in parse_qsl(path.partition("?")[2], keep_blank_values=True):
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
