"""Where a fit should start: what each early cut does to it, and which cut the data propose.

The pass rate rises almost linearly in the first epoch and follows the sigmoid after (Appendix A.6);
the linear part inside the window moves A by up to +.046.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import fit, observed
from scalerl.scaling.posterior import draw
from scalerl.scaling.result import Interval, Settings, Status
from scalerl.scaling.verdict import FEW_POINTS, forecast_error, no_gain

MOST_CUT = 0.4
"""Share of the evaluations that a proposal may cut off at most."""
BLOCK = 3
"""Evaluations after a cut that must agree with the fit to those beyond them."""
AGREE_P = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """One early cut and the fit it leaves."""

    min_compute: float
    n_points: int
    status: Status
    A: Interval
    B: Interval
    C_mid: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """An early cut to use, or None where nothing needs cutting, with the reason in words."""

    min_compute: float | None
    reason: str


def window_table(
    curve: Curve, cuts: Sequence[float] | None = None, **settings: Any
) -> tuple[WindowRow, ...]:
    """The fit for each early cut: how far the answer depends on where the window starts.

    `cuts` are lowest computes; by default none, then those that drop about 5, 10, 20, 30 and 40 %
    of the evaluations and leave at least 8. `settings` go to `fit`. Errors: as `fit`.
    """
    if cuts is None:
        cuts = default_cuts(curve)
    rows: list[WindowRow] = []
    for cut in cuts:
        found = fit(curve, min_compute=cut, **settings)
        rows.append(
            WindowRow(
                min_compute=float(cut),
                n_points=found.n_points,
                status=found.status,
                A=found.A,
                B=found.B,
                C_mid=found.C_mid,
            )
        )
    return tuple(rows)


def default_cuts(curve: Curve) -> list[float]:
    """Lowest computes that drop nothing, then 5, 10, 20, 30 and 40 % of the evaluations."""
    n = len(curve)
    if not n:
        raise InputError(f"curve {curve.name!r} has no evaluations")
    most = max(0, n - FEW_POINTS)
    drops = sorted({0, *(k for s in (0.05, 0.1, 0.2, 0.3, 0.4) if (k := round(s * n)) <= most)})
    return [float(curve.compute[k]) for k in drops]


def propose_window(curve: Curve, settings: Settings | None = None) -> Proposal:
    """The early cut to use: the end of the first epoch if the log has it, else what the data say.

    From the data: the smallest cut after which the first three evaluations agree (p >= .05) with
    the posterior of those beyond them; at most 40 % of the evaluations are cut and 8 are left.
    """
    if curve.first_epoch is not None:
        beyond = int(np.count_nonzero(curve.compute >= curve.first_epoch))
        if beyond >= FEW_POINTS:
            reason = "the end of the first epoch, which is nearly linear (A.6)"
            return Proposal(min_compute=curve.first_epoch, reason=reason)
    s = settings or Settings(r0_mode="step0" if curve.r0_observed is not None else "free")
    n = len(curve)
    most = min(int(MOST_CUT * n), n - FEW_POINTS - BLOCK)
    for k in range(max(0, most + 1)):
        later = curve.select(np.arange(n) >= k + BLOCK)
        data = observed(later, s)
        if no_gain(data) is not None:
            break
        _, p, _ = forecast_error(
            draw(data, draws=1024, shape=(28, 28)),
            curve.compute[k : k + BLOCK],
            curve.pass_rate[k : k + BLOCK],
        )
        if p >= AGREE_P:
            if k == 0:
                return Proposal(
                    min_compute=None, reason="the first evaluations agree with the rest"
                )
            reason = f"the first {k} evaluations do not lie on the curve that fits the rest"
            return Proposal(min_compute=float(curve.compute[k]), reason=reason)
    return Proposal(min_compute=None, reason="too few evaluations to propose a cut from")
