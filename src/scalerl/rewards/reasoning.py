"""reasoning-gym's own scorers, made strict: whatever they raise or grant, a score in [0, 1].

Runs in a worker: the scorers are other people's code, and some give credit to nonsense.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=16)
def _dataset(name: str, settings: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, **json.loads(settings))


def entry_score(detail: dict[str, Any], answer: str | None) -> float:
    """The score of an answer to the entry that `detail` names, clipped to [0, 1].

    Args:
        detail: `dataset`, `settings` and `index`: the generator makes the same entry again.
    """
    dataset = _dataset(detail["dataset"], json.dumps(detail["settings"], sort_keys=True))
    score = dataset.score_answer(answer, dataset[detail["index"]])
    return min(1.0, max(0.0, float(score)))
