"""The result table on planted curves: verdicts, collapses, crossings, forecasts, JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scalerl import scaling
from scalerl.experiments import forecasts
from scalerl.experiments.result import StudyResult, study_result
from scalerl.experiments.result_table import table

N = 40


def curve(
    seed: int, *, A: float = 0.6, B: float = 1.9, C_mid: float = 2500.0, end: float = 16000.0
) -> scaling.Curve:
    rng = np.random.default_rng(seed)
    C = np.linspace(400, end, N)
    own = A + 0.004 * rng.standard_normal()
    rates = scaling.sigmoid(C, A=own, B=B, C_mid=C_mid, R0=0.4) + 0.003 * rng.standard_normal(N)
    return scaling.Curve(
        name=f"seed-{seed}", compute=C, pass_rate=rates, unit="flops", r0_observed=0.4,
        step=np.arange(1.0, N + 1),
    )  # fmt: skip


def collapse(seed: int) -> scaling.Curve:
    one = curve(seed)
    rates = one.pass_rate.copy()
    rates[20:] = np.maximum(0.3, rates[20] - 0.02 * np.arange(1, N - 19))
    return scaling.Curve(
        name=f"seed-{seed}", compute=one.compute, pass_rate=rates, unit="flops", r0_observed=0.4,
        step=one.step,
    )  # fmt: skip


@pytest.fixture(scope="module")
def found() -> StudyResult:
    curves = {
        "base": [curve(i) for i in range(3)],
        "higher": [curve(i, A=0.68) for i in range(3, 6)],
        "lower": [curve(i, A=0.53) for i in range(6, 9)],
        "slower": [curve(i, C_mid=4200) for i in range(9, 12)],
        "same": [curve(i) for i in range(12, 15)],
        "falls": [collapse(i) for i in range(15, 18)],
    }
    checks = forecasts.check_first_part(curves, fit_share=0.5)
    return study_result("planted", curves, base="base", forecasts=checks, notes=["a note"])


def row(found: StudyResult, name: str):
    return next(v for v in found.variants if v.name == name)


def test_each_planted_axis_gets_its_verdict(found):
    verdicts = {v.name: v.verdict for v in found.variants}
    assert verdicts == {
        "base": "the base",
        "higher": "raises the ceiling",
        "lower": "lowers the ceiling",
        "slower": "slows down",
        "same": "cannot tell",
        "falls": "collapses",
    }


def test_intervals_hold_the_planted_values(found):
    for name, A, C_mid in (("base", 0.6, 2500), ("higher", 0.68, 2500), ("slower", 0.6, 4200)):
        v = row(found, name)
        assert v.A.low is not None
        assert v.A.low - 0.004 < A < v.A.high + 0.004
        assert v.C_mid.low * 0.95 < C_mid < v.C_mid.high * 1.05
        assert v.B.low * 0.95 < 1.9 < v.B.high * 1.05


def test_probabilities_are_those_of_the_variant(found):
    assert row(found, "higher").p_better > 0.99
    assert row(found, "lower").p_better < 0.01
    assert row(found, "higher").p_best > 0.95
    assert row(found, "higher").delta_A.estimate == pytest.approx(0.08, abs=0.02)
    assert row(found, "lower").delta_A.estimate == pytest.approx(-0.07, abs=0.02)
    assert row(found, "base").p_better is None


def test_speed_is_relative_to_the_base(found):
    slower = row(found, "slower")
    assert slower.compute_ratio.low > 1.2
    assert slower.to_target.estimate > row(found, "base").to_target.estimate


def test_the_spread_comes_from_the_replicates(found):
    assert found.run_sd_from >= 10  # 5 variants of 3 runs that can be fitted
    assert found.run_sd.low < 0.0075


def test_collapses_are_counted(found):
    assert row(found, "falls").collapsed == 3
    assert row(found, "base").collapsed == 0
    health = {(h.variant, h.run): h for h in found.health}
    assert len(health) == 18
    assert not health["base", "seed-0"].collapsed
    assert "red drawdown: warned of 3 of 3 collapses" in table(found)


def test_the_papers_rule_stands_beside(found):
    assert row(found, "higher").paper.startswith("higher, by ceiling")


def test_crossing_curves_are_pointed_out():
    """Fast with a low ceiling against slow with a high one."""
    curves = {
        "base": [curve(i, C_mid=1500, A=0.58) for i in range(3)],
        "late": [curve(i, C_mid=5000, A=0.70, end=24000) for i in range(3, 6)],
    }
    found = study_result("crossing", curves, base="base")
    assert row(found, "late").crossing.startswith("base ahead early, late late")
    assert "Curves that cross" in table(found)


def test_equal_or_parallel_curves_do_not_cross(found):
    assert row(found, "same").crossing == ""
    assert row(found, "higher").crossing == ""
    assert row(found, "lower").crossing == ""


def test_a_crossing_still_ahead_is_told_as_such():
    curves = {
        "base": [curve(i, C_mid=1500, A=0.56, end=3400) for i in range(3)],
        "late": [curve(i, C_mid=4500, A=0.70, end=3400) for i in range(3, 6)],
    }
    words = row(study_result("crossing", curves, base="base"), "late").crossing
    assert "beyond what was measured" in words
    assert words.startswith("base ahead early, late late")


def test_forecasts_of_the_first_half_are_checked(found):
    mine = [f for f in found.forecasts if f.variant == "base"]
    assert len(mine) == 3
    assert all(f.n_inside / f.n_later > 0.6 for f in mine)
    assert "Forecasts against" in table(found)


def test_table_and_json_say_it_all(found, tmp_path):
    text = table(found)
    assert all(v.name in text for v in found.variants)
    assert "note: a note" in text
    found.write(tmp_path)
    saved = json.loads((tmp_path / "result.json").read_text())
    assert [v["name"] for v in saved["variants"]] == [v.name for v in found.variants]
    assert (tmp_path / "result.txt").read_text() == text + "\n"


def test_one_variant_alone_gives_its_ceiling_and_spread():
    found = study_result("replicates", {"base": [curve(i) for i in range(4)]}, base="base")
    assert found.run_sd_from == 3
    assert found.variants[0].A.low < 0.6 < found.variants[0].A.high
    assert found.variants[0].verdict == "the base"


def test_nothing_yet_is_said():
    found = study_result("empty", {"base": []}, base="base")
    assert "no curve yet" in table(found)


def test_without_the_base_there_is_no_comparison():
    found = study_result("half", {"base": [], "b": [curve(1)]}, base="base")
    assert [v.name for v in found.variants] == ["b"]
    assert any("base: no curve" in n for n in found.notes)


def test_frozen_forecasts_are_those_from_before(tmp_path):
    whole = curve(1)
    before = whole.window(max_compute=8000)
    forecasts.freeze(tmp_path, {"base": [before]})
    (one,) = forecasts.check(tmp_path, {"base": [whole]}, fit_share=0.1)
    assert one.fitted_to == before.compute[-1]
    assert one.n_later == int((whole.compute > 8000).sum())


def test_a_variant_that_never_rises_lowers_the_ceiling_and_spoils_no_target():
    flat = curve(20)
    rates = 0.4 + 0.003 * np.random.default_rng(5).standard_normal(N)
    flat = scaling.Curve(
        name="flat", compute=flat.compute, pass_rate=rates, unit="flops", r0_observed=0.4
    )
    curves = {"base": [curve(i) for i in range(2)], "flat": [flat]}
    curves["slower"] = [curve(i, C_mid=4200) for i in range(2, 5)]
    found = study_result("mixed", curves, base="base")
    assert row(found, "flat").verdict == "lowers the ceiling"
    assert "it does not rise" in row(found, "flat").words
    assert row(found, "slower").verdict == "slows down"
    assert found.target == pytest.approx(0.4 + 0.75 * 0.194, abs=0.01)


def test_the_target_may_be_given():
    curves = {"base": [curve(0)], "slower": [curve(1, C_mid=4200)]}
    found = study_result("given", curves, base="base", target=0.5)
    assert found.target == 0.5
    assert row(found, "base").to_target.estimate == pytest.approx(2500, rel=0.15)


def test_a_variant_that_computed_what_another_did_is_no_further_evidence(found):
    runs = [curve(i) for i in range(2)]
    curves = {"base": runs, "lag": runs, "other": [curve(9)]}
    checks = forecasts.check_first_part(curves, fit_share=0.5)
    told = study_result("x", curves, base="base", forecasts=checks)
    assert [v.name for v in told.variants] == ["base", "other"]
    assert {f.variant for f in told.forecasts} == {"base", "other"}
    assert len(told.health) == 3
    assert told.notes[0].startswith("lag computed the same as base, evaluation by evaluation")
    without = study_result("x", {n: curves[n] for n in ("base", "other")}, base="base")
    assert told.run_sd == without.run_sd
    assert not any("computed the same" in note for note in found.notes)
