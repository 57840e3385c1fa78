"""Where a fit should start: what each early cut does to it, and which cut the data propose.

The pass rate rises almost linearly in the first epoch and follows the sigmoid after (Appendix A.6);
the linear part inside the window moves A by up to +.046.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import fit, fitted_part, r0_choice
from scalerl.scaling.methods import observed
from scalerl.scaling.posterior import draw
from scalerl.scaling.result import Interval, Settings, Status
from scalerl.scaling.special import linspace
from scalerl.scaling.verdict import FEW_POINTS, mean_error, no_gain

MOST_CUT = 0.3
"""Share of the evaluations that a proposal may cut off at most."""
CANDIDATES = 8
"""How many cuts are tried."""
DISAGREE_Z = 3.2
"""Early evaluations whose mean error is beyond this many SD are cut."""
DISAGREE_LEAST = 0.003
"""A mean error below this moves no ceiling, however sure it is."""


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
    of the evaluations that are fitted and leave at least 8. `settings` go to `fit`. Errors: as
    `fit`.
    """
    if cuts is None:
        names = ("r0", "max_compute", "keep_red")
        part, _ = _part(curve, **{k: v for k, v in settings.items() if k in names})
        cuts = default_cuts(part)
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


def _part(
    curve: Curve,
    r0: float | Literal["step0", "free"] | None = None,
    max_compute: float | None = None,
    keep_red: bool = False,
) -> tuple[Curve, Settings]:
    """The evaluations a fit without an early cut would use, and how it would treat R0."""
    mode, value = r0_choice(curve, r0)
    s = Settings(r0_mode=mode, r0=value, max_compute=max_compute)
    return fitted_part(curve, s, keep_red)[0], s


def propose_window(
    curve: Curve,
    *,
    r0: float | Literal["step0", "free"] | None = None,
    max_compute: float | None = None,
    keep_red: bool = False,
) -> Proposal:
    """The early cut to use: the end of the first epoch if the log has it, else what the data say.

    From the data: for each of eight cuts, the evaluations before it are set against the posterior
    of those after it; the cut whose early evaluations lie farthest off, in SD, is proposed if that
    is more than chance brings about. At most 30 % are cut, and 8 evaluations are left. The other
    settings are those of `fit`: what it would leave out is not looked at. Errors: as `fit`.
    """
    curve, s = _part(curve, r0, max_compute, keep_red)
    if curve.first_epoch is not None:
        beyond = int(np.count_nonzero(curve.compute >= curve.first_epoch))
        if beyond >= FEW_POINTS:
            reason = "the end of the first epoch, which is nearly linear (A.6)"
            return Proposal(min_compute=curve.first_epoch, reason=reason)
    n = len(curve)
    most = min(int(MOST_CUT * n), n - FEW_POINTS)
    if most < 2:
        return Proposal(min_compute=None, reason="too few evaluations to propose a cut from")
    cuts = sorted({round(k) for k in linspace(2, most, CANDIDATES)})
    errors = [_early_error(curve, k, s) for k in cuts]
    best = int(np.argmax([abs(z) for _, z in errors]))
    k, (error, z) = cuts[best], errors[best]
    if abs(z) < DISAGREE_Z or abs(error) < DISAGREE_LEAST:
        return Proposal(min_compute=None, reason="the first evaluations agree with the rest")
    reason = (
        f"the {k} evaluations before it do not lie on the curve that fits the rest "
        f"(off by {error:+.3f} on average)"
    )
    return Proposal(min_compute=float(curve.compute[k]), reason=reason)


def _early_error(curve: Curve, k: int, s: Settings) -> tuple[float, float]:
    """Mean error of the first k evaluations against the fit of the rest, and that in SD."""
    data = observed(curve.select(np.arange(len(curve)) >= k), s)
    if no_gain(data) is not None:
        return 0.0, 0.0
    d = draw(data, draws=512, shape=(24, 24))
    off, spread = mean_error(d, curve.compute[:k], curve.pass_rate[:k])
    error = float(d.weight @ off)
    variance = float(d.weight @ ((off - error) ** 2 + spread**2))
    return error, error / float(np.sqrt(variance))
