"""Whole runs in which a reward worker dies or hangs; docs/faults.md says what must happen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import rewards_of_tests
from test_faults import assert_whole
from training_runs import Watch

from scalerl.config import load_config
from scalerl.pipeline.session import run_new

OWN_REWARD = """
steps = 2
[batch]
prompts = 4
completions = 3
[sampling]
slots = 12
max_new_tokens = 8
[length]
type = "none"
[evaluation]
completions = 1
[rewards]
limit_s = 1.0
[[data.sources]]
"""


@pytest.mark.parametrize(
    ("reward", "outcome", "mode"),
    [("deadly", "error", "interleaved"), ("hanging", "timeout", "async")],
)
def test_a_reward_worker_that_dies_or_hangs_costs_the_answers_it_had_and_no_more(
    tmp_path: Path,
    start: Path,
    monkeypatch: pytest.MonkeyPatch,
    reward: str,
    outcome: str,
    mode: str,
) -> None:
    prompts = [f'{{"prompt": "{a}a+{b}=", "answer": "{a}"}}\n' for a in range(5) for b in range(4)]
    (tmp_path / "prompts.jsonl").write_text("".join(prompts))
    source = f'path = "{tmp_path / "prompts.jsonl"}"\nreward = "rewards_of_tests:{reward}"\n'
    (tmp_path / "own.toml").write_text(OWN_REWARD + source)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    words = ["--model.path", str(start), "--execution.mode", mode]
    config = load_config([tmp_path / "own.toml"], overrides=words)
    assert run_new(config, tmp_path / "run", Watch(), starts=tmp_path) == "done"
    assert_whole(tmp_path / "run", 2)
    outcomes: dict[bool, set[str]] = {True: set(), False: set()}
    for file in (tmp_path / "run").glob("completions/*"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            outcomes[row["answer"] == rewards_of_tests.FAULTY].add(row["outcome"])
    assert outcomes[True] == {outcome}
    assert outcomes[False] <= {"correct", "wrong"}
    assert outcomes[False]
