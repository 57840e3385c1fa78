"""Prompts that are nearly those of an evaluation, as lines of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scalerl.data.candidates import Candidate
from scalerl.data.overlap import Overlap
from scalerl.data.problems import Problem

SHOWN = 3  # pairs named where many differ in numbers only


def near_problems(
    texts: Sequence[Candidate], others: Sequence[Candidate], found: Iterable[Overlap], kind: str
) -> list[Problem]:
    """A warning for each prompt that shares most of its wording with another, and one for all
    those of a file where only numbers differ: a template makes thousands of them, which would
    bury the copies.

    Args:
        texts, others: what the indices of `found` mean; exact overlaps are left alone.
        kind: of the problems.
    """
    problems: list[Problem] = []
    numbered: dict[str, list[tuple[Candidate, Candidate]]] = {}
    for overlap in found:
        if overlap.kind == "exact":
            continue
        one, other = texts[overlap.index], others[overlap.other]
        if overlap.numbers_only:
            numbered.setdefault(one.file, []).append((one, other))
        else:
            text = f"shares {overlap.shared:.0%} of its wording with {other.where}"
            problems.append(one.problem("warning", kind, text))
    for pairs in numbered.values():
        named = ", ".join(f"{one.line} as {other.where}" for one, other in pairs[:SHOWN])
        more = " …" if len(pairs) > SHOWN else ""
        text = (
            f"{len(pairs)} of its prompts differ from one of these in numbers only (line {named}"
            f"{more}): harmless where a template made both, else remove them"
        )
        problems.append(
            Problem(file=pairs[0][0].file, line=0, level="warning", kind=kind, text=text)
        )
    return problems
