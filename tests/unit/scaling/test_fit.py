"""Fits recover what was planted, agree with SciPy, and say so when the data cannot tell."""

import json

import numpy as np
import pytest
from scipy.optimize import least_squares

from scalerl import scaling
from scalerl.errors import InputError
from scalerl.scaling.sigmoid import sigmoid

from .simulate import PAPER, ar1, planted

WIDE = np.linspace(1500.0, 12000.0, 24)


def scipy_fit(C, y, r0):
    """Eight starts of SciPy's trust-region least squares: an independent answer."""
    best = None
    for m in np.log(np.quantile(C, [0.1, 0.4, 0.7, 1.0])):
        for log_b in (0.0, 1.0):
            found = least_squares(
                lambda p: sigmoid(C, A=p[0], B=np.exp(p[2]), C_mid=np.exp(p[1]), R0=r0) - y,
                [y.max(), m, log_b],
                xtol=1e-15,
                ftol=1e-15,
                gtol=1e-15,
            )
            if best is None or found.cost < best.cost:
                best = found
    return best.x[0], np.exp(best.x[2]), np.exp(best.x[1])


def test_sigmoid_literals():
    # half the gain at C_mid; at 3 C_mid with B = 1 three quarters: .4 + .2 * .75
    assert sigmoid(2542.0, **PAPER) == pytest.approx(0.505, abs=1e-15)
    assert sigmoid(6.0, A=0.6, B=1.0, C_mid=2.0, R0=0.4) == pytest.approx(0.55, abs=1e-15)
    assert sigmoid(0.0, **PAPER) == 0.40
    assert scaling.compute_to_target(0.55, A=0.6, B=1.0, C_mid=2.0, R0=0.4) == pytest.approx(6.0)
    assert np.isinf(scaling.compute_to_target(0.6, A=0.6, B=1.0, C_mid=2.0, R0=0.4))
    assert scaling.compute_to_target(0.39, A=0.6, B=1.0, C_mid=2.0, R0=0.4) == 0


@pytest.mark.parametrize("r0", [0.40, "step0", "free"])
def test_noise_free_curve_is_recovered(r0):
    fit = scaling.fit(planted(WIDE), r0=r0)
    assert fit.status == "identified"
    for name, truth in PAPER.items():
        interval = getattr(fit, name)
        assert interval.estimate == pytest.approx(truth, rel=1e-6)
        assert interval.low <= interval.estimate <= interval.high


def test_point_fits_agree_with_scipy():
    rng = np.random.default_rng(0)
    y = sigmoid(WIDE, **PAPER) + ar1(rng, (12, 24))
    ours = scaling.fit_points(WIDE, y, r0=0.4)
    for i in range(12):
        A, B, C_mid = scipy_fit(WIDE, y[i], 0.4)
        assert ours.A[i] == pytest.approx(A, abs=1e-6)
        assert ours.B[i] == pytest.approx(B, rel=1e-5)
        assert ours.C_mid[i] == pytest.approx(C_mid, rel=1e-5)


@pytest.mark.parametrize("unit", [1.0, 1e21, 1e-6])
def test_case_h05_any_unit(unit):
    """Data-driven starts in log C: the case where curve_fit fails or returns nonsense."""
    C = np.geomspace(10, 4000, 9) * unit
    curve = scaling.curve_from_points(C, sigmoid(C, A=0.6, B=1.2, C_mid=300 * unit, R0=0.1))
    fit = scaling.fit(curve, r0=0.1)
    assert fit.A.estimate == pytest.approx(0.6, rel=0.01)
    assert fit.B.estimate == pytest.approx(1.2, rel=0.01)
    assert fit.C_mid.estimate == pytest.approx(300 * unit, rel=0.01)


