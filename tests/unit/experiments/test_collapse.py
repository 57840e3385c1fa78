"""Collapses with planted ends: told from noise and from a plateau, and warned of in time."""

from __future__ import annotations

import numpy as np

from scalerl import scaling
from scalerl.experiments.collapse import fell_at, health, words

N = 30
STEP = np.arange(5.0, 5 * N + 1, 5)


def curve(rates: np.ndarray, name: str = "x", *, noise: float = 0.004) -> scaling.Curve:
    rng = np.random.default_rng(3)
    return scaling.Curve(
        name=name, compute=STEP, pass_rate=np.clip(rates + noise * rng.standard_normal(N), 0, 1),
        unit="flops", r0_observed=0.3, step=STEP,
    )  # fmt: skip


RISE = 0.3 + 0.4 * np.minimum(1, np.arange(1, N + 1) / 10)
FALL = RISE - 0.02 * np.maximum(0, np.arange(N) - 14)


def test_a_plateau_and_a_flat_run_have_not_collapsed():
    assert fell_at(curve(RISE)) is None
    assert fell_at(curve(np.full(N, 0.3))) is None


def test_a_fall_is_dated_where_a_quarter_of_the_gain_was_lost():
    """.1 of .4 is lost 5 evaluations after the fall begins; the mean of 3 lags by one."""
    at = fell_at(curve(FALL, noise=0.0005))
    assert at is not None
    assert 5 * 20 <= at <= 5 * 22


def test_a_dip_that_heals_is_no_collapse():
    dip = RISE.copy()
    dip[14:20] -= 0.2
    assert fell_at(curve(dip)) is None


def test_a_run_that_fell_below_its_start_and_only_came_back_to_it_has_collapsed():
    low = np.full(N, 0.3)
    low[:2], low[3:12] = 0.34, 0.18
    at = fell_at(curve(low))
    assert at is not None
    assert 20 <= at <= 30
    healed = low.copy()
    healed[12:] = RISE[12:]
    assert fell_at(curve(healed)) is None


def test_too_few_evaluations_say_nothing():
    short = curve(FALL).select(np.arange(N) < 5)
    assert fell_at(short) is None


def test_warnings_are_judged_by_lead_and_false_alarms():
    dip = RISE.copy()
    dip[14:20] -= 0.2
    found = health({"good": [curve(RISE, "a"), curve(dip, "b")], "bad": [curve(FALL, "c")]})
    state = {h.run: (h.collapsed, h.drawdown_at is not None) for h in found}
    assert state == {"a": (False, False), "b": (False, True), "c": (True, True)}
    (fallen,) = [h for h in found if h.collapsed]
    assert fallen.fell_at is not None
    assert fallen.drawdown_at is not None
    assert fallen.drawdown_at <= fallen.fell_at
    text = "\n".join(words(found))
    assert "red drawdown: warned of 1 of 1 collapses" in text
    assert "1 of 2 sound runs alarmed" in text


def test_nothing_is_said_where_nothing_happened():
    assert words(health({"good": [curve(RISE)]})) == []
