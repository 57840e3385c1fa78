"""Posterior of the compute curve on a grid that zooms in, AR(1) noise marginalised.

    y_i = R(C_i) + e_i,   e ~ Normal(0, sigma^2 rho^|i-j|)

A and R0 are linear and sigma a scale: given (log C_mid, log B, rho) they are integrated in closed
form. The prior is 1/sigma, times a weak normal on log B, times the square root of Jeffreys' prior
of the curve on R0 < A <= 1. (A flat prior gives high ceilings, of which there are many, too much
say: with R0 free its intervals for A cover 81 %, these 91 %, and these are narrower.) What is left
is two-dimensional and is found by a grid that moves and zooms until it frames the mass; weighted
draws from its cells carry every further question. Wald, profile and bootstrap intervals cover 71
to 79 % where 90 % is claimed, because evaluations of neighbouring checkpoints err together.

Shapes: `K` grid nodes, `Q` values of rho, `D` draws, `n` evaluations.
"""

# A, B and R0 are the paper's symbols, not constants.
# pyright: reportConstantRedefinition=false

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scalerl.scaling.draws import Draws
from scalerl.scaling.least_squares import PointFits, Problem, solve
from scalerl.scaling.sigmoid import Floats
from scalerl.scaling.special import expit, gammaincinv, log_ndtr, ndtr, ndtri

RHO = np.linspace(0.0, 0.9, 10)
"""Lag-1 correlations that are marginalised, all equally likely beforehand."""
JEFFREYS_POWER = 0.5
"""1 would be Jeffreys' own prior, which denies high ceilings when only the start was seen."""
LOG_B_PRIOR = (float(np.log(2.0)), 0.8)
"""Weak prior on log B: mean and SD. The 40 published B lie in 1.09 to 5.17, median 1.9."""
LOG_B_LIMITS = (float(np.log(0.2)), float(np.log(15.0)))
LOG_C_MID_MARGIN = float(np.log(50.0))
FREE_R0_SD = 0.5
"""A free R0 is within about this of the first pass rate: enough to keep it finite."""
SIGMA_FLOOR = 1e-8
"""Below this the residuals are rounding, not noise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """What the posterior is conditioned on. `x`, `y`, `w` [n]; one of R0's three forms."""

    x: Floats
    """log compute."""
    y: Floats
    w: Floats
    """Relative precision; 1 is one evaluation."""
    R0: float | None = None
    """R0 held at a value."""
    step0: float | None = None
    """The step-0 evaluation, an observation of R0."""
    A: float | None = None
    """Ceiling held at a value."""
    prior_b: bool = True

    @property
    def unknown(self) -> int:
        """How many of A and R0 are solved for."""
        return int(self.A is None) + int(self.R0 is None)

    @property
    def n_observed(self) -> int:
        return len(self.x) + int(self.step0 is not None)

    def problem(self) -> Problem:
        """The same data as a least-squares problem of one curve."""
        one = np.ones(1)
        return Problem(
            self.x,
            self.y[None],
            self.w[None],
            None if self.R0 is None else one * self.R0,
            self.A,
            None if self.step0 is None else one * self.step0,
            one,
        )


class _Forms(NamedTuple):
    """Inner products a' S^-1 b of f (with itself, with 1, with y), of 1 and of y; all broadcast."""

    ff: Floats
    f1: Floats
    fy: Floats
    one: Floats
    oney: Floats
    yy: Floats


class _Marginal(NamedTuple):
    """The closed-form part at each (log C_mid, log B, rho): density, conditional of A and R0."""

    log_density: Floats
    rss: Floats
    A: Floats
    R0: Floats
    var_A: Floats
    """Variance of A over sigma^2."""
    cov_over_var: Floats
    """Slope of R0 on A."""
    var_R0_given_A: Floats
    """Variance of R0 given A over sigma^2."""


