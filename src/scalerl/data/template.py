"""Chat messages as token ids: exactly what the generator is given, with one beginning of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from scalerl.data.golds import NULLS
from scalerl.errors import InputError

Messages = Sequence[Mapping[str, str]]

THINK = "<think>"


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that prompts need."""

    bos_token_id: Any
    chat_template: Any

    def encode(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Any) -> Any: ...
    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...


def messages_of(value: Any) -> list[dict[str, str]]:
    """A prompt field as chat messages; plain text is one message of the user.

    Raises:
        InputError: null, empty, or not messages; says what to do.
    """
    match value:
        case str() if value.strip().casefold() in NULLS:
            raise InputError(f"{value.strip()!r} is a null that became text: remove the row")
        case str() if value.strip():
            return [{"role": "user", "content": value.strip()}]
        case str():
            raise InputError("an empty prompt: remove the row")
        case None:
            raise InputError("no prompt (null): remove the row or write one")
        case [_, *_] if all(_is_message(item) for item in value):
            return [{"role": item["role"], "content": item["content"].strip()} for item in value]
        case _:
            raise InputError(
                f"a {type(value).__name__} is no prompt: give text, or a list of "
                '{"role", "content"} messages'
            )


def text_of(messages: Messages) -> str:
    """What a reader sees: the bare text of a single message, else each with its role."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


def template_ids(messages: Messages, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids under the model's chat template; without one the bare text is encoded.

    A second beginning-of-text token (the template writes one, the tokenizer adds one) is left out.
    """
    if getattr(tokenizer, "chat_template", None):
        ids = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
        )
    else:
        ids = tokenizer.encode(text_of(messages))
    ids = [int(i) for i in ids]
    bos = tokenizer.bos_token_id
    while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
        del ids[0]
    return tuple(ids)


def opens_thinking(tokenizer: Tokenizer) -> bool:
    """Whether the template ends inside the thinking, so that completions begin there."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    ids = template_ids([{"role": "user", "content": "x"}], tokenizer)
    return str(tokenizer.decode(list(ids))).rstrip().endswith(THINK)


def _is_message(item: Any) -> bool:
    return (
        isinstance(item, Mapping)
        and isinstance(item.get("role"), str)
        and isinstance(item.get("content"), str)
        and bool(item["content"].strip())
    )
