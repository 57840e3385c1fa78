"""Comparisons, warnings, windows and the F-transform."""

import copy
import json

import numpy as np
import pytest

from scalerl import scaling
from scalerl.errors import InputError
from scalerl.scaling.compare import paper_rule
from scalerl.scaling.replicates import RUN_SD, run_spread
from scalerl.scaling.result import Settings
from scalerl.scaling.sigmoid import sigmoid
from scalerl.scaling.warn import drawdown, noise_sd

from .simulate import PAPER, ar1, planted

C = np.linspace(1500.0, 16000.0, 40)


def run(seed, name="run", **parameters):
    """One noisy run with a step-0 evaluation."""
    noise = ar1(np.random.default_rng(seed), (1, 40))[0]
    curve = planted(C, noise=noise, **parameters)
    return scaling.Curve(
        name=name,
        compute=curve.compute,
        pass_rate=curve.pass_rate,
        unit=curve.unit,
        r0_observed=0.40,
    )


def test_clear_difference_of_ceilings():
    result = scaling.compare([run(0, "high"), run(1, "low", A=0.53)])
    assert [r.name for r in result.recipes] == ["high", "low"]
    (pair,) = result.pairs
    assert pair.higher_ceiling == "high"
    assert pair.p_higher > 0.95
    assert pair.delta_A.low < 0.08 < pair.delta_A.high
    assert "high has the higher ceiling" in result.verdicts[0]


def test_identical_recipes_cannot_be_told_apart():
    result = scaling.compare([run(2, "one"), run(3, "two")])
    (pair,) = result.pairs
    assert pair.higher_ceiling == "cannot tell"
    assert "cannot tell" in result.verdicts[0]
    assert pair.delta_A.low < 0 < pair.delta_A.high


def test_equal_ceilings_are_ranked_by_speed():
    result = scaling.compare([run(4, "slow"), run(5, "quick", C_mid=1800.0)])
    assert [r.name for r in result.recipes] == ["quick", "slow"]
    (pair,) = result.pairs
    assert pair.faster == "quick"
    # with everything else equal, compute to any pass rate scales with C_mid
    assert pair.compute_ratio.low < 2542 / 1800 < pair.compute_ratio.high


def test_curves_that_cross_cross_where_they_should():
    late = {"A": 0.65, "B": 2.0, "C_mid": 4000.0}
    early = {"A": 0.55, "B": 2.0, "C_mid": 1800.0}
    # .25 / (1 + (4000/C)^2) = .15 / (1 + (1800/C)^2) at C^2 = (.15 * 4000^2 - .25 * 1800^2) / .1
    truth = np.sqrt((0.15 * 4000**2 - 0.25 * 1800**2) / 0.1)
    (pair,) = scaling.compare([run(6, "late", **late), run(7, "early", **early)]).pairs
    assert pair.p_crossing > 0.99
    assert pair.crossing.low < truth < pair.crossing.high


def test_replicates_teach_the_spread_between_runs():
    alike = [scaling.fit(run(10 + i)) for i in range(4)]
    apart = [scaling.fit(run(20 + i, A=a)) for i, a in enumerate((0.55, 0.59, 0.63, 0.67))]
    none = run_spread([[alike[0]]])
    assert none.replicates == 0
    assert none.interval.estimate == pytest.approx(RUN_SD, rel=0.02)
    small, large = run_spread([alike]), run_spread([apart])
    assert small.replicates == 3
    assert small.interval.estimate < RUN_SD < large.interval.estimate
    # SD of the four planted ceilings is .0516
    assert large.interval.low < 0.0516 < large.interval.high


def test_replicates_narrow_the_recipe():
    one = scaling.compare({"a": [run(30)], "b": [run(40, A=0.58)]})
    four = scaling.compare(
        {"a": [run(30 + i) for i in range(4)], "b": [run(40 + i, A=0.58) for i in range(4)]}
    )
    assert four.pairs[0].delta_A.width < one.pairs[0].delta_A.width
    assert four.run_sd_from == 6


