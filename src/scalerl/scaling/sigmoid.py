"""The compute curve of the paper, as pure functions of arrays.

    R(C) = R0 + (A - R0) / (1 + (C_mid / C)^B)            (equation 1)

`A` is the ceiling, `B` the steepness, `C_mid` the compute at half the gain, `R0` the pass rate
before RL. Everything is evaluated in log C, so that compute in FLOPs (1e24) is as safe as hours.
"""

# A, B and R0 are the paper's symbols, not constants.
# pyright: reportConstantRedefinition=false

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalerl.scaling.special import expit

Floats = NDArray[np.float64]


def fraction_reached(compute: ArrayLike, C_mid: ArrayLike, B: ArrayLike) -> Floats:
    """Share of the gain A - R0 reached at a compute.

        f(C) = 1 / (1 + (C_mid / C)^B)

    Appendix A.4. Inputs broadcast; `compute` and `C_mid` in the same unit, at least 0 and above 0.
    At C = 0 the share is 0.
    """
    with np.errstate(divide="ignore"):
        log_ratio = np.log(np.asarray(compute, float)) - np.log(np.asarray(C_mid, float))
    return np.asarray(expit(np.asarray(B, float) * log_ratio), dtype=np.float64)


def sigmoid(
    compute: ArrayLike, *, A: ArrayLike, B: ArrayLike, C_mid: ArrayLike, R0: ArrayLike
) -> Floats:
    """Pass rate after a compute, equation 1. Inputs broadcast; pass rates in [0, 1]."""
    R0 = np.asarray(R0, float)
    return R0 + (np.asarray(A, float) - R0) * fraction_reached(compute, C_mid, B)


def compute_to_target(
    target: ArrayLike, *, A: ArrayLike, B: ArrayLike, C_mid: ArrayLike, R0: ArrayLike
) -> Floats:
    """Compute at which the curve passes a pass rate; infinite where the ceiling is not above it.

        C = C_mid * ((target - R0) / (A - target))^(1/B)

    Inputs broadcast. 0 where the target is at or below R0.
    """
    target, A, R0 = (np.asarray(v, float) for v in (target, A, R0))
    gained, missing = np.broadcast_arrays(target - R0, A - target)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        reached = np.asarray(C_mid, float) * (gained / missing) ** (1 / np.asarray(B, float))
    return np.where(gained <= 0, 0.0, np.where(missing <= 0, np.inf, reached))