class _Evaluator:
    """Data with its constant sums, so that each node costs a few passes over its n shares."""

    def __init__(self, data: Observed, best: PointFits) -> None:
        self.data = data
        self.root = np.sqrt(data.w)
        self.centre = float(
            np.average(data.y, weights=data.w)
        )  # less cancellation in sums of squares
        self.yw = (data.y - self.centre) * self.root
        self.constant = [
            _chain(a, b)
            for a, b in ((self.root, self.root), (self.root, self.yw), (self.yw, self.yw))
        ]
        self.nu = data.n_observed - data.unknown
        variance = float(best.rss[0]) / max(self.nu - 2, 1)
        self.free_weight = float(np.clip(variance / FREE_R0_SD**2, 1e-10, 1e-2))

    def forms(self, theta: Floats, rho: Floats, *, outer: bool) -> _Forms:
        """Inner products at nodes [K] and rho [Q]: [K, Q] when `outer`, else node by node."""
        f = expit(np.exp(theta[:, 1:]) * (self.data.x - theta[:, :1])) * self.root  # [K, n]
        c = ((1 + rho**2) / (1 - rho**2), rho**2 / (1 - rho**2), rho / (1 - rho**2))

        def mix(parts: tuple[Floats, Floats, Floats]) -> Floats:
            if outer:
                parts = (parts[0][..., None], parts[1][..., None], parts[2][..., None])
            return c[0] * parts[0] - c[1] * parts[1] - c[2] * parts[2]

        squares = (
            np.einsum("ki,ki->k", f, f),
            f[:, 0] ** 2 + (f[:, -1] ** 2 if f.shape[1] > 1 else 0),
            2 * np.einsum("ki,ki->k", f[:, 1:], f[:, :-1]),
        )
        one, oney, yy = (mix(p) for p in self.constant)
        return _Forms(
            mix(squares), mix(_chain(f, self.root)), mix(_chain(f, self.yw)), one, oney, yy
        )

    def marginal(self, theta: Floats, rho: Floats, *, outer: bool) -> _Marginal:
        """Log density of (log C_mid, log B, rho), A, R0, sigma integrated; bounds on A aside."""
        q, d = self.forms(theta, rho, outer=outer), self.data
        ff, fg, gg = q.ff, q.f1 - q.ff, q.one - 2 * q.f1 + q.ff
        fy, gy, yy = q.fy, q.oney - q.fy, q.yy
        if d.step0 is not None:
            y0 = d.step0 - self.centre
            gg, gy, yy = gg + 1.0, gy + y0, yy + y0**2
        elif d.R0 is None:  # a free R0 needs some end where every point is on the plateau
            gg, gy = gg + self.free_weight, gy + self.free_weight * (d.y[0] - self.centre)
        zero = np.zeros(np.broadcast(ff, fy).shape)
        if d.A is None and d.R0 is None:
            det = np.maximum(ff * gg - fg**2, 1e-13 * ff * gg + 1e-300)
            A, R0 = (fy * gg - gy * fg) / det, (ff * gy - fg * fy) / det
            rss, volume = yy - A * fy - R0 * gy, det
            var_A, slope, var_R0 = gg / det, -fg / gg, 1 / gg
        elif d.A is None:
            R0 = zero + (d.R0 or 0.0) - self.centre
            ff = np.maximum(ff, 1e-300)
            A = (fy - R0 * fg) / ff
            rss, volume = yy - 2 * R0 * gy + R0**2 * gg - A**2 * ff, ff
            var_A, slope, var_R0 = 1 / ff, zero, zero
        elif d.R0 is None:
            A = zero + d.A - self.centre
            R0 = (gy - A * fg) / gg
            rss, volume = yy - 2 * A * fy + A**2 * ff - R0**2 * gg, gg
            var_A, slope, var_R0 = zero, zero, 1 / gg
        else:
            A, R0 = zero + d.A - self.centre, zero + d.R0 - self.centre
            rss = yy - 2 * A * fy - 2 * R0 * gy + A**2 * ff + 2 * A * R0 * fg + R0**2 * gg
            volume, var_A, slope, var_R0 = zero + 1, zero, zero, zero
        rss = np.maximum(rss, 0) + self.nu * SIGMA_FLOOR**2
        log_density = (
            -0.5 * (len(d.x) - 1) * np.log1p(-(rho**2))
            - 0.5 * np.log(volume)
            - 0.5 * self.nu * np.log(rss)
        )
        if d.prior_b:
            log_b = theta[:, 1:] if outer else theta[:, 1]
            log_density = log_density - 0.5 * ((log_b - LOG_B_PRIOR[0]) / LOG_B_PRIOR[1]) ** 2
        return _Marginal(log_density, rss, A + self.centre, R0 + self.centre, var_A, slope, var_R0)

    def information(self, theta: Floats) -> Floats:
        """Log of the square root of det(J'J), gain aside: [K]. J has a column for each unknown.

        J = (f, 1 - f, dR/dlog C_mid, dR/dlog B); the last two are per unit of gain A - R0.
        """
        d = self.data
        z = np.exp(theta[:, 1:]) * (d.x - theta[:, :1])
        f = expit(z)
        bell = f * (1 - f) * self.root
        f, g = f * self.root, (1 - f) * self.root
        dm, db = np.exp(theta[:, 1:]) * bell, z * bell

        def dot(a: Floats, b: Floats) -> Floats:
            return np.einsum("ki,ki->k", a, b)

        mm, mb, bb = dot(dm, dm), dot(dm, db), dot(db, db)
        log_volume = np.zeros(len(theta))
        extra = 0.0 if d.R0 is not None else 1.0 if d.step0 is not None else self.free_weight
        columns = ([(g, extra)] if d.R0 is None else []) + ([(f, 0.0)] if d.A is None else [])
        if columns:  # project the first linear column out of everything, then the second
            first, more = columns[0]
            aa, am, ab = dot(first, first) + more, dot(first, dm), dot(first, db)
            aa = np.maximum(aa, 1e-300)
            if len(columns) == 2:
                ff, fa = dot(f, f), dot(f, first)
                left = np.maximum(ff - fa**2 / aa, 1e-13 * ff + 1e-300)
                fm, fb = dot(f, dm) - fa * am / aa, dot(f, db) - fa * ab / aa
                mm, mb, bb = mm - fm**2 / left, mb - fm * fb / left, bb - fb**2 / left
                log_volume += np.log(left)
            mm, mb, bb = mm - am**2 / aa, mb - am * ab / aa, bb - ab**2 / aa
            log_volume += np.log(aa)
        det = np.maximum(mm * bb - mb**2, 1e-13 * np.abs(mm * bb) + 1e-300)
        return 0.5 * (log_volume + np.log(det))

    def grid_density(self, theta: Floats) -> Floats:
        """Log density at nodes [K] and rho [Q], the bounds R0 < A <= 1 included approximately."""
        m = self.marginal(theta, RHO, outer=True)
        gain = np.maximum(np.minimum(m.A, 1.0) - m.R0, 1e-3)
        prior = JEFFREYS_POWER * (self.information(theta)[:, None] + 2 * np.log(gain))
        if self.data.A is not None:
            return m.log_density + prior
        scale = np.sqrt(m.rss / self.nu * m.var_A) + 1e-300
        gain_scale = scale * np.abs(1 - m.cov_over_var)
        inside = ndtr((1 - m.A) / scale) - ndtr(-(m.A - m.R0) / np.maximum(gain_scale, 1e-300))
        return m.log_density + prior + np.log(np.maximum(inside, 1e-30))