def test_a_ceiling_that_is_not_identified_is_not_ranked_by():
    short = run(50, "short").window(max_compute=2500.0)
    result = scaling.compare([short, run(51, "whole")])
    assert [r.name for r in result.recipes] == ["whole", "short"]
    (pair,) = result.pairs
    assert pair.higher_ceiling == "cannot tell"
    assert (pair.p_higher, pair.delta_A.estimate, pair.delta_A.low) == (None, None, None)
    assert "not identified" in result.verdicts[0]
    assert result.recipes[1].A.estimate is None
    text = result.summary()
    assert "P(higher)" not in text
    line = next(row for row in text.splitlines() if row.startswith("short "))
    assert "..." not in line
    assert "apart" not in text  # nor the paper's rule


def test_a_flat_curve_shows_no_gain_to_compare():
    flat = scaling.curve_from_points(
        np.r_[0, C], np.r_[0.4, np.full(40, 0.4)], unit="gpu_hours", name="flat"
    )
    result = scaling.compare([run(51, "whole"), flat])
    assert result.verdicts == (
        "whole and flat: flat shows no gain, so there is no ceiling to compare",
    )


def test_a_recipes_ceiling_is_at_most_1():
    result = scaling.compare([run(52, "high", A=0.995), run(53, "low")], run_sd=0.02)
    (high,) = (r for r in result.recipes if r.name == "high")
    assert high.A.high <= 1.0


def test_comparison_comes_back_from_json():
    result = scaling.compare([run(60, "x"), run(61, "y", A=0.55)])
    saved = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    again = scaling.Comparison.from_dict(saved)
    assert again.to_dict() == result.to_dict()
    assert again.summary() == result.summary()
    del saved["pairs"]
    with pytest.raises(InputError, match="pairs"):
        scaling.Comparison.from_dict(saved)


def key_paths(saved, path=()):
    """The path to every key of nested objects; of a list, through its first element."""
    if isinstance(saved, list):
        yield from key_paths(saved[0], (*path, 0)) if saved else ()
    elif isinstance(saved, dict):
        for key, value in saved.items():
            yield (*path, key)
            yield from key_paths(value, (*path, key))


def test_a_saved_comparison_or_fit_that_lacks_a_key_is_said_by_that_key():
    result = scaling.compare([run(60, "x"), run(61, "y", A=0.55)])
    saved = json.loads(json.dumps(result.to_dict()))
    fit = saved["recipes"][0]["fits"][0]
    for recipe in saved["recipes"]:
        recipe["fits"] = []
    fit["predictions"] = [dict.fromkeys(scaling.Prediction.__slots__)]
    fit["compute_to"] = [dict.fromkeys(("target", "estimate", "low", "high"))]
    repeated = ([], "ranking"), ([], "method")  # said elsewhere too
    for kind, whole in ((scaling.Comparison, saved), (scaling.Fit, fit)):
        for *path, key in key_paths(whole):
            defaults = {
                "settings": {*Settings.__slots__} - {"r0_mode"},
                "paper": {"false_positive"},
            }
            if (path, key) in repeated or key in defaults.get((path or [""])[-1], ()):
                continue
            damaged = copy.deepcopy(whole)
            holder = damaged
            for part in path:
                holder = holder[part]
            del holder[key]
            with pytest.raises(InputError, match=f"key '{key}' is missing"):
                kind.from_dict(damaged)


def test_an_unknown_key_of_a_saved_comparison_is_said():
    saved = scaling.compare([run(60, "x"), run(61, "y", A=0.55)]).to_dict()
    saved["pairs"][0]["colour"] = "red"
    with pytest.raises(InputError, match="saved Pair: key 'colour' is unknown"):
        scaling.Comparison.from_dict(saved)


