"""Hold a forecast against the evaluations that came later."""

from dataclasses import dataclass

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.result import Fit
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.verdict import forecast_error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForecastCheck:
    """How a fit's forecast met evaluations beyond its window."""

    n_later: int
    n_inside: int
    """Later evaluations inside the 90 % observation band."""
    compute: Floats
    errors: Floats
    """[n_later], pass rate minus the fitted curve."""
    mean_error: float
    rmse: float
    p_value: float
    """How likely so large a mean error is, if forecast and noise are right."""

    def summary(self) -> str:
        """One line for a person."""
        return (
            f"{self.n_inside} of {self.n_later} later evaluations inside the 90 % band; "
            f"mean error {self.mean_error:+.4f}, RMSE {self.rmse:.4f}"
        )


def check_forecast(fitted: Fit, later: Curve) -> ForecastCheck:
    """Compare a fit with the evaluations of `later` beyond the fit's window.

    Errors: InputError when the unit differs, there is no later evaluation, or the fit has no bands.
    """
    if later.unit != fitted.unit:
        raise InputError(f"the fit is in {fitted.unit}, the later curve in {later.unit}")
    beyond = later.compute > fitted.window[1]
    if not beyond.any():
        raise InputError(
            f"curve {later.name!r} has no evaluation beyond {fitted.window[1]:g} {fitted.unit}"
        )
    if fitted.draws is None:
        raise InputError(f"the fit is {fitted.status} by {fitted.method}: it has no bands to check")
    C, y = later.compute[beyond], later.pass_rate[beyond]
    band = fitted.predict(C)
    errors = y - band.estimate
    _, p, _ = forecast_error(fitted.draws, C, y)
    inside = (y >= band.observation_low) & (y <= band.observation_high)
    return ForecastCheck(
        n_later=len(C),
        n_inside=int(inside.sum()),
        compute=C,
        errors=errors,
        mean_error=float(errors.mean()),
        rmse=float(np.sqrt(np.mean(errors**2))),
        p_value=p,
    )
