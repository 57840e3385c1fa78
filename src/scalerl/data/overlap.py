"""Prompts that are the same, or nearly: identity, held-out split, contamination.

The identity of a prompt is a hash of its text without spacing and LaTeX's decoration, so a
copy that was reformatted is the same prompt. Nearly the same: most runs of `N` words occur in one
other prompt, where numbers count as alike and several in a row as one. Where nothing but numbers
differs, the overlap says so: a copy with changed numbers, or just another prompt of a template.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

N = 6  # words of a run
SHARE = 0.6  # of its runs that a prompt must share with one other
COMMON = 200  # prompts with a run, beyond which it tells nothing

_SPACING = re.compile(
    r"(?<!\\)\\(?:(?:quad|qquad|enspace|enskip|thickspace|medspace|space)(?![a-zA-Z])"
    r"|hspace\*?\{[^{}]*\}|[;:>\s])|~"
)
_NOTHING = re.compile(
    r"(?<!\\)\\(?:(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|thinspace|negthinspace)"
    r"(?![a-zA-Z])|[,!()\[\]])|\$"
)
_SINGLE = re.compile(r"\{(.)\}")  # \frac{1}{2} is \frac12
_APART = re.compile(r"(?<=\d)[\s{}]+(?=\d)")  # 1 23 is not 12 3, nor 1/23 12/3
_BRACES = re.compile(r"[\s{}]")
_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*")


def plain(text: str) -> str:
    """The text that decides whether two prompts are the same."""
    return _BRACES.sub("", _APART.sub("\0", _SINGLE.sub(r"\1", undecorated(text))))


def undecorated(text: str) -> str:
    """The text with plain spaces for LaTeX's and without signs that change only its looks."""
    text = re.sub(r"\\[dt]frac(?![a-zA-Z])", r"\\frac", text)
    return _NOTHING.sub("", _SPACING.sub(" ", text))


def content_id(text: str) -> str:
    """The identity of a prompt, whichever file and row it stands in."""
    return blake2b(plain(text).encode("utf-8", "replace"), digest_size=16).hexdigest()


def is_heldout(prompt_id: str, share: float) -> bool:
    """Whether a prompt belongs to the held-out ones: its identity alone decides, so adding rows
    moves no prompt from one side to the other, and copies are always on the same side."""
    return int(prompt_id[:16], 16) < share * 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A text that is also, or nearly, among others."""

    index: int  # of the text
    other: int  # of the one it equals
    kind: Literal["exact", "near"]
    shared: float  # share of its runs of words that the other has
    numbers_only: bool = False  # near, and every word that is no number is the same


def overlaps(texts: Sequence[str], others: Sequence[str], *, near: bool = True) -> list[Overlap]:
    """For each text that is among the others: which, and how alike. Exact goes before near."""
    exact = {content_id(other): i for i, other in reversed(list(enumerate(others)))}
    index: dict[int, list[int]] = defaultdict(list)
    if near:
        for i, other in enumerate(others):
            for run in _runs(other):
                index[run].append(i)
    found: list[Overlap] = []
    for i, text in enumerate(texts):
        other = exact.get(content_id(text))
        if other is not None:
            found.append(Overlap(index=i, other=other, kind="exact", shared=1.0))
        elif near and (best := _nearest(_runs(text), index)):
            other, shared = best
            alike = _words(text) == _words(others[other])
            found.append(
                Overlap(index=i, other=other, kind="near", shared=shared, numbers_only=alike)
            )
    return found


def decontaminated(
    texts: Sequence[str], against: Mapping[str, Sequence[str]]
) -> tuple[list[int], list[tuple[int, str, Overlap]]]:
    """Which texts to keep, and which to leave out because a benchmark has them, exactly or nearly.

    Args:
        against: texts of each benchmark by name, such as AIME-24 and MATH-500.

    Returns:
        Indices kept, and (index, benchmark, overlap) of those to remove.
    """
    removed: dict[int, tuple[int, str, Overlap]] = {}
    for name, others in against.items():
        for overlap in overlaps(texts, others):
            removed.setdefault(overlap.index, (overlap.index, name, overlap))
    return [i for i in range(len(texts)) if i not in removed], list(removed.values())


def _words(text: str) -> list[str]:
    """The words, with one sign for each number or row of numbers."""
    words = ["#" if w[0].isdigit() else w.casefold() for w in _WORD.findall(undecorated(text))]
    return [w for i, w in enumerate(words) if w != "#" or not i or words[i - 1] != "#"]


def _runs(text: str) -> frozenset[int]:
    words = _words(text)
    if len(words) < N:
        return frozenset([hash(tuple(words))]) if len(words) >= N // 2 else frozenset()
    return frozenset(hash(tuple(words[i : i + N])) for i in range(len(words) - N + 1))


def _nearest(runs: Iterable[int], index: Mapping[int, list[int]]) -> tuple[int, float] | None:
    runs = list(runs)
    votes: Counter[int] = Counter()
    for run in runs:
        holders = index.get(run, ())
        if len(holders) <= COMMON:
            votes.update(holders)
    if not votes:
        return None
    other, count = max(votes.items(), key=lambda item: (item[1], -item[0]))
    shared = count / len(runs)
    return (other, shared) if shared >= SHARE else None
