"""Least squares of the compute curve for many curves at once, by variable projection.

Given log C_mid and log B the curve is linear in A and R0, so these two are solved exactly at every
step (Golub and Pereyra 1973). A coarse grid over (log C_mid, log B) finds the start from the data;
batched Gauss-Newton steps with Levenberg damping finish it.

Shapes: `N` curves, `n` evaluations, `K` grid nodes.
"""

# A, B and R0 are the paper's symbols, not constants.
# pyright: reportConstantRedefinition=false

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from scalerl.errors import InputError
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.special import expit, linspace, solve_linear

LOG_B_BOUNDS = (float(np.log(0.1)), float(np.log(30.0)))
LOG_C_MARGIN = float(np.log(50.0))
"""How far outside the measured compute C_mid is looked for, as a factor of 50 either way."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PointFits:
    """Least-squares fits of N curves; every array [N]."""

    A: Floats
    B: Floats
    C_mid: Floats
    R0: Floats
    rss: Floats
    """Weighted sum of squared residuals."""
    at_ceiling: np.ndarray
    """True where A was held at its upper bound 1."""
    at_edge: np.ndarray
    """True where C_mid or B ended at the edge of where they are looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is fitted: `x` [n] log compute, `y` [N, n], `w` [N, n] or [1, n] weights; what is fixed.

    A step-0 evaluation is a further observation `y0` [N] of R0 with weight `w0` [N].
    """

    x: Floats
    y: Floats
    w: Floats
    r0: Floats | None
    A: float | None
    y0: Floats | None
    w0: Floats

    def rows(self, keep: np.ndarray) -> "Problem":
        """The same problem for some of its curves."""
        return Problem(
            self.x,
            self.y[keep],
            self.w[keep] if len(self.w) > 1 else self.w,
            None if self.r0 is None else self.r0[keep],
            self.A,
            None if self.y0 is None else self.y0[keep],
            self.w0[keep],
        )


def fit_points(
    compute: ArrayLike,
    pass_rate: ArrayLike,
    *,
    r0: ArrayLike | None = None,
    step0: ArrayLike | None = None,
    fix_ceiling: float | None = None,
    weight: ArrayLike | None = None,
) -> PointFits:
    """Least-squares sigmoid of each of N curves measured at the same compute.

        min over A, B, C_mid (and R0) of  sum_i w_i (y_i - R(C_i))^2,   A <= 1

    Section A.5 in other words: no grid of A and C_mid that quantises and clips. `compute` [n] above
    0; `pass_rate` [N, n] or [n]; `r0` a number or [N] holds R0; `step0` a number or [N] adds the
    step-0 evaluation as an observation of R0; neither: R0 is free. Errors: InputError on shapes.
    """
    C = np.asarray(compute, float)
    y = np.atleast_2d(np.asarray(pass_rate, float))
    if C.ndim != 1 or y.shape[1:] != C.shape:
        raise InputError(f"compute has shape {C.shape}, pass rates {y.shape}")
    if not (np.isfinite(y).all() and np.isfinite(C).all() and (C > 0).all()):
        raise InputError("compute must be above 0, and compute and pass rates finite")
    N = len(y)

    def per_curve(values: ArrayLike | None) -> Floats | None:
        return None if values is None else np.broadcast_to(np.asarray(values, float), (N,)).copy()

    w = np.ones((1, len(C))) if weight is None else np.atleast_2d(np.asarray(weight, float))
    problem = Problem(np.log(C), y, w, per_curve(r0), fix_ceiling, per_curve(step0), np.ones(N))
    return solve(problem)


def solve(problem: Problem) -> PointFits:
    """Grid start, then Gauss-Newton, for every curve of a problem."""
    bounds = theta_bounds(problem.x)
    theta = _grid_start(problem)
    theta, beta, rss, top = _gauss_newton(problem, theta, bounds)
    near = np.isclose(theta, bounds[0], atol=1e-9) | np.isclose(theta, bounds[1], atol=1e-9)
    return PointFits(
        A=beta[:, 0],
        B=np.exp(theta[:, 1]),
        C_mid=np.exp(theta[:, 0]),
        R0=beta[:, 1],
        rss=rss,
        at_ceiling=top,
        at_edge=np.asarray(near.any(axis=1)),
    )


def theta_bounds(x: Floats) -> Floats:
    """Where (log C_mid, log B) is looked for: [2, 2], lows then highs."""
    return np.array(
        [
            [x.min() - LOG_C_MARGIN, LOG_B_BOUNDS[0]],
            [x.max() + LOG_C_MARGIN, LOG_B_BOUNDS[1]],
        ]
    )


def _linear(
    ff: Floats, fg: Floats, gg: Floats, fy: Floats, gy: Floats, yy: Floats, problem: Problem
) -> tuple[Floats, Floats, Floats, np.ndarray]:
    """A, R0, RSS and «A held at 1» from the inner products of f, g = 1 - f and y (all broadcast).

    R0 and A that are fixed come from the problem; a solution with A above 1 is moved to A = 1 with
    R0 solved anew.
    """
    r0 = problem.r0
    if problem.A is not None:
        A = np.full(np.broadcast(ff, fy).shape, problem.A)
        R0 = (gy - A * fg) / gg if r0 is None else np.broadcast_to(r0, A.shape)
        top = np.zeros(A.shape, bool)
    else:
        if r0 is None:
            det = np.maximum(ff * gg - fg**2, 1e-300)
            A = (fy * gg - gy * fg) / det
        else:
            A = (fy - r0 * fg) / np.maximum(ff, 1e-300)
        top = A > 1
        A = np.where(top, 1.0, A)
        R0 = (gy - A * fg) / np.maximum(gg, 1e-300) if r0 is None else np.broadcast_to(r0, A.shape)
    rss = yy - 2 * A * fy - 2 * R0 * gy + A**2 * ff + 2 * A * R0 * fg + R0**2 * gg
    return A, R0, rss, top


def _grid_start(problem: Problem) -> Floats:
    """Best node of a coarse grid for every curve: [N, 2]."""
    x = problem.x
    m = linspace(x.min() - 1.0, x.max() + 2.5, 24)
    log_b = linspace(np.log(0.5), np.log(8.0), 9)
    nodes = np.stack(np.meshgrid(m, log_b, indexing="ij"), -1).reshape(-1, 2)
    f = expit(np.exp(nodes[:, 1:]) * (x - nodes[:, :1]))  # [K, n]
    w, y = problem.w, problem.y
    wy = w * y
    ff, f1, one = w @ (f * f).T, w @ f.T, w.sum(1, keepdims=True)
    fy, ysum, yy = wy @ f.T, wy.sum(1, keepdims=True), (wy * y).sum(1, keepdims=True)
    gg, fg, gy = one - 2 * f1 + ff, f1 - ff, ysum - fy
    if problem.y0 is not None:
        w0, y0 = problem.w0[:, None], problem.y0[:, None]
        gg, gy, yy = gg + w0, gy + w0 * y0, yy + w0 * y0**2
    column = Problem(
        x, y, w, None if problem.r0 is None else problem.r0[:, None], problem.A, None, problem.w0
    )
    _, _, rss, _ = _linear(ff, fg, gg, fy, gy, yy, column)
    return nodes[np.argmin(rss, axis=1)]


def _evaluate(problem: Problem, theta: Floats) -> tuple[Floats, Floats, Floats, np.ndarray, Floats]:
    """f [N, n], (A, R0) [N, 2], RSS [N] and «A held at 1» [N] at theta; and residuals [N, n]."""
    f = expit(np.exp(theta[:, 1:]) * (problem.x - theta[:, :1]))
    g, w, y = 1 - f, problem.w, problem.y
    wf, wg = w * f, w * g
    gg, gy = np.einsum("ni,ni->n", wg, g), np.einsum("ni,ni->n", wg, y)
    if problem.y0 is not None:
        gg, gy = gg + problem.w0, gy + problem.w0 * problem.y0
    ff, fg = np.einsum("ni,ni->n", wf, f), np.einsum("ni,ni->n", wf, g)
    A, R0, _, top = _linear(ff, fg, gg, np.einsum("ni,ni->n", wf, y), gy, np.zeros(len(y)), problem)
    residual = y - R0[:, None] - (A - R0)[:, None] * f
    rss = np.einsum("ni,ni->n", w * residual, residual)  # from residuals: no cancellation
    if problem.y0 is not None:
        rss = rss + problem.w0 * (problem.y0 - R0) ** 2
    return f, np.stack([A, R0], 1), rss, top, residual


def _step(
    problem: Problem,
    theta: Floats,
    f: Floats,
    beta: Floats,
    residual: Floats,
    held: np.ndarray,
    damping: Floats,
) -> Floats:
    """Damped Gauss-Newton step of (log C_mid, log B), A and R0 projected out: [N, 2]."""
    A, R0 = beta[:, 0], beta[:, 1]
    b = np.exp(theta[:, 1:])
    slope = (A - R0)[:, None] * b * f * (1 - f)
    J = np.stack([-slope, slope * (problem.x - theta[:, :1]), f, 1 - f], 1)  # [N, 4, n]
    Jw = J * problem.w[:, None, :]
    H, rhs = Jw @ J.transpose(0, 2, 1), np.einsum("nki,ni->nk", Jw, residual)
    if problem.y0 is not None:
        H[:, 3, 3] += problem.w0
        rhs[:, 3] += problem.w0 * (problem.y0 - R0)
    fixed = np.zeros((len(f), 4), bool)
    fixed[:, 2], fixed[:, 3] = held, problem.r0 is not None
    H[np.broadcast_to(fixed[:, :, None] | fixed[:, None, :], H.shape)] = 0
    rhs[fixed] = 0
    diagonal = np.einsum("nkk->nk", H)  # a view: writes go to H
    scale = diagonal[:, :2].copy()
    diagonal += fixed + 1e-14 * diagonal.max(1, keepdims=True) + 1e-300
    diagonal[:, :2] += damping[:, None] * scale
    return solve_linear(H, rhs[..., None])[:, :2, 0]


def _gauss_newton(
    problem: Problem, theta: Floats, bounds: Floats, *, rounds: int = 60
) -> tuple[Floats, Floats, Floats, np.ndarray]:
    """Theta [N, 2], (A, R0) [N, 2], RSS [N], «A held at 1» [N]; settled curves drop out."""
    theta = np.clip(theta, bounds[0], bounds[1])
    f, beta, rss, top, residual = _evaluate(problem, theta)
    damping = np.full(len(theta), 1e-3)
    open_ = np.arange(len(theta))
    for _ in range(rounds):
        part = problem.rows(open_)
        held = top[open_] | (problem.A is not None)
        step = _step(
            part, theta[open_], f[open_], beta[open_], residual[open_], held, damping[open_]
        )
        new = np.clip(theta[open_] + np.clip(step, -1.0, 1.0), bounds[0], bounds[1])
        moved = np.abs(new - theta[open_]).max(1)
        f_new, beta_new, rss_new, top_new, residual_new = _evaluate(part, new)
        better = rss_new <= rss[open_]
        took = open_[better]
        theta[took], f[took], beta[took] = new[better], f_new[better], beta_new[better]
        rss[took], top[took], residual[took] = (
            rss_new[better],
            top_new[better],
            residual_new[better],
        )
        damping[open_] = np.clip(
            np.where(better, damping[open_] * 0.1, damping[open_] * 10), 1e-15, 1e8
        )
        open_ = open_[(moved > 1e-10) & (damping[open_] < 1e8)]
        if not len(open_):
            break
    return theta, beta, rss, top