def test_papers_rule_literally():
    a, b = (scaling.fit(planted(C, A=v), r0=0.4) for v in (0.61, 0.58))
    assert paper_rule(a, b).winner == "a"
    assert paper_rule(a, b).by == "ceiling"
    a, b = scaling.fit(planted(C, B=1.6), r0=0.4), scaling.fit(planted(C, B=2.4), r0=0.4)
    rule = paper_rule(a, b)
    assert (rule.winner, rule.by) == ("b", "B at a common ceiling")
    assert rule.common_A == pytest.approx(0.61, abs=1e-6)
    assert (rule.B_a, rule.B_b) == (pytest.approx(1.6, rel=1e-5), pytest.approx(2.4, rel=1e-5))


def test_comparison_is_json_and_text():
    result = scaling.compare([run(60, "x"), run(61, "y", A=0.55)])
    saved = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert saved["ranking"] == ["x", "y"]
    assert scaling.Fit.from_dict(saved["recipes"][0]["fits"][0]).A == result.recipes[0].fits[0].A
    text = result.summary()
    assert "identical recipes" in text
    assert "P(higher)" in text


def test_comparisons_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="at least two"):
        scaling.compare([run(0)])
    with pytest.raises(InputError, match="two curves are named 'run'"):
        scaling.compare([run(0), run(1)])
    other = scaling.curve_from_points(C, sigmoid(C, **PAPER), unit="flops", name="other")
    with pytest.raises(InputError, match="different units: gpu_hours, flops"):
        scaling.compare([run(0), other])


# --- warnings -----------------------------------------------------------------------------------


def test_drawdown_literals():
    # means of three: .2, .3, .2, .1; running maximum .2, .3, .3, .3
    y = np.array([[0.1, 0.2, 0.3, 0.4, -0.1, 0.0]])
    np.testing.assert_allclose(drawdown(y), [[0.0, 0.0, 0.1, 0.2]])


def test_noise_sd_is_near_the_planted_one():
    y = sigmoid(C, **PAPER) + ar1(np.random.default_rng(0), (400, 40))
    assert np.median(noise_sd(y)) == pytest.approx(0.004, rel=0.15)


def test_decline_is_seen_and_leaves_the_fit():
    y = np.array(run(70).pass_rate)
    y[28:] -= 0.006 * np.arange(12)
    curve = scaling.curve_from_points(np.r_[0, C], np.r_[0.4, y])
    red = [w for w in scaling.warn(curve) if w.level == "red"]
    assert len(red) == 1
    assert C[28] < red[0].compute <= C[36]
    fit = scaling.fit(curve)
    assert fit.left_out
    assert fit.left_out[0][0] > C[20]
    assert "left out of the fit" in " ".join(fit.reasons)
    assert abs(fit.A.estimate - 0.61) < 0.02
    kept = scaling.fit(curve, keep_red=True)
    assert kept.n_points == 40
    assert kept.A.estimate < fit.A.estimate - 0.02


def test_calm_curve_has_no_red_warning():
    assert not [w for s in range(20) for w in scaling.warn(run(s)) if w.level == "red"]


def test_truncation_counts_when_it_climbs():
    def curve(rates):
        base = run(80)
        return scaling.Curve(
            name="t",
            compute=base.compute,
            pass_rate=base.pass_rate,
            unit="gpu_hours",
            truncation_rate=rates,
        )

    climbing = curve(np.linspace(0.0, 0.15, 40))
    levels = [(w.level, w.kind) for w in scaling.warn(climbing)]
    assert ("amber", "truncation") in levels
    assert ("red", "truncation") in levels
    fit = scaling.fit(climbing, r0=0.4)
    assert fit.n_points == int(np.sum(np.linspace(0.0, 0.15, 40) < 0.10))
    # high from the start and falling: the run learns to finish
    assert not scaling.warn(curve(np.linspace(0.3, 0.12, 40)))


# --- windows ------------------------------------------------------------------------------------


