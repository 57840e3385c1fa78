"""How much a token counts: one weight per completion, fixed from the whole optimiser step.

Shapes: ``P`` groups, ``G`` completions of a group. Lengths count trained (mask-1) tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError

Aggregation = Literal["prompt", "sample", "token"]
FloatArray = NDArray[np.float64]


def weights(length_PG: Sequence[Sequence[int]], aggregation: Aggregation) -> tuple[FloatArray, ...]:
    """Weight of every trained token of each completion, from the GLOBAL batch.

        prompt:  1 / (P_eff · Σ_i |y_pi|)        every prompt counts alike (ScaleRL, DAPO)
        sample:  1 / (P_eff · G_p · |y_pi|)      every completion of a prompt alike (GRPO)
        token:   1 / Σ_p Σ_i |y_pi|              every token alike

    P_eff counts groups, and G_p completions, with at least one trained token. The weights times
    the lengths sum to 1, whatever was masked.

    Paper: arXiv 2510.13786, section 3.2 (loss aggregation).
    Shapes: lengths of P groups of ``[G]`` to P arrays ``[G]``; a completion without a trained
    token gets 0, and so does a whole batch without one.
    Errors: ValueError on a negative length, InputError on an unknown aggregation.
    Deviations: none; a mean per micro-batch or rank is what this avoids.
    """
    arrays = [np.asarray(length_G, dtype=np.int64) for length_G in length_PG]
    if any(bool((length_G < 0).any()) for length_G in arrays):
        raise ValueError("a completion has a negative number of trained tokens")
    n_tokens = sum(int(length_G.sum()) for length_G in arrays)
    n_prompts = sum(bool(length_G.any()) for length_G in arrays)
    return tuple(_group_weights(a, n_prompts, n_tokens, aggregation) for a in arrays)


def _group_weights(
    length_G: NDArray[np.int64], n_prompts: int, n_tokens: int, aggregation: Aggregation
) -> FloatArray:
    trained_G = length_G > 0
    if not trained_G.any():
        return np.zeros(length_G.shape, dtype=np.float64)
    match aggregation:
        case "prompt":
            count_G = np.full(length_G.shape, float(n_prompts * length_G.sum()))
        case "sample":
            count_G = n_prompts * trained_G.sum() * np.maximum(length_G, 1).astype(np.float64)
        case "token":
            count_G = np.full(length_G.shape, float(n_tokens))
        case _:
            raise InputError(
                f"aggregation {aggregation!r} is unknown; choose prompt, sample or token"
            )
    return np.where(trained_G, 1.0 / count_G, 0.0)
