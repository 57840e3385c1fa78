"""Steps with next to nothing to learn from, in the middle of a real run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from training_runs import Settings, Watch, digest, rows

from scalerl.messages import Completion, Prompt, Scored
from scalerl.pipeline import run as run_module
from scalerl.pipeline.session import run_new

STEP, FIRST, PROMPTS, COMPLETIONS = 3, 6, 3, 6  # step 3 takes groups 6, 7 and 8, whole steps only
LONG = ("--steps", "5", "--checkpoint.every", "1", "--checkpoint.keep_every", "1")


def cut_short(monkeypatch: pytest.MonkeyPatch, *, survivors: set[int]) -> None:
    """Every completion of the step but the survivors' comes back as cut at the limit; of the others
    every second is right, so that they can be learned from."""
    real = run_module.make_score
    cut = set(range(FIRST, FIRST + PROMPTS)) - survivors

    def judge(scored: Scored) -> Scored:
        completion, right = scored.completion, scored.completion.sample % 2 == 0
        if completion.group in cut:
            completion, right = msgspec.structs.replace(completion, finish="length"), False
        elif completion.finish == "length":
            completion = msgspec.structs.replace(completion, finish="stop")
        return Scored(
            completion=completion,
            reward=1.0 if right else -1.0,
            outcome="correct" if right else "wrong",
        )

    def make_score(scoring: Any, *, waits: bool) -> Any:
        score = real(scoring, waits=waits)

        def judged(prompt: Prompt, completion: Completion) -> Scored | None:
            scored = score(prompt, completion)
            return scored and judge(scored)

        return judged

    monkeypatch.setattr(run_module, "make_score", make_score)


def assert_closed(done: list[dict[str, Any]]) -> None:
    for row in done:
        ledger = row["ledger"]
        assert ledger["generated"] == sum(v for k, v in ledger.items() if k != "generated")


def test_a_step_whose_completions_are_all_cut_is_skipped_and_the_run_goes_on(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(monkeypatch, survivors=set())
    run = tmp_path / "run"
    assert run_new(settings(*LONG, "--regime.k", "0"), run, Watch(), starts=tmp_path) == "done"
    done = rows(run, "steps")
    assert [row["skip_reason"] for row in done] == [None, None, "all_truncated", None, None]
    assert [row.get("applied") for row in done] == [True, True, None, True, True]
    before, skipped = done[STEP - 2], done[STEP - 1]
    assert skipped["groups_taken"] == [6, 7, 8]
    assert skipped["groups_truncated"] == PROMPTS
    assert skipped["completions_truncated"] == PROMPTS * COMPLETIONS
    assert skipped["ledger"]["trained"] == before["ledger"]["trained"]
    assert skipped["ledger"]["truncated"] > before["ledger"]["truncated"] == 0
    assert_closed(done)
    assert digest(run, STEP) == digest(run, STEP - 1)  # weights and moments
    assert len({digest(run, step)["model/model.safetensors"] for step in (2, 4, 5)}) == 3


def test_one_prompt_that_is_left_makes_a_step(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_short(monkeypatch, survivors={8})
    run = tmp_path / "run"
    assert run_new(settings(*LONG, "--regime.k", "0"), run, Watch(), starts=tmp_path) == "done"
    done = rows(run, "steps")
    assert [row["skip_reason"] for row in done] == [None] * 5
    assert [row["applied"] for row in done] == [True] * 5
    row = done[STEP - 1]
    assert (row["groups_trained"], row["groups_truncated"]) == (1, 2)
    assert (row["completions_trained"], row["completions_truncated"]) == (6, 12)
    assert row["gradient_norm"] > 0
    assert row["advantage_max"] == pytest.approx(-row["advantage_min"])
    assert_closed(done)
    assert digest(run, STEP) != digest(run, STEP - 1)


def test_a_run_in_which_nothing_ever_ends_changes_nothing_and_says_so(
    tmp_path: Path, settings: Settings
) -> None:
    """The engine's own limit: two tokens are no answer."""
    run = tmp_path / "run"
    words = ("--length.type", "none", "--sampling.max_new_tokens", "2", *LONG)
    assert run_new(settings(*words), run, Watch(), starts=tmp_path) == "done"
    done = rows(run, "steps")
    assert [row["skip_reason"] for row in done] == ["all_truncated"] * 5
    assert all(row["ledger"]["trained"] == 0 < row["ledger"]["truncated"] for row in done)
    assert_closed(done)
    assert digest(run, 1) == digest(run, 5)
    for row in rows(run, "curve"):
        assert (row["pass_rate"], row["truncation_rate"]) == (0.0, 1.0)
