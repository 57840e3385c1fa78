"""Collapses of runs, and whether drawdown or truncation warned of them in time.

A run has collapsed when its last three evaluations have lost a quarter of what the best three had
gained, and more than noise; or when it fell to three quarters of its start and ends without a
gain. That does not ask the warnings, so that they can be judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.scaling.curve import Curve
from scalerl.scaling.warn import MIN_EVALUATIONS, noise_sd, warn

LOST = 0.25
"""Share of the gain, or of the start, that a collapsed run has lost."""
NOISE = 4.0
"""And in noise SD of one evaluation, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHealth:
    """One run: did it collapse, and what warned of it. Steps are optimiser steps."""

    variant: str
    run: str
    collapsed: bool
    fell_at: float | None
    """Step at which a quarter of the gain had been lost; of a collapsed run."""
    drawdown_at: float | None
    """Step of the first red drawdown warning."""
    truncation_at: float | None
    """Step of the first red truncation warning."""


def health(curves: Mapping[str, Sequence[Curve]]) -> list[RunHealth]:
    """Collapse and warnings of every run."""
    return [_health(name, curve) for name, runs in curves.items() for curve in runs]


def _health(variant: str, curve: Curve) -> RunHealth:
    first: dict[str, float] = {}
    for warning in warn(curve):
        if warning.level == "red":
            at = warning.step if warning.step is not None else warning.compute
            first.setdefault(warning.kind, at)
    fell = fell_at(curve)
    return RunHealth(
        variant=variant,
        run=curve.name,
        collapsed=fell is not None,
        fell_at=fell,
        drawdown_at=first.get("drawdown"),
        truncation_at=first.get("truncation"),
    )


def fell_at(curve: Curve) -> float | None:
    """Step at which a collapsed run had lost a quarter of its gain for good, or of its start; None
    if it did not collapse, or has fewer evaluations than its noise can be told from."""
    if len(curve) < MIN_EVALUATIONS:
        return None
    start = curve.r0_observed if curve.r0_observed is not None else float(curve.pass_rate[0])
    mean = np.convolve(curve.pass_rate, np.ones(3) / 3, "valid")  # of evaluations i, i+1, i+2
    best = np.maximum.accumulate(mean)
    noise = NOISE * float(noise_sd(curve.pass_rate[None])[0]) / np.sqrt(3)
    lost = (best - mean >= LOST * (best - start)) & (best - mean >= noise)
    below = mean < (1 - LOST) * start
    if lost[-1]:
        began = len(lost) - int(np.argmin(lost[::-1])) if not lost.all() else 0
    elif below.any() and mean[-1] < start + noise:
        began = int(np.argmax(below))
    else:
        return None
    steps = curve.step if curve.step is not None else curve.compute
    return float(steps[began + 2])


def words(found: Sequence[RunHealth]) -> list[str]:
    """Collapses with their lead times, and false alarms; nothing where nothing happened."""
    fallen = [h for h in found if h.collapsed]
    sound = [h for h in found if not h.collapsed]
    lines: list[str] = []
    for kind in ("drawdown", "truncation"):
        leads = [
            h.fell_at - at
            for h in fallen
            if h.fell_at is not None and (at := getattr(h, f"{kind}_at")) is not None
        ]
        early = sum(lead >= 0 for lead in leads)
        false = sum(getattr(h, f"{kind}_at") is not None for h in sound)
        if fallen or false:
            lead = f", {np.median(leads):.0f} steps ahead (median)" if leads else ""
            lines.append(
                f"  red {kind}: warned of {early} of {len(fallen)} collapses by the time a "
                f"quarter of the gain was lost{lead}; {false} of {len(sound)} sound runs alarmed"
            )
    return ["Collapses and warnings:", *lines] if lines else []