def test_linear_first_epoch_is_proposed_away():
    C_all = np.linspace(150.0, 12000.0, 60)
    truth = sigmoid(C_all, **PAPER)
    start = C_all < 2000
    end = float(sigmoid(2000.0, **PAPER))
    truth[start] = 0.40 + 0.05 + (end - 0.45) * C_all[start] / 2000  # a quick rise, then level
    rates = truth + ar1(np.random.default_rng(3), (1, 60))[0]
    curve = scaling.curve_from_points(np.r_[0, C_all], np.r_[0.4, rates])
    proposal = scaling.propose_window(curve)
    assert 1500 < proposal.min_compute < 2600
    assert "do not lie on the curve" in proposal.reason
    rows = scaling.window_table(curve, r0=0.4)
    assert [r.n_points for r in rows] == [60, 57, 54, 48, 42, 36]
    # uncut, the start spoils the fit; from about 2000 on the interval holds the truth
    assert rows[0].status == "not_identified"
    assert rows[3].status == "identified"
    assert rows[3].A.low < 0.61 < rows[3].A.high


def test_clean_curve_needs_no_cut_and_known_epoch_is_used():
    curve = run(90)
    assert scaling.propose_window(curve).min_compute is None
    known = scaling.Curve(
        name="k", compute=C, pass_rate=curve.pass_rate, unit="h", first_epoch=float(C[3])
    )
    assert scaling.propose_window(known).min_compute == C[3]


def test_a_proposal_looks_only_at_what_is_fitted():
    """A spoiled end hides a spoiled start, unless a red warning or max_compute leaves it out."""
    C_all = np.linspace(150.0, 12000.0, 60)
    truth = sigmoid(C_all, **PAPER)
    start, late = C_all < 2000, np.arange(60) >= 45
    end = float(sigmoid(2000.0, **PAPER))
    truth[start] = 0.40 + 0.05 + (end - 0.45) * C_all[start] / 2000
    truth[late] -= 0.1
    curve = scaling.Curve(
        name="spoiled",
        compute=C_all,
        pass_rate=truth + ar1(np.random.default_rng(3), (1, 60))[0],
        unit="gpu_hours",
        truncation_rate=np.where(late, 0.5, 0.0),
        r0_observed=0.40,
    )
    assert scaling.propose_window(curve, keep_red=True).min_compute is None
    assert 1500 < scaling.propose_window(curve).min_compute < 2600
    cut = scaling.propose_window(curve, keep_red=True, max_compute=float(C_all[44]))
    assert 1500 < cut.min_compute < 3000
    with pytest.raises(InputError, match="no step-0"):
        scaling.propose_window(scaling.curve_from_points(C_all, truth), r0="step0")


def test_windows_of_a_cut_curve_lie_inside_it():
    rows = scaling.window_table(run(70), max_compute=9000.0)
    assert rows[0].n_points == int(np.sum(C <= 9000))
    assert all(row.min_compute < 9000 for row in rows)


# --- F-transform --------------------------------------------------------------------------------


def test_f_transform_is_a_line_of_slope_b():
    fit = scaling.fit(planted(C), r0=0.4)
    t = scaling.f_transform(fit)
    slope = np.polyfit(np.log(t.compute), t.log_F, 1)[0]
    assert slope == pytest.approx(1.92, rel=1e-5)
    assert t.undefined == 0
    # SD(log F) = sigma / (gain f (1 - f)); at half the gain that is 4 sigma / gain
    at_mid = planted(np.array([2542.0]))
    t = scaling.f_transform(fit, at_mid)
    assert t.se[0] == pytest.approx(4 * fit.sigma.estimate / 0.21, rel=1e-4)


def test_f_transform_counts_points_beyond_the_ceiling():
    fit = scaling.fit(planted(C), r0=0.4)
    y = np.full(40, 0.5)
    y[:3] = (0.39, 0.40, 0.62)
    beyond = scaling.Curve(name="b", compute=C, pass_rate=y, unit="gpu_hours")
    assert scaling.f_transform(fit, beyond).undefined == 3


def test_f_transform_needs_a_ceiling():
    flat = scaling.fit(scaling.curve_from_points(C, np.full(40, 0.4)), r0=0.4)
    with pytest.raises(InputError, match="no_gain"):
        scaling.f_transform(flat)
