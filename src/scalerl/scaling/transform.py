"""The F-transform: log F is a straight line in log C, of slope B, where the sigmoid holds."""

from dataclasses import dataclass

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.result import Fit
from scalerl.scaling.sigmoid import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FTransform:
    """A curve's evaluations after the transform; arrays [k] of those where it is defined."""

    compute: Floats
    log_F: Floats
    se: Floats
    """SD of log F that the noise of one evaluation causes."""
    undefined: int
    """Evaluations at or above A, or at or below R0: they have no log F."""
    B: float
    C_mid: float


def f_transform(fit: Fit, curve: Curve | None = None) -> FTransform:
    """log F of each evaluation, with its error.

        F(R) = C_mid^B / ((A - R0) / (R - R0) - 1),   log F = B log C where R is on the curve
        SD(log F) = sigma / ((A - R0) f (1 - f)),     f = (R - R0) / (A - R0)

    Section A.8 with the fitted A, R0, B and C_mid; `curve` defaults to the evaluations fitted.
    Errors: InputError when the fit has no point estimate of A.
    """
    p = fit.point
    if p is None or fit.A.estimate is None:
        raise InputError(f"{fit.name}: {fit.status}; the F-transform needs an estimate of A")
    curve = fit.data if curve is None else curve
    gain = p.A - p.R0
    f = (curve.pass_rate - p.R0) / gain
    defined = (f > 0) & (f < 1)
    inside = f[defined]
    sigma = fit.sigma.estimate
    if sigma is None:
        sigma = float(np.sqrt(p.rss / max(fit.n_points - 4, 1)))
    return FTransform(
        compute=curve.compute[defined],
        log_F=p.B * np.log(p.C_mid) + np.log(inside) - np.log1p(-inside),
        se=sigma / (gain * inside * (1 - inside)),
        undefined=int(np.count_nonzero(~defined)),
        B=p.B,
        C_mid=p.C_mid,
    )
