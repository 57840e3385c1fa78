"""Weighted draws of the curve's parameters, and what can be asked of them.

Shapes: `D` draws, `k` computes.
"""

# A, B and R0 are the paper's symbols, not constants.
# pyright: reportConstantRedefinition=false

from dataclasses import dataclass

import numpy as np

from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.special import expit, ndtri


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """Weighted draws of the parameters; every array [D], read-only, weights sum to 1."""

    A: Floats
    B: Floats
    log_C_mid: Floats
    R0: Floats
    sigma: Floats
    rho: Floats
    weight: Floats

    def __post_init__(self) -> None:
        for name in self.__slots__:
            getattr(self, name).setflags(write=False)

    @property
    def effective(self) -> float:
        """Effective number of draws, 1 / sum of squared weights."""
        return float(1 / np.sum(self.weight**2))

    def fraction(self, compute: Floats) -> Floats:
        """Share of the gain reached at each compute, [D, k]."""
        with np.errstate(divide="ignore"):
            x = np.log(np.asarray(compute, float))
        return np.asarray(expit(self.B[:, None] * (x - self.log_C_mid[:, None])))

    def curve(self, compute: Floats) -> Floats:
        """Pass rate at each compute, [D, k]."""
        return self.R0[:, None] + (self.A - self.R0)[:, None] * self.fraction(compute)

    def quantiles(self, values: Floats, at: tuple[float, ...] = (0.05, 0.5, 0.95)) -> Floats:
        """Weighted quantiles of values [D] or [D, k]: [len(at)] or [len(at), k]."""
        columns = values.reshape(len(self.weight), -1)
        order = np.argsort(columns, axis=0)
        ranked = np.take_along_axis(columns, order, 0)
        mass = self.weight[order]
        centre = np.cumsum(mass, axis=0) - 0.5 * mass
        out = np.stack(
            [np.interp(at, centre[:, j], ranked[:, j]) for j in range(columns.shape[1])], axis=1
        )
        return out.reshape((len(at), *values.shape[1:]))


def normal_scores(n: int) -> Floats:
    """Standard normal scores [n] in a fixed order that runs along no parameter of the draws."""
    return ndtri((0.5 + np.arange(1, n + 1) * 0.5 * (np.sqrt(5) - 1)) % 1.0)