def _chain(a: Floats, b: Floats) -> tuple[Floats, Floats, Floats]:
    """Sums over i of a_i b_i; over both ends; over neighbours both ways: AR(1) needs only these."""
    both = a[..., 0] * b[..., 0] + (a[..., -1] * b[..., -1] if a.shape[-1] > 1 else 0)
    return (
        np.asarray((a * b).sum(-1)),
        np.asarray(both),
        np.asarray((a[..., :-1] * b[..., 1:] + a[..., 1:] * b[..., :-1]).sum(-1)),
    )


def _limits(x: Floats) -> Floats:
    return np.array(
        [
            [x.min() - LOG_C_MID_MARGIN, LOG_B_LIMITS[0]],
            [x.max() + LOG_C_MID_MARGIN, LOG_B_LIMITS[1]],
        ]
    )


def _nodes(box: Floats, shape: tuple[int, int]) -> Floats:
    """Centres of the cells of a box [2, 2]: [K, 2], the second axis fastest."""
    axes = [
        box[0, k] + (np.arange(shape[k]) + 0.5) * (box[1, k] - box[0, k]) / shape[k] for k in (0, 1)
    ]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)


def _summed(density: Floats) -> Floats:
    """Log of the sum over rho: [K]."""
    top = density.max(1)
    return top + np.log(np.exp(density - top[:, None]).sum(1))


