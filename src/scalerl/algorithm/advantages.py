"""Advantages from rewards: centred on the group, then scaled. Float64 throughout.

Shapes: ``P`` groups, ``G`` completions kept of a group (may differ between groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scalerl.errors import InputError

Normalisation = Literal["prompt", "batch", "none"]
FloatArray = NDArray[np.float64]

EPSILON_PROMPT = 1e-6  # in reward units; added to a group's std, never to the batch's


def has_spread(reward_G: Sequence[float] | FloatArray) -> bool:
    """Whether rewards differ: max ≠ min. A computed std of equal rewards can miss 0 by rounding.

    None or one reward has no spread. Errors: InputError on a reward that is not finite.
    """
    rewards = _rewards(reward_G)
    return rewards.size > 1 and bool(rewards.max() != rewards.min())


def centred(reward_G: Sequence[float] | FloatArray) -> FloatArray:
    """Â_i = r_i − mean of the group; exactly 0 where the rewards are all equal, or only one.

    Paper: arXiv 2510.13786, section 2. Shapes: ``[G]`` to ``[G]``, in reward units.
    Errors: InputError on a reward that is not finite.
    """
    rewards = _rewards(reward_G)
    if not has_spread(rewards):
        return np.zeros_like(rewards)
    # From the least reward first: exact for rewards a rounding apart, whose mean is not.
    above_G = rewards - rewards.min()
    return above_G - above_G.mean()


def advantages(
    reward_PG: Sequence[Sequence[float] | FloatArray], normalisation: Normalisation
) -> tuple[FloatArray, ...]:
    """Advantages of the groups of one optimiser step, in the order given.

        prompt:  Â / (std of the group + 1e-6)        |Â| ≤ √(G − 1)
        batch:   Â / std of all Â given
        none:    Â

    Paper: arXiv 2510.13786, section 3.2 (advantage normalisation); ``batch`` is ScaleRL's.
    Shapes: P groups of ``[G]`` rewards each to P arrays ``[G]``. Standard deviations are
    population ones (divide by n) about the mean, over completions, not tokens.
    Errors: InputError on a reward that is not finite or an unknown normalisation.
    Deviations: equal rewards give exactly 0 everywhere, and a batch of nothing else gives zeros,
    not 0/0. The batch std covers exactly the groups given: hand in what the filters left.
    """
    centred_PG = tuple(centred(reward_G) for reward_G in reward_PG)
    match normalisation:
        case "none":
            return centred_PG
        case "prompt":
            return tuple(a_G / (_std(a_G) + EPSILON_PROMPT) for a_G in centred_PG)
        case "batch":
            if not any(a_G.any() for a_G in centred_PG):
                return centred_PG
            std = _std(np.concatenate(centred_PG))
            return tuple(a_G / std for a_G in centred_PG)
        case _:
            raise InputError(
                f"normalisation {normalisation!r} is unknown; choose prompt, batch or none"
            )


def _std(advantage_N: FloatArray) -> float:
    """Population std, scaled first so that squares neither vanish nor overflow; 0 if empty."""
    scale = float(np.abs(advantage_N).max(initial=0.0))
    if scale == 0.0:
        return 0.0
    return scale * float(np.std(advantage_N / scale))


def _rewards(reward_G: Sequence[float] | FloatArray) -> FloatArray:
    rewards = np.asarray(reward_G, dtype=np.float64)
    if rewards.ndim != 1:
        raise ValueError(f"rewards of a group must be [G], have shape {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise InputError(
            f"a reward is not finite: {rewards.tolist()}; a reward function must return numbers"
        )
    return rewards
