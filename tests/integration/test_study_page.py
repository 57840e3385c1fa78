"""A study's verdicts on its page, in a real browser; the runs are those of a stand-in."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import chromium_pipe
import pytest

from scalerl.experiments.report import write_report
from scalerl.experiments.study import conduct
from scalerl.experiments.study_file import load_study

EXECUTABLE = chromium_pipe.find()
pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no Chromium is installed (apt-get install chromium)"
)
FAKE = Path(__file__).parents[1] / "unit" / "experiments" / "fake_scalerl.py"
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
STUDY = """
seeds = [0, 1]
budget.steps = 40
evaluation.points = 20
[variants.cap8]
about = '''{hostile}'''
loss.ratio_max = 8
[variants.same]
loss.ratio_max = 6
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "mine.toml").write_text(STUDY.format(hostile=HOSTILE))
    study = load_study(folder / "mine.toml")
    conduct(study, folder / "s", lambda text: None, jobs=2, command=(sys.executable, str(FAKE)))
    return folder / "s"


@pytest.mark.parametrize("width", [1200, 390])
def test_verdicts_are_shown(folder: Path, tmp_path: Path, width: int) -> None:
    assert EXECUTABLE is not None
    with chromium_pipe.Browser(EXECUTABLE, tmp_path) as browser:
        browser.open(folder / "report.html", width=width)
        assert browser.js("document.documentElement.dataset.ready") == "yes"
        assert browser.js("document.documentElement.dataset.faults") is None
        assert browser.js("document.querySelector('#study').hidden") is False
        assert browser.js("document.documentElement.scrollWidth") <= width
        rows = browser.js(
            "[...document.querySelectorAll('#study-table tbody tr')].map((r) => r.textContent)"
        )
        assert len(rows) == 2
        assert "▲ raises the ceiling" in rows[1]
        assert HOSTILE in rows[1]
        assert "owned" not in browser.js("document.title")
        assert browser.js("document.querySelectorAll('img').length") == 0
        assert "NaN" not in browser.js("document.body.innerHTML")
        assert browser.js("document.querySelector('#x').value") == "flops"  # the study's own
        assert browser.js("document.documentElement.dataset.shows").startswith("flops ")
        told = browser.js("document.querySelector('#study').textContent")
        assert "later evaluations" in told
        assert "same computed the same as scalerl, evaluation by evaluation" in told


def test_a_page_of_runs_has_no_verdicts(folder: Path, tmp_path: Path) -> None:
    assert EXECUTABLE is not None
    page = write_report([folder / "cap8"], tmp_path / "page.html")
    with chromium_pipe.Browser(EXECUTABLE, tmp_path / "profile") as browser:
        browser.open(page)
        assert browser.js("document.querySelector('#study').hidden") is True
        assert browser.js("document.documentElement.dataset.faults") is None


def test_the_page_holds_what_the_result_says(folder: Path) -> None:
    saved = json.loads((folder / "result.json").read_text())
    assert [v["verdict"] for v in saved["variants"]][:2] == ["the base", "raises the ceiling"]
