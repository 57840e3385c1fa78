r"""Where a completion states its final answer.

    strict    after the thinking: the last \boxed{…}, else the last <answer>…</answer>,
              else the last line that begins with "Answer:"
    lenient   strict, else the last number or formula of the solution

Text that is still thinking has no answer. Naming a number anywhere else earns nothing in strict
mode: a policy finds such a hole at once.
"""

from __future__ import annotations

import re
from typing import Literal

Mode = Literal["strict", "lenient"]

THINK, THINK_END = "<think>", "</think>"
LONGEST = 4000  # characters of an answer worth looking at; a longer one is no answer

_ANSWER_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_ANSWER_LINE = re.compile(
    r"^[ \t>#*_-]{0,8}(?:the )?(?:final )?answer[*_ ]{0,4}[::][*_]{0,4}[ \t]*(\S[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_BARE_BOX = re.compile(r"[0-9A-Za-z.][0-9A-Za-z./]*|\\[a-zA-Z]+")
_FORMULA = re.compile(r"\$([^$\n]{1,200})\$")
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?")


def solution_part(text: str, *, thinking_open: bool = False) -> str | None:
    """What follows the thinking, or None where the thinking never ends.

    Args:
        thinking_open: the prompt's template has opened the thinking, so that the completion begins
            inside it.
    """
    _, ended, after = text.rpartition(THINK_END)
    if ended:
        return None if THINK in after else after
    return None if thinking_open or THINK in text else text


def final_answer(text: str, *, mode: Mode = "strict", thinking_open: bool = False) -> str | None:
    r"""The stated answer, stripped, or None.

    The last box is the answer, whatever was boxed before: boxes are never joined, and a last box
    that never closes (a cut completion) is no answer rather than the box before it.
    """
    solution = solution_part(text, thinking_open=thinking_open)
    if solution is None:
        return None
    found = _last_box(solution)
    if found is None:
        tags = _ANSWER_TAG.findall(solution)
        found = tags[-1] if tags else None
    if found is None:
        lines = _ANSWER_LINE.findall(solution)
        found = lines[-1].rstrip("*_ \t") if lines else None
    if found is None and mode == "lenient":
        found = _last_mention(solution)
    if found is None or not found.strip() or len(found) > LONGEST:
        return None
    return found.strip()


def _last_box(text: str) -> str | None:
    """Contents of the last box; empty where it does not close; None where there is no box."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    last = boxes[-1]
    if text[last.end() : last.end() + 1] != "{":
        bare = _BARE_BOX.match(text, last.end())
        return bare.group().rstrip(".") if bare else ""
    depth, at = 0, last.end()
    while at < len(text):
        character = text[at]
        if character == "\\":
            at += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[last.end() + 1 : at]
        at += 1
    return ""


def _last_mention(text: str) -> str | None:
    formulas = list(_FORMULA.finditer(text))
    numbers = list(_NUMBER.finditer(text))
    if formulas and (not numbers or formulas[-1].end() >= numbers[-1].end()):
        return formulas[-1].group(1)
    return numbers[-1].group().rstrip(",") if numbers else None
