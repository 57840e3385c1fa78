"""A race keeps the planted winner, stops the others, and judges a flat run by where it is."""

from __future__ import annotations

import numpy as np
import pytest

from scalerl import scaling
from scalerl.experiments import race
from scalerl.scaling.replicates import run_spread

C = np.linspace(1500, 16000, 40)


def curve(A: float, seed: int, *, end: float = 16000, C_mid: float = 2500, sd: float = 0.004):
    rng = np.random.default_rng(seed)
    at = C[end >= C]
    truth = scaling.sigmoid(at, A=A + 0.0075 * rng.standard_normal(), B=1.9, C_mid=C_mid, R0=0.4)
    rates = truth + sd * rng.standard_normal(len(at))
    return scaling.Curve(
        name=f"A = {A}", compute=at, pass_rate=rates, unit="gpu_hours", r0_observed=0.4
    )


def fits(A: float, seeds: range, **changes):
    return [scaling.fit(curve(A, seed, **changes)) for seed in seeds]


def test_the_leader_and_all_above_the_bound_go_on():
    found = race.decide({"a": 0.9, "b": 0.06, "c": 0.04, "d": None}, 0.05)
    assert found == {"a": (0.9, True), "b": (0.06, True), "c": (0.04, False), "d": (None, True)}


def test_a_leader_below_the_bound_goes_on():
    many = {f"v{i}": 0.04 for i in range(25)}
    assert sum(on for _, on in race.decide(many, 0.05).values()) == 1


def test_the_planted_winner_stays_and_clear_losers_stop():
    groups = {"best": fits(0.65, range(3)), "mid": fits(0.60, range(3, 6))}
    groups["low"] = fits(0.52, range(6, 9))
    chances = race.p_best(groups)
    assert sum(p for p in chances.values() if p is not None) == pytest.approx(1)
    stopped = {n for n, (_, on) in race.decide(chances, 0.05).items() if not on}
    assert "best" not in stopped
    assert stopped == {"mid", "low"}


def test_what_cannot_be_told_yet_goes_on():
    """Before the midpoint a ceiling is wide open: a lower curve may still be the better one."""
    early = {"slow": fits(0.65, range(3), end=3500, C_mid=6000, sd=0.008)}
    early["fast"] = fits(0.60, range(3, 6), end=3500, C_mid=2000, sd=0.008)
    assert all(on for _, on in race.decide(race.p_best(early), 0.05).values())


def test_equal_variants_share_the_chance():
    chances = race.p_best({n: fits(0.6, range(10 * i, 10 * i + 3)) for i, n in enumerate("abc")})
    assert all(0.02 < p < 0.9 for p in chances.values() if p is not None)


def test_a_flat_run_stays_where_it_is():
    flat = scaling.Curve(
        name="flat", compute=C, pass_rate=np.full(len(C), 0.4), unit="gpu_hours", r0_observed=0.4
    )
    fitted = scaling.fit(flat)
    assert fitted.status == "no_gain"
    groups = [[fitted], fits(0.6, range(2))]
    draws = race.ceiling([fitted], run_spread(groups), 1)
    assert draws is not None
    assert float(np.median(draws)) == pytest.approx(0.4, abs=0.002)
    assert race.p_best({"flat": [fitted], "good": groups[1]})["flat"] == 0


def test_a_collapsed_replicate_lowers_its_variant():
    flat = scaling.Curve(
        name="flat", compute=C, pass_rate=np.full(len(C), 0.4), unit="gpu_hours", r0_observed=0.4
    )
    good = fits(0.6, range(2))
    spread = run_spread([good])
    with_it = race.ceiling([*good, scaling.fit(flat)], spread, 1)
    assert with_it is not None
    assert float(np.median(with_it)) == pytest.approx((0.6 + 0.6 + 0.4) / 3, abs=0.01)
    low, high = np.quantile(with_it, (0.05, 0.95))  # three runs tell little of how many collapse
    assert low < 0.47
    assert high > 0.58


def test_too_few_points_say_nothing():
    short = scaling.Curve(
        name="x", compute=C[:3], pass_rate=np.array([0.4, 0.4, 0.4]), unit="h", r0_observed=0.4
    )
    assert race.p_best({"x": [scaling.fit(short)]}) == {"x": None}


def test_a_replay_saves_the_losers_rest_and_picks_as_the_grid():
    def stepped(A: float, seed: int):
        one = curve(A, seed)
        return scaling.Curve(
            name=one.name, compute=one.compute, pass_rate=one.pass_rate, unit="h",
            r0_observed=0.4, step=np.arange(1.0, len(C) + 1),
        )  # fmt: skip

    curves = {"best": [stepped(0.65, i) for i in range(2)]}
    curves |= {"low": [stepped(0.52, i) for i in range(2, 4)], "none": []}
    found = race.replay(curves, (0.5, 1.0), 0.05)
    assert found is not None
    assert (found.race, found.grid) == ("best", "best")
    assert found.stopped == {"low": 0.5}
    assert found.saved == pytest.approx(0.25)  # half of the steps of half of the runs
    assert "as the full grid does, with 25% of the steps saved" in found.words()
    assert race.replay({"none": []}, (0.5, 1.0), 0.05) is None
