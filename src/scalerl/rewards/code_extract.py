"""The program a completion answers with: its last closed Python block after the thinking.

The rule, line by line:

1. Strict (the default): only what follows the last ``</think>`` counts, and a text that never ends
   its thinking has no answer. Lenient, for models that do not think: a text without any think tag
   counts whole; one that opens a thinking part and never ends it has no answer either way.
2. A block opens with a line of at least three backticks or tildes, indented or not, and a language
   word. It closes with a line of at least as many of the same sign and nothing else. A block that
   never closes was cut off and is not an answer.
3. The last block named ``python``, ``py`` or ``python3`` (any case) wins. Only where no block is
   named so, the last block without a language wins. Blocks in other languages never count.
4. The opening line's indentation is taken off every line. An empty block is no answer.
"""

from __future__ import annotations

import re
from typing import Literal

from scalerl.rewards.exact import THINK_END

Mode = Literal["strict", "lenient"]

THINK = "<think>"
PYTHON = frozenset({"python", "py", "python3"})
_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*(\S*)[^\n]*$")


def extract_code(text: str, mode: Mode = "strict") -> str | None:
    """The program's source, or None where the text has no answer."""
    _, ended, solution = text.rpartition(THINK_END)
    if not ended and (mode == "strict" or THINK in text):
        return None
    named: str | None = None
    bare: str | None = None
    for language, source in _closed_blocks(solution):
        if language in PYTHON:
            named = source
        elif not language:
            bare = source
    source = bare if named is None else named
    return source if source is not None and source.strip() else None


def _closed_blocks(text: str) -> list[tuple[str, str]]:
    """(language, source) of every closed block, in order; a block inside a block is its text."""
    blocks: list[tuple[str, str]] = []
    opening: tuple[str, str, str] | None = None  # indentation, fence, language
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        match = _FENCE.match(line)
        if opening is None:
            if match and not (match[2][0] == "`" and "`" in line.strip().lstrip("`")):
                opening = (match[1], match[2], match[3].strip("{}.").lower())
                lines = []
        elif match and _closes(opening[1], line):
            blocks.append((opening[2], "\n".join(lines) + "\n"))
            opening = None
        else:
            lines.append(line.removeprefix(opening[0]))
    return blocks


def _closes(fence: str, line: str) -> bool:
    signs = line.strip()
    return len(signs) >= len(fence) and set(signs) == {fence[0]}
