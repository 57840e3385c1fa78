"""The main job through its command, much smaller: start, training, forecast, page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scalerl.cli.main import main

# Answers of one digit, and a reward for the even ones: learnt within a few steps.
LITTLE = """
steps = 20
[model.tiny]
hidden = 32
layers = 1
heads = 2
feed_forward = 48
characters = "ascii"
[supervised]
steps = 60
warmup_steps = 5
right_share = 0.1
[data]
heldout_share = 0.3
[[data.sources]]
path = "{prompts}"
reward = "rewards_of_tests:even"
[batch]
prompts = 8
completions = 8
[sampling]
max_new_tokens = 8
slots = 64
[length]
type = "none"
[curriculum]
type = "uniform"
[evaluation]
every = 1
completions = 8
[optimizer]
lr = 1e-3
[execution]
mode = "interleaved"
"""


def test_the_demo_ends_with_a_table_and_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    prompts, settings = tmp_path / "sums.jsonl", tmp_path / "small.toml"
    sums = [(a, b) for a in range(9) for b in range(9)]
    rows = [{"prompt": f"{a}+{b}=", "answer": str((a + b) % 10)} for a, b in sums]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings.write_text(LITTLE.format(prompts=prompts))
    done = main(["demo", str(settings), "--dir", str(tmp_path), "--plain"])
    out = capsys.readouterr().out
    assert done == 0, out
    match = re.search(r"^(\d+) of (\d+) later evaluations are inside the band\.$", out, re.M)
    assert match, out
    assert 0 <= int(match[1]) <= int(match[2])
    assert 4 <= int(match[2]) <= 16
    page = tmp_path / "run-1" / "report.html"
    assert page.stat().st_size > 10_000
    assert out.rstrip().endswith(str(page))
