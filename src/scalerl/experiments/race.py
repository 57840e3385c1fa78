"""A race between variants: after each round, who may still have the best ceiling goes on.

    P_v = P(A_v is the largest of all A | curves so far, spread between runs)
    v stops when P_v < bound; the one with the largest P_v never stops

The ceilings' posteriors are those of a comparison: pooled over seeds, with the spread between runs.
A ceiling that cannot be told yet has a wide posterior, so its variant goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.draws import normal_scores
from scalerl.scaling.fit import fit
from scalerl.scaling.replicates import RunSpread, recipe_ceiling, run_spread
from scalerl.scaling.result import Fit
from scalerl.scaling.sigmoid import Floats

FEWEST = 8
"""Evaluations of a curve without a gain from which its level says something about its ceiling."""

Decision = tuple[float | None, bool]
"""P(best ceiling), None where nothing can be told yet; and whether the variant goes on."""


def decide(p_best: Mapping[str, float | None], bound: float) -> dict[str, Decision]:
    """Who goes on: the leader, everyone above the bound, and everyone nothing is known of."""
    known = {name: p for name, p in p_best.items() if p is not None}
    leader = max(known, key=lambda name: known[name]) if known else None
    return {name: (p, p is None or p >= bound or name == leader) for name, p in p_best.items()}


def p_best(groups: Mapping[str, Sequence[Fit]]) -> dict[str, float | None]:
    """P(best ceiling) of each variant from the fits of its runs; None without a posterior."""
    spread = run_spread(list(groups.values()))
    draws = {
        name: ceiling(fits, spread, seed) for seed, (name, fits) in enumerate(groups.items(), 1)
    }
    known = {name: d for name, d in draws.items() if d is not None}
    shares = dict(zip(known, best_shares(list(known.values())), strict=True))
    return {name: shares.get(name) for name in draws}


def best_shares(draws: Sequence[Floats]) -> list[float]:
    """For each variant's draws [D] of its ceiling, in how many of them it is the largest."""
    if not draws:
        return []
    winner = np.argmax(np.stack(draws), axis=0)
    return [float(np.mean(winner == i)) for i in range(len(draws))]


def ceiling(fits: Sequence[Fit], spread: RunSpread, seed: int) -> Floats | None:
    """Draws [D] of a variant's ceiling; a variant that gains nothing stays where it is.

    Runs without a gain count as much as the others: to leave a collapsed run out would flatter its
    variant. Their ceiling is the mean of their last third. Where some runs rise and others do not,
    the share of those that rise is drawn, too: m + 1/2 against n + 1/2 of a beta distribution.
    """
    usable = [f for f in fits if f.draws is not None]
    flat = [f for f in fits if f.status == "no_gain" and f.n_points >= FEWEST]
    rising = recipe_ceiling(usable, spread, seed)
    if not flat:
        return rising
    scores = normal_scores(len(spread.draws))
    rng = np.random.default_rng(1000 + seed)
    ends = [float(f.data.pass_rate[-max(3, f.n_points // 3) :].mean()) for f in flat]
    level = np.mean([e + spread.draws * rng.permutation(scores) for e in ends], axis=0)
    if rising is None:
        return level
    share = rng.beta(len(usable) + 0.5, len(flat) + 0.5, len(level))
    return np.asarray(share * rising + (1 - share) * level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a race would have done with runs that were all finished."""

    race: str
    """Whom the race would have picked."""
    grid: str
    """Whom the full grid picks."""
    saved: float
    """Share of the steps that would not have been run."""
    stopped: dict[str, float]
    """Variant → share of its budget at which it would have stopped."""

    def words(self) -> str:
        stops = ", ".join(f"{n} at {share:.0%}" for n, share in self.stopped.items()) or "nobody"
        same = "as the full grid does" if self.race == self.grid else f"the full grid {self.grid}"
        return (
            f"A race would have picked {self.race}, {same}, with {self.saved:.0%} of the steps "
            f"saved; stopped: {stops}"
        )


def replay(
    curves: Mapping[str, Sequence[Curve]], rounds: Sequence[float], bound: float
) -> Replay | None:
    """Race finished runs, each seen up to the round's share of its steps; None without a curve.

    Curves need their steps. The last round decides nothing: it is where the race ends.
    """
    curves = {name: runs for name, runs in curves.items() if runs}
    if not curves:
        return None
    alive = dict(curves)
    stopped: dict[str, float] = {}
    for share in rounds[:-1]:
        fits = {name: [fit(_until(c, share)) for c in runs] for name, runs in alive.items()}
        for name, (_, goes_on) in decide(p_best(fits), bound).items():
            if not goes_on:
                stopped[name] = share
                del alive[name]
    whole = {name: [fit(c) for c in runs] for name, runs in curves.items()}
    runs = sum(len(r) for r in curves.values())
    saved = sum((1 - share) * len(curves[name]) for name, share in stopped.items()) / runs
    return Replay(
        race=_first(p_best({name: whole[name] for name in alive})),
        grid=_first(p_best(whole)),
        saved=saved,
        stopped=stopped,
    )


def _until(curve: Curve, share: float) -> Curve:
    if curve.step is None:
        raise InputError(f"curve {curve.name!r} has no steps to tell a round's share by")
    keep = curve.step <= share * curve.step[-1]
    keep[0] = True  # a curve has at least one evaluation
    return curve.select(keep)


def _first(chances: Mapping[str, float | None]) -> str:
    return max(chances, key=lambda name: chances[name] or 0.0)
