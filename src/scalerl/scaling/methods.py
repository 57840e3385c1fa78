"""What a method of fitting finds, and the two methods of the paper that stop at a point."""

from dataclasses import dataclass

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import Draws
from scalerl.scaling.paper import grid_fit, power_law
from scalerl.scaling.posterior import Observed
from scalerl.scaling.result import Origin, Parameters, PowerLaw, Settings, Status
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.verdict import FEW_POINTS, no_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What a method found, before it is dressed as a Fit."""

    status: Status
    reasons: list[str]
    weight: Floats
    least_squares: Parameters | None = None
    robust: Parameters | None = None
    draws: Draws | None = None
    origins: tuple[Origin, ...] = ()
    power_law: PowerLaw | None = None
    at_edge: bool = False


def observed(data: Curve, s: Settings, weight: Floats | None = None) -> Observed:
    """The part of a curve the posterior is conditioned on."""
    own = np.ones(len(data)) if data.weight is None else data.weight
    return Observed(
        x=np.log(data.compute),
        y=data.pass_rate,
        w=own if weight is None else weight,
        R0=s.r0 if s.r0_mode == "value" else None,
        step0=data.r0_observed if s.r0_mode == "step0" else None,
        A=s.fix_ceiling,
        prior_b=s.prior_b,
    )


def fit_paper(curve: Curve, s: Settings) -> Core:
    """The best node of the grid of A.5: a point, and what edges of the grid it lies on."""
    data = observed(curve, s)
    found = grid_fit(data, s.paper_grid)
    reasons = [
        "the paper's grid (A.5) gives a point without an interval; C_mid and A are quantised",
        *(f"{edge}: the true optimum may lie beyond" for edge in found.edges),
    ]
    why_not = no_gain(data) if len(curve) >= 3 else "fewer than 3 points"
    if why_not is not None:
        return Core(status="no_gain", reasons=[why_not, *reasons], weight=data.w)
    enough = len(curve) >= FEW_POINTS and not found.edges
    point = Parameters(A=found.A, B=found.B, C_mid=found.C_mid, R0=found.R0, rss=found.rss)
    return Core(
        status="weak" if enough else "not_identified",
        reasons=reasons,
        weight=data.w,
        least_squares=point,
    )


def fit_power_law(curve: Curve, s: Settings) -> Core:
    """The power law of A.4, and whether its ceiling survives a later start of the window."""
    data = observed(curve, s)
    if len(curve) < 4:
        reason = f"{len(curve)} points cannot tell A, B, D and the noise; at least 4 are needed"
        return Core(status="not_identified", reasons=[reason], weight=data.w)
    why_not = no_gain(data)
    if why_not is not None:
        return Core(status="no_gain", reasons=[why_not], weight=data.w)
    A, B, D, rss = power_law(data.x, data.y, data.w, s.fix_ceiling)
    reasons = ["a power law (A.4) holds only far above C_mid; no interval is given"]
    status: Status = "weak"
    later = data.x >= np.median(data.x)
    if s.fix_ceiling is None and later.sum() >= 4:
        A_later = power_law(data.x[later], data.y[later], data.w[later], None)[0]
        if abs(A_later - A) > 0.02:
            status = "unstable"
            reasons.append(
                f"its ceiling moves from {A:.3f} to {A_later:.3f} on the later half alone"
            )
    if A >= 1:
        status = "unstable"
        reasons.append("A runs into its upper bound 1")
    law = PowerLaw(A=A, B=B, D=D, rss=rss)
    return Core(status=status, reasons=reasons, weight=data.w, power_law=law)
