"""Planted curves and the noise measured on real evaluations, shared by the scaling tests."""

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.sigmoid import Floats, sigmoid

PAPER = {"A": 0.610, "B": 1.92, "C_mid": 2542.0, "R0": 0.40}
"""ScaleRL, batch 768: Table 1."""


def ar1(rng: np.random.Generator, shape: tuple[int, int], sd: float = 0.004, rho: float = 0.5):
    """Stationary AR(1) noise [N, n]."""
    noise = rng.standard_normal(shape)
    for i in range(1, shape[1]):
        noise[:, i] = rho * noise[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
    return sd * noise


def planted(
    compute: Floats, *, noise: Floats | float = 0.0, step0: float | None = 0.40, **parameters: float
) -> Curve:
    """A curve with known parameters (the paper's unless given) and noise [n]."""
    truth = {**PAPER, **parameters}
    return Curve(
        name="planted",
        compute=compute,
        pass_rate=sigmoid(compute, **truth) + noise,
        unit="gpu_hours",
        r0_observed=step0,
    )
