"""The demo's forecast: a table where the first half can be fitted, one line where it cannot."""

import json
import re
from pathlib import Path

import pytest

from scalerl.experiments.demo import forecast_table


def curve(folder: Path, evaluations: int) -> Path:
    """A run's curve.jsonl: step 0, and as many evaluations after it."""
    wiggle = [0.004, -0.003, 0.002, -0.004, 0.001]
    rows = [
        {
            "attempt": 0,
            "step": i,
            "pass_rate": 0.3 + 0.6 * i / (i + 6) + (wiggle[i % 5] if i else 0),
            "pass_rate_se": 0.005,
            "truncation_rate": 0.0,
            "device_hours": 0.001 * i,
            "tokens_generated": 1000 * i,
        }
        for i in range(evaluations + 1)
    ]
    (folder / "curve.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("evaluations", [0, 1, 2, 3, 5, 7])
def test_too_few_evaluations_are_said_in_one_line(tmp_path, evaluations):
    said = forecast_table(curve(tmp_path, evaluations))
    assert said.startswith("No forecast")
    assert "\n" not in said
    assert "nan" not in said


def test_a_curve_that_cannot_be_read_is_said_by_its_reason(tmp_path):
    assert "holds no evaluation after step 0" in forecast_table(curve(tmp_path, 1))
    file = curve(tmp_path, 20) / "curve.jsonl"
    whole = file.read_text()
    file.write_text(re.sub(r'"pass_rate": ', '"pass_rate": 10', whole))
    said = forecast_table(tmp_path)
    assert said.startswith("No forecast: ")
    assert "outside [0, 1]" in said
    assert "after step 0" not in said
    file.write_text("".join(whole.splitlines(keepends=True)[1:]))
    assert "no step-0 evaluation" in forecast_table(tmp_path)
    file.unlink()
    assert str(tmp_path) in forecast_table(tmp_path)


def test_a_flat_curve_is_said_in_one_line(tmp_path):
    file = curve(tmp_path, 20) / "curve.jsonl"
    file.write_text(re.sub(r'"pass_rate": [0-9.]+', '"pass_rate": 0.05', file.read_text()))
    said = forecast_table(tmp_path)
    assert said.startswith("No forecast")
    assert "the pass rate is flat" in said
    assert "\n" not in said


@pytest.mark.parametrize("evaluations", [8, 12, 30])
def test_a_forecast_is_held_against_every_later_evaluation(tmp_path, evaluations):
    said = forecast_table(curve(tmp_path, evaluations))
    assert "nan" not in said
    match = re.search(r"^(\d+) of (\d+) later evaluations are inside the band\.$", said, re.M)
    assert match
    assert int(match[2]) == evaluations - evaluations // 2
