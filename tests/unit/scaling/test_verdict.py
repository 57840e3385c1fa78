"""What a fit may claim: a bound where there is no ceiling, a word where a check was not run."""

import numpy as np
import pytest

from scalerl import scaling
from scalerl.scaling.posterior import Observed
from scalerl.scaling.sigmoid import sigmoid
from scalerl.scaling.verdict import no_gain

from .simulate import ar1, planted

WIDE = np.linspace(1500.0, 12000.0, 24)
SHORT = np.linspace(400.0, 2600.0, 14)
"""To C_mid: the ceiling cannot be told."""


def noisy(compute, seed=0, **parameters):
    noise = ar1(np.random.default_rng(seed), (1, len(compute)))[0]
    return planted(compute, noise=noise, **parameters)


def test_not_identified_prints_a_bound_and_nothing_two_sided():
    fit = scaling.fit(noisy(SHORT), predict=[4000.0, 26000.0], targets=[0.55])
    assert fit.status == "not_identified"
    near, far = fit.predictions
    assert near.estimate is not None  # within twice the window
    assert far.estimate is None
    assert far.low is not None  # JSON keeps the interval
    lines = fit.summary().splitlines()
    (A,) = (line for line in lines if line.startswith("A "))
    assert A.split() == ["A", "-", "at", "least", f"{fit.A.low:.3f}"]
    assert not [line for line in lines if line.startswith(("B ", "C_mid"))]
    (far_line,) = (line for line in lines if line.lstrip().startswith("26000"))
    assert "..." not in far_line
    assert f"at least {far.low:.3f}" in far_line
    (target,) = (line for line in lines if line.lstrip().startswith("0.550"))
    assert "..." not in target
    assert "only a bound" in fit.summary()


def test_a_held_ceiling_keeps_its_table_and_forecasts():
    fit = scaling.fit(noisy(SHORT), fix_ceiling=0.61, predict=[26000.0])
    assert fit.predictions[0].estimate is not None
    assert "C_mid" in fit.summary()


def test_windows_print_a_bound_where_that_is_all():
    rows = scaling.window_table(noisy(SHORT))
    assert rows[0].status == "not_identified"
    text = scaling.window_lines(rows, "gpu_hours")
    assert "at least" in text
    assert "..." not in text


@pytest.mark.parametrize("n", [5, 6, 7])
def test_fewer_than_8_points_are_weak_at_most(n):
    compute = np.linspace(1500.0, 16000.0, n)
    fit = scaling.fit(planted(compute), r0=0.4)
    assert fit.status == "weak"
    assert "fewer than 8 points" in " ".join(fit.reasons)
    assert scaling.fit(planted(np.linspace(1500.0, 16000.0, 8)), r0=0.4).status == "identified"


def test_a_curve_that_ends_below_its_start_is_not_called_flat():
    y = [0.45, 0.50, 0.55, 0.54, 0.50, 0.46, 0.43]
    fit = scaling.fit(scaling.curve_from_points(np.r_[0, WIDE[:7]], np.r_[0.40, y]))
    assert fit.status == "no_gain"
    assert "ends below where it began: 0.450 at first, 0.550 at best, 0.430" in fit.reasons[0]
    flat = 0.4 + ar1(np.random.default_rng(1), (1, 12))[0]
    level = scaling.fit(scaling.curve_from_points(WIDE[:12], flat), r0=0.4)
    assert "flat" in level.reasons[0]


@pytest.mark.parametrize("n", [16, 24, 40])
def test_a_plateau_under_correlated_noise_does_not_end_below_where_it_began(n):
    """.6 over R0 = .4, SD .004, neighbours correlated .5."""
    x = np.log(np.linspace(6000.0, 16000.0, n))
    plateaus = 0.6 + ar1(np.random.default_rng(5), (400, n))
    reasons = [no_gain(Observed(x=x, y=y, w=np.ones(n), step0=0.4)) for y in plateaus]
    assert not [r for r in reasons if r and "ends below" in r]
    # what is left are slopes that the trend test takes for a fall
    assert sum(r is not None for r in reasons) <= 0.06 * len(reasons)


@pytest.mark.parametrize("n", [7, 16, 24, 40])
def test_a_flat_curve_under_correlated_noise_is_seldom_said_to_end_lower(n):
    x = np.log(np.linspace(6000.0, 16000.0, n))
    flats = 0.4 + ar1(np.random.default_rng(6), (400, n))
    reasons = [no_gain(Observed(x=x, y=y, w=np.ones(n), step0=0.4)) or "" for y in flats]
    assert sum("ends below" in r for r in reasons) <= 0.08 * len(reasons)