def _frame(
    evaluator: _Evaluator,
    best: PointFits,
    *,
    shape: tuple[int, int] = (24, 24),
    drop: float = 9.0,
    rounds: int = 14,
) -> Floats:
    """The box [2, 2] of (log C_mid, log B) that holds the mass: zooms in and moves until it fits.

    Mass below e^-drop of the peak is left outside. A fixed coarse grid covers 47 to 71 %.
    """
    limits = _limits(evaluator.data.x)
    mode = np.clip([np.log(best.C_mid[0]), np.log(best.B[0])], limits[0], limits[1])
    peak = float(_summed(evaluator.grid_density(mode[None]))[0])
    box = limits
    for _ in range(rounds):
        cell = (box[1] - box[0]) / shape
        nodes = _nodes(box, shape)
        density = _summed(evaluator.grid_density(nodes))
        peak = max(peak, float(density.max()))
        kept = nodes[density > peak - drop]
        inside = np.all((mode >= box[0]) & (mode <= box[1]))
        kept = np.vstack([kept, mode[None]]) if inside or not len(kept) else kept
        low = np.clip(kept.min(0) - 1.5 * cell, limits[0], limits[1])
        high = np.clip(kept.max(0) + 1.5 * cell, limits[0], limits[1])
        settled = np.all(high - low > 0.6 * (box[1] - box[0]))
        box = np.stack([low, high])
        if settled:
            break
    return box


def draw(data: Observed, *, draws: int = 2048, shape: tuple[int, int] = (40, 40)) -> Draws:
    """Weighted draws of (A, B, C_mid, R0, sigma, rho) given a curve; the same data, the same draws.

    Cells of the zoomed grid are the proposal, uniform within a cell; the exact density at each draw
    over the proposal's is its weight. Deterministic: a low-discrepancy sequence, no random state.
    """
    best = solve(data.problem())
    evaluator = _Evaluator(data, best)
    box = _frame(evaluator, best)
    density = evaluator.grid_density(_nodes(box, shape))  # [K, Q]
    mass = _spread(np.exp(density - density.max()), shape).ravel()
    cumulative = np.cumsum(mass) / mass.sum()
    u = _sequence(draws, 6)
    pick = np.minimum(np.searchsorted(cumulative, u[:, 0]), len(mass) - 1)
    node, q = np.divmod(pick, len(RHO))
    cell = (box[1] - box[0]) / shape
    theta = _nodes(box, shape)[node] + (u[:, 1:3] - 0.5) * cell
    rho = RHO[q]
    m = evaluator.marginal(theta, rho, outer=False)
    sigma = np.sqrt(0.5 * m.rss / gammaincinv(0.5 * evaluator.nu, u[:, 3]))
    A, log_weight = _ceiling(m, sigma, u[:, 4], data)
    R0 = m.R0 + m.cov_over_var * (A - m.A) + sigma * np.sqrt(m.var_R0_given_A) * ndtri(u[:, 5])
    gain = np.maximum(A - R0, 1e-12)
    prior = JEFFREYS_POWER * (evaluator.information(theta) + 2 * np.log(gain))
    log_weight = log_weight + m.log_density + prior - np.log(mass[pick])
    log_weight = np.where((R0 < A) & (R0 > -1e-9), log_weight, -np.inf)
    weight = np.exp(log_weight - log_weight.max())
    return Draws(
        A=A,
        B=np.exp(theta[:, 1]),
        log_C_mid=theta[:, 0],
        R0=np.maximum(R0, 0.0),
        sigma=sigma,
        rho=rho,
        weight=weight / weight.sum(),
    )


def _ceiling(m: _Marginal, sigma: Floats, u: Floats, data: Observed) -> tuple[Floats, Floats]:
    """Draws of A from its conditional normal cut at 1, and log of the mass below 1: [D] each."""
    if data.A is not None:
        return m.A, np.zeros(len(u))
    scale = sigma * np.sqrt(m.var_A)
    z = (1 - m.A) / scale
    below = np.maximum(ndtr(z), 1e-300)
    A = np.minimum(m.A + scale * ndtri(u * below), 1.0)
    return A, log_ndtr(z)


def _spread(mass: Floats, shape: tuple[int, int]) -> Floats:
    """Half of the mass of each cell shared with its neighbours, so that no draw is impossible."""
    cells = mass.reshape(*shape, -1)
    padded = np.pad(cells, ((1, 1), (1, 1), (0, 0)))
    blurred = sum(padded[i : i + shape[0], j : j + shape[1]] for i in range(3) for j in range(3))
    return 0.5 * cells + blurred / 18.0


def _sequence(n: int, dimensions: int) -> Floats:
    """Additive-recurrence low-discrepancy points in (0, 1), [n, dimensions] (Roberts 2018)."""
    phi = 2.0
    for _ in range(40):
        phi = (1 + phi) ** (1 / (dimensions + 1))
    alpha = (1 / phi) ** np.arange(1, dimensions + 1)
    return np.clip((0.5 + np.arange(1, n + 1)[:, None] * alpha) % 1.0, 1e-12, 1 - 1e-12)
