"""A run that was ended and resumed is the run that was not: bit for bit where it can be."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from training_runs import Crash, Settings, Watch, digest, killed, raw_rows, rows

from scalerl.config import load_config
from scalerl.errors import InputError
from scalerl.pipeline import run as run_module
from scalerl.pipeline.session import run_new, run_on
from scalerl.train import checkpoint


def assert_same(one: Path, other: Path, step: int = 20) -> None:
    assert digest(one, step) == digest(other, step)
    for log in ("steps", "curve"):
        assert rows(one, log) == rows(other, log)
    texts = sorted(p.name for p in (one / "completions").iterdir())
    assert texts == sorted(p.name for p in (other / "completions").iterdir())


REGIMES = {
    "synchronous": ("--regime.type", "synchronous"),
    "pipeline": ("--regime.type", "pipeline", "--regime.k", "3"),
    "ppo_off_policy": ("--regime.type", "ppo_off_policy", "--regime.k", "3"),
    "two generators": ("--execution.generators", "2"),
    "recomputed cache": ("--sampling.recompute_kv", "true"),
    "dynamic": ("--algorithm.zero_variance", "dynamic", "--algorithm.dynamic_limit", "50"),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_interleaved_crashed_and_resumed_is_the_same_bit_for_bit(
    tmp_path: Path, settings: Settings, regime: str
) -> None:
    """In-flight updates included: the engines are saved as they stand."""
    config = settings(*REGIMES[regime])
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_new(config, straight, Watch(), starts=tmp_path)
    with pytest.raises(Crash):
        run_new(config, broken, Watch(7), starts=tmp_path)
    with pytest.raises(Crash):
        run_on(broken, Watch(13), starts=tmp_path, config=config)
    run_on(broken, Watch(), starts=tmp_path, config=config)
    assert_same(straight, broken)
    assert {row["attempt"] for row in raw_rows(broken)} == {0, 1, 2}
    assert any(row["groups_trained"] for row in rows(straight, "steps"))


def test_processes_synchronous_killed_after_thirteen_and_resumed_is_the_same(
    tmp_path: Path, settings: Settings, start: Path
) -> None:
    """20 = 10 + SIGKILL + resume + 10, with a generator of its own."""
    sync = ("--regime.type", "synchronous", "--execution.mode", "async")
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_new(settings(*sync), straight, Watch(), starts=tmp_path)
    assert killed(broken, start, "new", 13, "trainer", *sync).returncode == -9
    assert [row["step"] for row in raw_rows(broken)] == list(range(1, 14))
    run_on(broken, Watch(), starts=tmp_path, config=settings(*sync))
    assert_same(straight, broken)
    abandoned = [row["step"] for row in raw_rows(broken) if row["attempt"] == 0]
    assert abandoned == list(range(1, 14))  # superseded, not rewritten


def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_into_the_next(
    tmp_path: Path, settings: Settings
) -> None:
    """F01: 24 prompts, 3 a step: eight steps an epoch; then eight more with a new shuffle."""
    sync = ("--regime.type", "synchronous", "--checkpoint.every", "8", "--evaluation.every", "8")
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    run_new(settings(*sync, "--steps", "16"), straight, Watch(), starts=tmp_path)
    run_new(settings(*sync, "--steps", "8"), parts, Watch(), starts=tmp_path)
    watch = Watch()
    run_on(parts, watch, starts=tmp_path, config=settings(*sync, "--steps", "16"))
    assert watch.warnings == ["resumed with another setting: steps: 8 → 16"]
    assert_same(straight, parts, 16)
    prompts = [p for row in rows(parts, "steps") for p in row["prompts_taken"]]
    first, second = prompts[:24], prompts[24:]
    assert len(set(first)) == 24
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_run_that_is_at_its_end_says_so_and_does_nothing(
    tmp_path: Path, settings: Settings
) -> None:
    config = settings("--steps", "5")
    run_new(config, tmp_path / "run", Watch(), starts=tmp_path)
    before = digest(tmp_path / "run", 5), raw_rows(tmp_path / "run")
    watch = Watch()
    assert run_on(tmp_path / "run", watch, starts=tmp_path, config=config) == "done"
    assert (digest(tmp_path / "run", 5), raw_rows(tmp_path / "run")) == before
    assert watch.warnings == ["the run has done all of its 5 steps; give more with --steps"]


def test_a_changed_setting_is_refused_by_name_and_a_harmless_one_shown(
    tmp_path: Path, settings: Settings
) -> None:
    run_new(settings("--steps", "5"), tmp_path / "run", Watch(), starts=tmp_path)
    other = settings("--optimizer.lr", "1e-3", "--seed", "4", "--loss.type", "gspo")
    with pytest.raises(InputError) as refused:
        run_on(tmp_path / "run", Watch(), starts=tmp_path, config=other)
    text = str(refused.value)
    for line in ("optimizer.lr: 0.002 → 0.001", "seed: 0 → 4", "loss.type: 'cispo' → 'gspo'"):
        assert line in text
    assert "steps" not in text
    watch = Watch()
    harmless = settings("--steps", "6", "--checkpoint.every", "2", "--execution.stall_s", "9")
    run_on(tmp_path / "run", watch, starts=tmp_path, config=harmless)
    assert {w.partition(": ")[2].partition(":")[0] for w in watch.warnings} == {
        "steps",
        "checkpoint.every",
        "execution.stall_s",
    }
    assert load_config([tmp_path / "run/config.toml"]) == harmless


def test_what_was_computed_is_known_from_the_checkpoint_itself(
    tmp_path: Path, settings: Settings
) -> None:
    """A config.toml that was emptied, or edited by hand, changes no run in silence."""
    run_new(settings("--steps", "5"), tmp_path / "run", Watch(), starts=tmp_path)
    (tmp_path / "run/config.toml").write_text("")
    with pytest.raises(InputError, match=r"optimizer\.lr: 0\.002 → 0\.0005"):
        run_on(tmp_path / "run", Watch(), starts=tmp_path, config=load_config())


@pytest.mark.parametrize("which", ["training", "held-out", "answers", "held-out answers"])
def test_a_changed_dataset_is_refused(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    config = settings("--steps", "5")
    run_new(config, tmp_path / "run", Watch(), starts=tmp_path)
    real = run_module.run_prompts

    def changed(*arguments: Any, **named: Any) -> Any:
        loaded = real(*arguments, **named)
        wrong = lambda prompts: [structs.replace(p, answer=f"{p.answer}0") for p in prompts]  # noqa: E731
        return dataclasses.replace(
            loaded,
            **{
                "training": {"training": loaded.training[1:]},
                "held-out": {"heldout": loaded.heldout[1:]},
                "answers": {"training": wrong(loaded.training)},
                "held-out answers": {"heldout": wrong(loaded.heldout)},
            }[which],
        )

    monkeypatch.setattr(run_module, "run_prompts", changed)
    with pytest.raises(InputError, match=r"another dataset|held-out prompts are others"):
        run_on(tmp_path / "run", Watch(), starts=tmp_path, config=config)


def test_resuming_nothing_is_an_error(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(InputError, match="no run to resume"):
        run_on(tmp_path / "nowhere", Watch(), starts=tmp_path, config=settings())


def test_a_damaged_checkpoint_is_passed_over_and_the_run_comes_out_the_same(
    tmp_path: Path, settings: Settings
) -> None:
    """F05, and a run without any whole one begins again."""
    config = settings("--steps", "10")
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    run_new(config, straight, Watch(), starts=tmp_path)
    shutil.copytree(straight, broken)
    with (broken / "checkpoints/step-000010/optimizer.safetensors").open("r+b") as file:
        file.truncate(100)
    watch = Watch()
    run_on(broken, watch, starts=tmp_path, config=config)
    assert "step-000010: passed over, optimizer.safetensors has 100 bytes" in watch.warnings[0]
    assert_same(straight, broken, 10)
    for step in (5, 10):
        (broken / f"checkpoints/step-{step:06d}" / checkpoint.MARKER).unlink()
    watch = Watch()
    run_on(broken, watch, starts=tmp_path, config=config)
    assert "no whole checkpoint; the run begins again from step 0" in watch.warnings[-1]
    assert_same(straight, broken, 10)


def test_latest_best_and_every_nth_are_kept_and_any_is_a_transformers_folder(
    tmp_path: Path, settings: Settings
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = settings("--checkpoint.every", "1", "--checkpoint.keep_every", "8")
    run_new(config, tmp_path / "run", Watch(), starts=tmp_path)
    kept = {checkpoint.step_of(p): p for p in (tmp_path / "run/checkpoints").iterdir()}
    rates = {row["step"]: row["pass_rate"] for row in rows(tmp_path / "run", "curve")}
    assert set(kept) >= {8, 16, 19, 20}  # each eighth and the two latest
    assert len(kept) <= 5
    assert max(rates[step] for step in kept if step in rates) == max(
        rate for step, rate in rates.items() if step
    )
    for path in kept.values():
        model = AutoModelForCausalLM.from_pretrained(path / "model")
        tokenizer = AutoTokenizer.from_pretrained(path / "model")
        ids = tokenizer("3a+8b=", return_tensors="pt")["input_ids"]
        assert torch.isfinite(model(ids).logits).all()


def test_interleaved_work_goes_on_in_processes_by_being_issued_again(
    tmp_path: Path, settings: Settings, start: Path
) -> None:
    """The mode is harmless to change: what was under way is discarded and counted."""
    with pytest.raises(Crash):
        run_new(settings("--regime.k", "8"), tmp_path / "run", Watch(7), starts=tmp_path)
    asynchronous = settings("--regime.k", "8", "--execution.mode", "async")
    run_on(tmp_path / "run", Watch(), starts=tmp_path, config=asynchronous)
    done = rows(tmp_path / "run", "steps")
    assert [row["step"] for row in done] == list(range(1, 21))
    assert sorted(g for row in done for g in row["groups_taken"]) == list(range(60))
    assert done[-1]["ledger"]["discarded"] > 0


def test_a_run_that_cannot_begin_may_be_tried_again_under_its_name(
    tmp_path: Path, settings: Settings
) -> None:
    run, tight = tmp_path / "run", settings("--length.high", "23")
    with pytest.raises(InputError, match=r"length\.high: .* leave no room for an answer"):
        run_new(tight, run, Watch(), starts=tmp_path)
    assert not run.exists()
    assert run_new(settings("--steps", "1"), run, Watch(), starts=tmp_path) == "done"
