"""What is wrong with data: where, how bad, and what to do. Nothing is dropped without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault of one place. Errors keep a row from being used; warnings do not."""

    file: str
    line: int  # from 1; of Parquet and hub data sets the row; 0 for the whole file
    level: Level
    kind: str  # a few words, the same for all faults of the kind
    text: str  # what is there and what to do

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        return f"{self.where}: {self.level}: {self.kind}: {self.text}"


def report(problems: Iterable[Problem], *, show: int = 20) -> str:
    """All problems, errors first, at most `show` a kind with the number of the rest."""
    problems = sorted(problems, key=lambda p: (p.level, p.kind))
    totals = Counter((p.level, p.kind) for p in problems)
    shown: Counter[tuple[str, str]] = Counter()
    lines: list[str] = []
    for problem in problems:
        key = problem.level, problem.kind
        shown[key] += 1
        if shown[key] <= show:
            lines.append(str(problem))
        elif shown[key] == totals[key]:
            lines.append(f"… and {totals[key] - show} more: {problem.level}: {problem.kind}")
    return "\n".join(lines)