def test_forecast_of_the_second_half():
    noise = ar1(np.random.default_rng(4), (1, 24))[0]
    curve = planted(WIDE, noise=noise)
    fit = scaling.fit(curve, max_compute=7000, predict=[12000.0])
    check = scaling.check_forecast(fit, curve)
    assert (fit.n_points, check.n_later) == (13, 11)
    assert check.n_inside == 11
    assert abs(check.mean_error) < 0.01
    (p,) = fit.predictions
    assert p.observation_low < p.low < p.estimate < p.high < p.observation_high


def test_json_round_trip_predicts_the_same():
    curve = planted(WIDE, noise=ar1(np.random.default_rng(1), (1, 24))[0])
    fit = scaling.fit(curve, predict=[2e4], targets=[0.58])
    again = scaling.Fit.from_dict(json.loads(json.dumps(fit.to_dict(), allow_nan=False)))
    assert again.to_dict() == fit.to_dict()
    ours, theirs = fit.predict([3e4, 5e3]), again.predict([3e4, 5e3])
    for name in ("estimate", "median", "low", "high", "observation_low", "observation_high"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def test_json_names_a_missing_key():
    saved = scaling.fit(planted(WIDE)).to_dict()
    del saved["settings"]
    with pytest.raises(InputError, match="settings"):
        scaling.Fit.from_dict(saved)


@pytest.mark.parametrize(
    ("y", "status", "words"),
    [
        (np.full(9, 0.4), "no_gain", "flat"),
        (np.linspace(0.6, 0.4, 9), "no_gain", "falls"),
        (np.linspace(0.41, 0.5, 9), "not_identified", "only bounded"),
    ],
)
def test_case_h06_curves_without_a_ceiling(y, status, words):
    curve = scaling.curve_from_points(np.linspace(1000, 9000, 9), y)
    fit = scaling.fit(curve, r0=0.4)
    assert fit.status == status
    assert words in " ".join(fit.reasons)
    assert fit.A.estimate is None
    assert words in fit.summary()


def test_three_points_get_a_verdict_without_an_interval():
    curve = scaling.curve_from_points([0, 1, 2, 3], [0.4, 0.45, 0.5, 0.55])
    fit = scaling.fit(curve)
    assert fit.status == "not_identified"
    assert (fit.A.estimate, fit.A.low, fit.A.high) == (None, None, None)
    assert "at least" in fit.reasons[0]
    assert np.isnan(fit.predict([10]).low).all()


def test_glitch_is_named_and_held_off():
    y = np.array(planted(WIDE, noise=ar1(np.random.default_rng(2), (1, 24))[0]).pass_rate)
    y[10] -= 0.2
    curve = scaling.curve_from_points(np.r_[0, WIDE], np.r_[0.4, y])
    fit = scaling.fit(curve)
    assert fit.robust is not None
    assert abs(fit.robust.A - 0.61) < 0.01
    clean = scaling.fit(planted(WIDE, noise=ar1(np.random.default_rng(2), (1, 24))[0]))
    assert fit.A.width < 1.5 * clean.A.width  # the glitch does not blow up the noise either
    assert f"{WIDE[10]:.6g}" in " ".join(fit.reasons)


def test_ceiling_stays_at_or_below_one():
    y = sigmoid(WIDE, A=1.3, B=1.5, C_mid=12000, R0=0.4)
    fit = scaling.fit(scaling.curve_from_points(WIDE, y), r0=0.4)
    assert fit.A.high <= 1.0
    assert "upper bound" in " ".join(fit.reasons)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r0": "step0"}, "no step-0 evaluation"),
        ({"r0": 1.2}, "r0"),
        ({"r0": 0.4, "fix_ceiling": 0.3}, "not above R0"),
        ({"min_compute": 1e9}, "no evaluation inside the window"),
        ({"min_compute": 5000.0, "max_compute": 2000.0}, "not below"),
        ({"predict": [0.0]}, "above 0"),
        ({"targets": [1.5]}, "between 0 and 1"),
        ({"method": "magic"}, "method"),
    ],
)
def test_contradicting_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        scaling.fit(planted(WIDE, step0=None), **settings)
