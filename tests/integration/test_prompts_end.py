"""A run whose prompts run out before its steps do: nothing of its last takes is lost."""

from pathlib import Path

import pytest
from training_runs import Settings, Watch, rows

from scalerl.messages import Completion, Scored
from scalerl.pipeline import scoring
from scalerl.pipeline.session import run_new
from scalerl.rewards.scorer import Checked

WORDS = ("--algorithm.zero_variance", "dynamic", "--curriculum.type", "no_positive_resampling")


def test_groups_without_variance_at_the_end_are_a_step_that_is_booked_and_skipped(
    tmp_path: Path, settings: Settings, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two steps have variance; afterwards every answer is right, so that no group of
    the second epoch can be trained and every prompt retires."""

    def all_right_in_the_end(completion: Completion, checked: Checked) -> Scored:
        right = completion.group >= 6 or completion.sample == 0
        return Scored(
            completion=completion,
            reward=1.0 if right else -1.0,
            outcome="correct" if right else "wrong",
        )

    monkeypatch.setattr(scoring, "scored", all_right_in_the_end)
    run = tmp_path / "run"
    config = settings(*WORDS, "--algorithm.truncated", "keep", "--algorithm.dynamic_limit", "20")
    assert run_new(config, run, Watch(), starts=tmp_path) == "prompts_retired"
    done = rows(run, "steps")
    *_, last = done
    assert last["prompts_live"] == 0
    assert last["skip_reason"] == "zero_variance"
    taken = sorted(g for row in done for g in row["groups_taken"])
    assert taken == list(range(len(taken)))
    assert len(taken) >= 24
    for row in done:
        ledger = dict(row["ledger"])
        assert ledger.pop("generated") == sum(ledger.values())
    assert last["ledger"]["waiting"] == 0
    assert last["ledger"]["filtered"] > 0
    assert last["tokens_generated"] == last["ledger"]["generated"]
