"""The paper's own procedures, the grid of A.5 and the power law of A.4."""

# A, B and R0 are the paper's symbols, not constants.
# pyright: reportConstantRedefinition=false

from dataclasses import dataclass

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.least_squares import LOG_B_BOUNDS
from scalerl.scaling.posterior import Observed
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.special import clip, linspace

A_GRID = np.round(np.linspace(0.450, 0.800, 71), 3)
"""0.450, 0.455, ..., 0.800: Appendix A.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFit:
    """Best node of the paper's grid, with B fitted there."""

    A: float
    B: float
    C_mid: float
    R0: float
    rss: float
    edges: tuple[str, ...]
    """Which edges of the grid the best node lies on."""


def grid_fit(data: Observed, grid: tuple[float, float, int] = (100.0, 40000.0, 100)) -> GridFit:
    """Best (A, C_mid) of the paper's grid by sum of squares, B fitted at every node.

        A in {.450, .455, ..., .800};  C_mid in linspace(low, high, count)

    Appendix A.5. All nodes' B are solved together by Newton steps on one batch instead of one
    curve_fit each; the optimum is the same. R0 is held (`data.R0`, or the step-0 evaluation).
    Table 1's own C_mid lie on linspace(100, 4000, 100) or linspace(4000, 40000, 100). Errors:
    InputError for an empty grid or a free R0.
    """
    low, high, count = grid
    if not (0 < low < high and count >= 2):
        raise InputError(f"paper grid {low:g}:{high:g}:{count} needs 0 < low < high and 2 values")
    R0 = data.R0 if data.R0 is not None else data.step0
    if R0 is None:
        raise InputError("the paper's method needs R0: a step-0 evaluation or a value (--r0 0.40)")
    ceilings = A_GRID if data.A is None else np.array([data.A])
    C_mids = np.linspace(low, high, int(count))
    A, C_mid = (v.ravel() for v in np.meshgrid(ceilings, C_mids, indexing="ij"))
    log_b, rss = _fit_b(data, A, np.log(C_mid), R0)
    best = int(np.argmin(rss))
    edges: list[str] = []
    if data.A is None and A[best] in (A_GRID[0], A_GRID[-1]):
        edges.append(f"A is at the grid's edge {A[best]:.3f}")
    if C_mid[best] in (C_mids[0], C_mids[-1]):
        edges.append(f"C_mid is at the grid's edge {C_mid[best]:g}")
    return GridFit(
        A=float(A[best]),
        B=float(np.exp(log_b[best])),
        C_mid=float(C_mid[best]),
        R0=R0,
        rss=float(rss[best]),
        edges=tuple(edges),
    )


def _fit_b(data: Observed, A: Floats, m: Floats, R0: float) -> tuple[Floats, Floats]:
    """log B and RSS [K] at each node: a scan of log B, then damped Gauss-Newton steps."""
    dx = data.x - m[:, None]
    gain = (A - R0)[:, None]

    def residual_and_slope(log_b: Floats) -> tuple[Floats, Floats]:
        z = np.exp(log_b)[:, None] * dx
        f = 1 / (1 + np.exp(-np.clip(z, -500, 500)))
        return data.y - R0 - gain * f, gain * f * (1 - f) * z

    def rss_of(residual: Floats) -> Floats:
        return np.asarray((data.w * residual**2).sum(1))

    scan = linspace(np.log(0.3), np.log(8.0), 6)
    first = np.stack([rss_of(residual_and_slope(np.full(len(m), b))[0]) for b in scan], 1)
    log_b = scan[np.argmin(first, axis=1)]
    residual, slope = residual_and_slope(log_b)
    rss = rss_of(residual)
    damping = np.ones(len(m))
    for _ in range(25):
        curvature = (data.w * slope**2).sum(1) + 1e-300
        move = damping * np.clip((data.w * slope * residual).sum(1) / curvature, -0.7, 0.7)
        new = clip(log_b + move, *LOG_B_BOUNDS)
        residual_new, slope_new = residual_and_slope(new)
        rss_new = rss_of(residual_new)
        better = rss_new <= rss
        log_b, rss = np.where(better, new, log_b), np.where(better, rss_new, rss)
        residual = np.where(better[:, None], residual_new, residual)
        slope = np.where(better[:, None], slope_new, slope)
        damping = np.where(better, np.minimum(1.0, damping * 2), damping / 4)
        if np.max(np.abs(move)) < 1e-9:
            break
    return log_b, rss


def power_law(x: Floats, y: Floats, w: Floats, fixed_A: float | None) -> tuple[float, ...]:
    """(A, B, D, RSS) of R = A - D / C^B by least squares, A at most 1.

    Section A.4. x [n] is log compute: A and D are linear given B, which is scanned and refined.
    """
    scale = x.mean()

    def at(log_b: Floats) -> tuple[Floats, Floats, Floats]:
        h = np.exp(-np.exp(log_b)[:, None] * (x - scale))  # [K, n]
        hh, h1, one = (w * h * h).sum(1), (w * h).sum(1), w.sum()
        hy, ysum = (w * h * y).sum(1), (w * y).sum()
        det = np.maximum(hh * one - h1**2, 1e-300)
        A = (ysum * hh - hy * h1) / det if fixed_A is None else np.full(len(h), fixed_A)
        A = np.minimum(A, 1.0) if fixed_A is None else A
        D = (A * h1 - hy) / hh
        rss = (w * (y - A[:, None] + D[:, None] * h) ** 2).sum(1)
        return A, D, rss

    low, high = LOG_B_BOUNDS[0] - 2.0, LOG_B_BOUNDS[1] - 1.0
    for _ in range(12):
        grid = linspace(low, high, 41)
        i = int(np.argmin(at(grid)[2]))
        low, high = float(grid[max(i - 2, 0)]), float(grid[min(i + 2, 40)])
    log_b = np.array([0.5 * (low + high)])
    A, D, rss = at(log_b)
    B = float(np.exp(log_b[0]))
    return float(A[0]), B, float(D[0] * np.exp(B * scale)), float(rss[0])