@pytest.mark.parametrize("R0", [0.05, 0.4])
def test_falls_under_correlated_noise_are_said(R0):
    x = np.log(np.linspace(1500.0, 16000.0, 24))
    shapes = {
        "falls over": np.linspace(0.60, 0.57, 24),
        "ends below": np.r_[np.linspace(R0 + 0.1, 0.6, 12), np.linspace(0.6, R0 + 0.02, 12)],
    }
    noise = ar1(np.random.default_rng(7), (200, 24))
    for words, shape in shapes.items():
        reasons = [no_gain(Observed(x=x, y=shape + e, w=np.ones(24), step0=R0)) for e in noise]
        assert np.mean([r is not None for r in reasons]) >= 0.95, words
        assert any(words in (r or "") for r in reasons)


def test_rolling_origins_that_could_not_be_run_are_said():
    few = scaling.fit(noisy(np.linspace(1500.0, 16000.0, 8)))
    assert few.origins == ()
    assert "not checked by a refit on the first 50% and 75%" in " ".join(few.reasons)
    some = scaling.fit(noisy(np.linspace(1500.0, 16000.0, 10)))
    assert some.origins == ()
    many = scaling.fit(noisy(WIDE))
    assert [o.share for o in many.origins] == [0.5, 0.75]
    assert "not checked" not in " ".join(many.reasons)


def test_a_second_rise_is_unstable_by_its_rolling_origins():
    y = sigmoid(WIDE, A=0.50, B=3.0, C_mid=2000.0, R0=0.40)
    y[14:] += np.linspace(0.0, 0.12, 10)
    y += 0.003 * np.random.default_rng(0).standard_normal(24)
    fit = scaling.fit(scaling.curve_from_points(np.r_[0, WIDE], np.r_[0.40, y]))
    failed = [o for o in fit.origins if o.failed]
    assert failed
    assert failed[0].p_value < 0.01
    assert failed[0].error > 0.015  # the later part lies above its forecast
    assert fit.status in ("unstable", "not_identified")
    assert "misses the later" in " ".join(fit.reasons)


def test_status_unstable_of_a_late_step():
    C = np.linspace(1500.0, 16000.0, 40)
    y = sigmoid(C, A=0.55, B=3.0, C_mid=1500.0, R0=0.40)
    y[30:] += 0.02
    y += ar1(np.random.default_rng(3), (1, 40), sd=0.002)[0]
    fit = scaling.fit(scaling.curve_from_points(np.r_[0, C], np.r_[0.40, y]))
    assert [o.failed for o in fit.origins] == [False, True]
    assert fit.status == "unstable"
    assert "unstable" in fit.summary()
    assert fit.A.estimate is not None


def test_a_fit_cannot_be_written_into():
    fit = scaling.fit(noisy(WIDE))
    for array in (fit.draws.A, fit.draws.weight, fit.row_weight, fit.data.pass_rate):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


# --- settings -------------------------------------------------------------------------------------


def test_without_the_prior_a_poor_curve_tells_less_of_b():
    curve = noisy(SHORT)
    with_prior, without = scaling.fit(curve), scaling.fit(curve, prior_b=False)
    assert not without.settings.prior_b
    wide, narrow = (np.log(f.B.high / f.B.low) for f in (without, with_prior))
    assert wide > narrow
    # on a good curve the data drown it
    good = [scaling.fit(noisy(WIDE), prior_b=p) for p in (True, False)]
    assert good[0].B.estimate == pytest.approx(good[1].B.estimate, rel=1e-9)
    assert good[0].B.low == pytest.approx(good[1].B.low, rel=0.05)


def test_a_fixed_ceiling_is_held_and_b_found_there():
    fit = scaling.fit(planted(WIDE), r0=0.4, fix_ceiling=0.61)
    assert (fit.A.estimate, fit.A.low, fit.A.high) == (0.61, 0.61, 0.61)
    assert fit.B.estimate == pytest.approx(1.92, rel=1e-6)
    assert fit.C_mid.estimate == pytest.approx(2542.0, rel=1e-6)
    assert fit.status == "identified"
    assert "with the ceiling held at 0.61" in fit.summary()
    # a ceiling held too high makes the same points look slower: B falls, C_mid grows
    high = scaling.fit(planted(WIDE), r0=0.4, fix_ceiling=0.65)
    assert high.B.estimate < 1.92
    assert high.C_mid.estimate > 2542.0
