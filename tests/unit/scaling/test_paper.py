"""The paper's own procedures and figures."""

import csv
from pathlib import Path

import numpy as np
import pytest

from scalerl import scaling
from scalerl.errors import InputError
from scalerl.scaling.sigmoid import sigmoid

from .simulate import PAPER, planted

DATA = Path(__file__).parent / "data"
WIDE = np.linspace(1500.0, 12000.0, 24)


def rows(name):
    return list(csv.DictReader((DATA / name).read_text().splitlines()))


def batch_768():
    return scaling.read_curve(
        DATA / "scalerl_8b_bs768.csv", compute="gpu_hours", reward="pass_rate"
    )


@pytest.mark.parametrize(("ceiling", "B"), [(0.605, 2.01), (0.610, 1.92)])
def test_batch_768_at_fixed_ceilings(ceiling, B):
    fit = scaling.fit(batch_768(), r0=0.40, min_compute=1000.0, fix_ceiling=ceiling)
    assert fit.B.estimate == pytest.approx(B, abs=0.05)
    if ceiling == 0.610:
        assert fit.C_mid.estimate == pytest.approx(2542.0, abs=60.0)


PUBLISHED = [r for r in rows("published_fits.csv") if r["A"] and r["B"]]


@pytest.mark.parametrize("r0", [0.40, "step0", "free"])
def test_published_fits_are_recovered_without_noise(r0):
    assert len(PUBLISHED) == 40
    for row in PUBLISHED:
        truth = {"A": float(row["A"]), "B": float(row["B"]), "R0": 0.40}
        truth["C_mid"] = float(row["C_mid"] or 2542)
        C = np.geomspace(truth["C_mid"] / 4, truth["C_mid"] * 5, 20)
        curve = scaling.curve_from_points(np.r_[0, C], np.r_[0.40, sigmoid(C, **truth)])
        fit = scaling.fit(curve, r0=r0)
        for name, value in truth.items():
            assert getattr(fit, name).estimate == pytest.approx(value, rel=1e-6), (row, name)


def test_the_papers_grid_finds_its_node():
    """A = .610 is on the grid, and so is a C_mid chosen from linspace(100, 4000, 100)."""
    C_mid = float(np.linspace(100.0, 4000.0, 100)[62])
    curve = planted(WIDE, C_mid=C_mid)
    fit = scaling.fit(curve, method="paper", paper_grid=(100.0, 4000.0, 100))
    assert fit.A.estimate == pytest.approx(0.610, abs=1e-12)
    assert fit.C_mid.estimate == pytest.approx(C_mid, rel=1e-12)
    assert fit.B.estimate == pytest.approx(1.92, rel=1e-6)
    assert (fit.status, fit.A.low, fit.draws) == ("weak", None, None)
    assert "quantised" in fit.reasons[0]


def test_the_papers_grid_is_quantised_and_chooses_from_the_grid():
    fit = scaling.fit(batch_768(), r0=0.40, min_compute=1000.0, method="paper")
    nodes = np.linspace(100.0, 40000.0, 100)
    assert np.isclose(nodes, fit.C_mid.estimate, rtol=1e-12).any()
    fine = scaling.fit(
        batch_768(), r0=0.40, min_compute=1000.0, method="paper", paper_grid=(100.0, 4000.0, 100)
    )
    nodes = np.linspace(100.0, 4000.0, 100)
    assert np.isclose(nodes, fine.C_mid.estimate, rtol=1e-12).any()
    assert fine.least_squares.rss <= fit.least_squares.rss


def test_edges_of_the_papers_grid_are_said_and_no_ceiling_is_given():
    fit = scaling.fit(planted(WIDE, A=0.92), method="paper")
    assert fit.status == "not_identified"
    assert fit.A.estimate is None
    assert "A is at the grid's edge 0.800" in " ".join(fit.reasons)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"r0": "free"}, "needs R0"),
        ({"r0": 0.4, "paper_grid": (4000.0, 100.0, 100)}, "0 < low < high"),
        ({"r0": 0.4, "paper_grid": (100.0, 4000.0, 1)}, "2 values"),
    ],
)
def test_a_paper_grid_that_cannot_be_is_refused(settings, message):
    with pytest.raises(InputError, match=message):
        scaling.fit(planted(WIDE), method="paper", **settings)


def test_power_law_is_recovered():
    y = 0.65 - 3.0 / WIDE**0.4  # .65 - 3 / 1500^.4 = .489 at first
    fit = scaling.fit(scaling.curve_from_points(WIDE, y), method="power-law")
    assert fit.status == "weak"
    assert pytest.approx(0.65, rel=1e-4) == fit.power_law.A
    assert pytest.approx(0.4, rel=1e-3) == fit.power_law.B
    assert pytest.approx(3.0, rel=1e-2) == fit.power_law.D
    assert fit.estimate([1e6])[0] == pytest.approx(0.65 - 3.0 / 1e6**0.4, abs=1e-3)
    assert (fit.A.low, fit.A.high) == (None, None)
    again = scaling.Fit.from_dict(fit.to_dict())
    assert again.power_law == fit.power_law


def test_power_law_of_a_sigmoid_is_unstable():
    fit = scaling.fit(planted(np.linspace(300.0, 16000.0, 40), **PAPER), method="power-law")
    assert fit.status == "unstable"
    assert "later half" in " ".join(fit.reasons) or "upper bound" in " ".join(fit.reasons)
