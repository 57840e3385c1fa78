"""Gold answers as text: 12.0 is 12, several are alternatives, and a null never becomes "None"."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from scalerl.errors import InputError

NULLS = frozenset(["none", "null", "nan", "na", "n/a", "undefined", "<na>"])
_FINAL = re.compile(r"####\s*(.+?)\s*$")


def gold_answers(value: Any) -> tuple[str, ...]:
    """The right answers a field states; of several any is right.

    Numbers are written shortly (12.0 → 12, 033 stays text), text is stripped.

    Raises:
        InputError: null, empty, true or false, not a number, a mapping, or text that a null became;
            the message says what to do.
    """
    if isinstance(value, list | tuple):
        if not value:
            raise InputError("an empty list of answers: remove the row or write an answer")
        return tuple(dict.fromkeys(gold for item in value for gold in _one(item)))
    return _one(value)


def _one(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            raise InputError("no answer (null): remove the row or write an answer")
        case bool():
            raise InputError(f"{value} is no answer: write it as text if it is meant")
        case int():
            return (str(value),)
        case float():
            if not math.isfinite(value):
                raise InputError(f"{value} is no answer: a null has become a number; write it")
            return (str(int(value)) if value.is_integer() else repr(value),)
        case str():
            text = value.strip()
            if not text:
                raise InputError("an empty answer: remove the row or write an answer")
            if text.casefold() in NULLS:
                raise InputError(f"the text {text!r} is a null that became text: write the answer")
            return (text,)
        case Mapping() | list() | tuple():
            raise InputError(
                f"a {type(value).__name__} where an answer is expected: name its field"
            )
        case _:
            return _one(str(value)) if hasattr(value, "as_tuple") else _unknown(value)


def _unknown(value: Any) -> tuple[str, ...]:
    raise InputError(f"a {type(value).__name__} is no answer: write it as text or number")


def after_hashes(value: Any) -> Any:
    """GSM8K's final answer, behind ####, without thousands separators.

    Raises:
        InputError: there is none.
    """
    if not isinstance(value, str):
        return value
    found = _FINAL.search(value.strip())
    if not found:
        raise InputError("no '#### answer' at its end: write it, or name another answer column")
    return found[1].replace(",", "")
