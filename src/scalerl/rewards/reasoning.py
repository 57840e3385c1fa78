"""reasoning-gym's own scorers, made strict: whatever they raise or grant, a score in [0, 1].

Runs in a worker: the scorers are other people's code, and some give credit to nonsense.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=16)
def dataset(name: str) -> Any:
    """The smallest data set of this name, for its scorer."""
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=1, seed=0)


def entry_score(name: str, answer: str | None, entry: dict[str, Any]) -> float:
    """The scorer's score of an answer, clipped to [0, 1]."""
    score = dataset(name).score_answer(answer, entry)
    return min(1.0, max(0.0, float(score)))
