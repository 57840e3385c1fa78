"""Traces for the supervised stage: chat files in, prompts and answers as token ids out, filtered.

    rows ─ messages, or prompt and answer ─▶ chat template ─▶ filters ─▶ training | held out
                                                  └ what left, by reason, in numbers

Filters (paper A.3): prompts that are trivial, traces over a length, prompts that a benchmark has,
exactly or nearly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scalerl.data.overlap import content_id, decontaminated, is_heldout
from scalerl.data.problems import Problem, report
from scalerl.data.records import Row, read_file
from scalerl.data.template import Tokenizer, messages_of, template_ids, text_of
from scalerl.errors import InputError

ANSWERS = ("answer", "response", "completion", "trace")
PASS_RATE = "pass_rate"  # field of a row: how often a model solves its prompt, 0 to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTrace:
    """A prompt and the answer to learn, which ends with the end of text."""

    text: str  # of the prompt
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Traces ready to train on, and how many rows left for which reason."""

    training: list[ChatTrace]
    heldout: list[ChatTrace]
    removed: dict[str, int] = field(default_factory=dict)


def load_traces(
    path: Path,
    tokenizer: Any,
    *,
    max_tokens: int,
    trivial_pass_rate: float,
    heldout_share: float,
    against: Sequence[Path] = (),
) -> Traces:
    """Read, filter and split a file of traces.

    Args:
        max_tokens: a longer trace, prompt included, leaves.
        trivial_pass_rate: a row whose `pass_rate` is at least this leaves; one without stays.
        against: files of prompts that must not be trained on.

    Raises:
        InputError: unreadable rows, all of them listed; or nothing is left on a side.
    """
    removed: Counter[str] = Counter()
    kept: list[ChatTrace] = []
    problems: list[Problem] = []
    for row in read_file(path):
        if isinstance(row, Problem):
            problems.append(row)
            continue
        try:
            trace = _trace(row.fields, tokenizer)
            rate = _pass_rate(row.fields)
        except InputError as error:
            problems.append(_problem(row, str(error)))
            continue
        if rate is not None and rate >= trivial_pass_rate:
            removed["trivial"] += 1
        elif len(trace.prompt_ids) + len(trace.answer_ids) > max_tokens:
            removed["too long"] += 1
        else:
            kept.append(trace)
    if any(p.level == "error" for p in problems):
        raise InputError(report(problems))
    benchmarks = {str(file): _prompt_texts(file) for file in against}
    clean, overlapping = decontaminated([t.text for t in kept], benchmarks)
    if overlapping:
        removed["in a benchmark"] = len(overlapping)
    sides: tuple[list[ChatTrace], list[ChatTrace]] = ([], [])
    for index in clean:  # all traces of a prompt on one side
        sides[is_heldout(content_id(kept[index].text), heldout_share)].append(kept[index])
    for name, side in zip(("train on", "evaluate on"), sides, strict=True):
        if not side:
            raise InputError(
                f"{path}: nothing is left to {name} of {len(kept) + sum(removed.values())} rows "
                f"(removed: {dict(removed)}); see sft.max_tokens, sft.heldout_share"
            )
    return Traces(training=sides[0], heldout=sides[1], removed=dict(removed))


def _trace(fields: Mapping[str, Any], tokenizer: Any) -> ChatTrace:
    messages, answer = _conversation(fields)
    prompt_ids = template_ids(messages, tokenizer)
    end = tokenizer.eos_token_id
    if getattr(tokenizer, "chat_template", None):
        whole = template_ids_of_all(
            [*messages, {"role": "assistant", "content": answer}], tokenizer
        )
        if whole[: len(prompt_ids)] != prompt_ids:
            raise InputError("the chat template writes the prompt otherwise before an answer")
        answer_ids = whole[len(prompt_ids) :]
        if end in answer_ids:  # a template may write a line break after the end
            answer_ids = answer_ids[: len(answer_ids) - answer_ids[::-1].index(end)]
        else:
            answer_ids = (*answer_ids, end)
    else:
        answer_ids = (*tokenizer.encode(answer, add_special_tokens=False), end)
    return ChatTrace(text=text_of(messages), prompt_ids=prompt_ids, answer_ids=tuple(answer_ids))


def template_ids_of_all(
    messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer
) -> tuple[int, ...]:
    """A finished conversation under the chat template, with one beginning of text."""
    ids = tokenizer.apply_chat_template(
        [dict(m) for m in messages], add_generation_prompt=False, tokenize=True, return_dict=False
    )
    ids = [int(i) for i in ids]
    bos = tokenizer.bos_token_id
    while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
        del ids[0]
    return tuple(ids)


def _conversation(fields: Mapping[str, Any]) -> tuple[list[dict[str, str]], str]:
    """What comes before the answer, and the answer: the last message of an assistant."""
    if fields.get("messages") is not None:
        *before, last = list(fields["messages"]) or [None]
        if not before or not isinstance(last, Mapping) or last.get("role") != "assistant":
            raise InputError("messages must end with one of the assistant, after a prompt")
        return messages_of(before), _text(last.get("content"))
    if "prompt" not in fields:
        raise InputError("a row needs `messages`, or `prompt` and one of " + ", ".join(ANSWERS))
    found = next((fields[name] for name in ANSWERS if fields.get(name) is not None), None)
    return messages_of(fields["prompt"]), _text(found)


def _text(answer: Any) -> str:
    if not isinstance(answer, str) or not answer.strip():
        raise InputError("no answer to learn from: remove the row")
    return answer


def _pass_rate(fields: Mapping[str, Any]) -> float | None:
    rate = fields.get(PASS_RATE)
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise InputError(f"{PASS_RATE} = {rate!r}: give a number from 0 to 1, or leave it out")
    return float(rate)


def _prompt_texts(path: Path) -> list[str]:
    """The prompts of a benchmark: field `prompt`, `problem`, `question` or `messages`."""
    texts: list[str] = []
    for row in read_file(path):
        if isinstance(row, Problem):
            raise InputError(str(row))
        names = ("prompt", "problem", "question", "messages")
        value = next((row.fields[n] for n in names if row.fields.get(n) is not None), None)
        texts.append(text_of(messages_of(value)))
    return texts


def _problem(row: Row, text: str) -> Problem:
    return Problem(file=row.file, line=row.line, level="error", kind="no trace", text=text)
