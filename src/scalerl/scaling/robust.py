"""Huber's fit of the compute curve, for logs with a glitch: reweighted least squares."""

from dataclasses import replace

import numpy as np

from scalerl.scaling.least_squares import PointFits, solve
from scalerl.scaling.posterior import Observed
from scalerl.scaling.sigmoid import Floats, sigmoid

OUTLIER = 4.0
"""A residual beyond this many MAD-sigma calls for the robust fit."""
SUSPECT = 2.5
"""A least-squares residual below this many MAD-sigma hides no outlier: Huber need not look."""
TUNING = 1.345
"""Huber's constant: 95 % efficient on clean normal noise."""


def residuals(data: Observed, fit: PointFits) -> Floats:
    """y - R(C) of each evaluation, [n]."""
    curve = sigmoid(np.exp(data.x), A=fit.A[0], B=fit.B[0], C_mid=fit.C_mid[0], R0=fit.R0[0])
    return data.y - curve


def mad_sigma(residual: Floats, unknown: int) -> float:
    """SD estimate from the median absolute residual, corrected for the parameters fitted."""
    n = len(residual)
    return float(1.4826 * np.median(np.abs(residual)) * np.sqrt(n / max(n - unknown, 1)))


def huber(data: Observed, *, rounds: int = 30) -> PointFits:
    """The Huber fit.

    Starts from least absolute residuals, so that one glitch does not hide behind the fit it bent.
    """
    fit = solve(data.problem())
    weight = np.ones(len(data.x))
    for round_ in range(rounds):
        residual = np.abs(residuals(data, fit)) * np.sqrt(data.w)
        scale = max(mad_sigma(residual, 2 + data.unknown), 1e-9)
        z = np.maximum(residual / scale, 1e-6)
        new = np.minimum(1.0, (TUNING if round_ >= 5 else 0.5) / z)
        if round_ > 5 and np.max(np.abs(new - weight)) < 1e-4:
            break
        weight = new
        fit = solve(replace(data, w=data.w * weight).problem())
    return fit


def outlier_weight(z: Floats) -> Floats:
    """Precision [n] that leaves each outlier, z MAD-sigma off, no more to say than Huber's bound.

        w = (1.345 / |z|)^2  where z is not 0, else 1

    Its residual then counts as 1.345 sigma, so that it neither bends the posterior nor widens it.
    """
    return np.where(z == 0, 1.0, (TUNING / np.maximum(np.abs(z), TUNING)) ** 2)


def outliers(data: Observed, fit: PointFits, limit: float = OUTLIER) -> Floats:
    """Residuals in MAD-sigma where they exceed the limit, 0 elsewhere: [n]."""
    residual = residuals(data, fit) * np.sqrt(data.w)
    sigma = mad_sigma(residual, 2 + data.unknown)
    # rounding-level residuals are no glitches, whatever their spread
    z = residual / max(sigma, 1e-6)
    return np.where(np.abs(z) > limit, z, 0.0)
