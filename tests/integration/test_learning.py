"""On the default task: what one step does to its own batch, and every recipe to its end."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
import torch

from scalerl.algorithm.effective import assemble
from scalerl.config import recipe_names
from scalerl.pipeline.loop import publish
from scalerl.pipeline.records import RunDirectory, current_rows
from scalerl.pipeline.run import open_run
from scalerl.pipeline.session import run_new
from scalerl.pipeline.start import make_start

WARM = ("--optimizer.warmup_steps=0", "--optimizer.lr=1e-4", "--batch.prompts=12")


class Quiet:
    def __init__(self):
        self.warnings = []

    def on_step(self, row):
        pass

    def on_evaluation(self, row):
        pass

    def on_warning(self, text):
        self.warnings.append(text)


@contextlib.contextmanager
def opened(config, tmp_path, starts):
    run = open_run(
        config, RunDirectory.create(tmp_path / "run", config), make_start(config, starts, print)
    )
    try:
        yield run
    finally:
        run.close()


@pytest.mark.parametrize("loss", ["cispo", "dapo", "grpo", "gspo"])
def test_one_step_on_a_frozen_batch_raises_what_was_rewarded(loss, tmp_path, starts, small_config):
    config = small_config(f"--loss.type={loss}", *WARM)
    with opened(config, tmp_path, starts) as run:
        publish(run)
        groups, _ = run.rollouts.take(0)
        rows = assemble(groups, run.rules).rows
        good = [row for row in rows if row.advantage > 0]
        bad = [row for row in rows if row.advantage < 0]
        assert good
        assert bad
        before = weights_of(run)
        run.trainer.step(rows, 0)
        taught = weights_of(run)
        assert any(not torch.equal(w, before[name]) for name, w in taught.items())
        # The log-probs that a second step starts from are those after the first. That step has no
        # learning rate: it looks, and changes nothing for the look after it.
        run.trainer.settings = dataclasses.replace(run.trainer.settings, lr=0.0)
        after_good = gain(run.trainer.step(good, 1), good)
        after_bad = gain(run.trainer.step(bad, 2), bad)
        assert all(torch.equal(w, taught[name]) for name, w in weights_of(run).items())
    assert after_good > 1e-4
    assert after_bad < -1e-4


def weights_of(run):
    return {name: w.detach().clone() for name, w in run.trainer.weights().items()}


def gain(seen, rows) -> float:
    """Mean change of the log-prob of the rows' tokens since they were sampled on-policy."""
    assert len(seen.logp_train) == sum(sum(row.mask) for row in rows)
    return float(np.mean(seen.logp_train - seen.logp_gen))


# What DESIGN promises of a line of curve.jsonl, and what stands beside it: the key of an attempt,
# the passes over the prompts, and the hours that are kept out of the compute axis.
CURVE_FIELDS = {
    "step",
    "weights_version",
    "pass_rate",
    "pass_rate_se",
    "n_prompts",
    "n_samples",
    "pass_at_k",
    "entropy",
    "truncation_rate",
    "interruption_rate",
    "mean_length",
    "device_hours",
    "generator_device_hours",
    "trainer_device_hours",
    "generator_idle_share",
    "trainer_idle_share",
    "tokens_generated",
    "tokens_trained",
    "flops",
}
BESIDE = {"attempt", "epoch", "evaluation_hours"}


def test_a_line_of_the_curve_holds_what_is_promised_and_no_more(tmp_path, starts, small_config):
    run_new(small_config("--steps=1"), tmp_path / "run", Quiet(), starts=starts)
    lines = (tmp_path / "run" / "curve.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1]
    for line in lines:
        row = json.loads(line)
        assert set(row) == CURVE_FIELDS | BESIDE
        assert None not in row.values()


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_trains_to_its_end(recipe, tmp_path, starts, small_config):
    config = small_config("--regime.k=2", recipe=recipe)
    listener = Quiet()
    assert run_new(config, tmp_path / "run", listener, starts=starts) == "done"
    steps = current_rows(tmp_path / "run" / "steps.jsonl")
    curve = current_rows(tmp_path / "run" / "curve.jsonl")
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert [row["step"] for row in curve] == [0, 3]
    assert all(row["staleness_max"] <= 2 for row in steps)
    assert all(row["groups"] == config.batch.groups for row in steps)


@pytest.mark.parametrize(
    "change",
    [
        "--regime.type=synchronous",
        "--algorithm.aggregation=token",
        "--algorithm.advantage=none",
        "--algorithm.truncated=mask",
        "--algorithm.truncated=keep",
        "--length.type=none",
        "--length.type=penalty --length.limit=28 --length.cache=8",
        "--curriculum.type=uniform",
        "--sampling.temperature=0.7",
        "--sampling.recompute_kv=true",
        "--model.weights=bfloat16",
        "--model.weights=bfloat16 --model.fp32_head=false",
        "--execution.generators=2",
    ],
)
def test_every_axis_is_one_named_change(change, tmp_path, starts, small_config):
    config = small_config(*change.split())
    assert run_new(config, tmp_path / "run", Quiet(), starts=starts) == "done"
    last = current_rows(tmp_path / "run" / "steps.jsonl")[-1]
    assert last["step"] == 3
    assert last["ledger"]["generated"] == sum(
        value for key, value in last["ledger"].items() if key != "generated"
    )


def test_dynamic_sampling_fills_the_batch_with_groups_that_vary(tmp_path, starts, small_config):
    config = small_config("--algorithm.zero_variance=dynamic", "--batch.prompts=6")
    run_new(config, tmp_path / "run", Quiet(), starts=starts)
    rows = current_rows(tmp_path / "run" / "steps.jsonl")
    assert all(row["groups_trained"] == 6 for row in rows)
    assert sum(row["groups_zero_variance"] for row in rows) > 0


def test_equal_weights_agree_to_1e_5_on_every_token_interrupted_ones_included(
    tmp_path, starts, small_config
):
    config = small_config(
        "--regime.type=synchronous", "--length.low=4", "--length.high=9", "--batch.prompts=12"
    )
    run_new(config, tmp_path / "run", Quiet(), starts=starts)
    for row in current_rows(tmp_path / "run" / "steps.jsonl"):
        assert row["interruption_rate"] > 0.3
        assert row["equal_weights_tokens"] == row["n_tokens"] > 0
        assert row["equal_weights_mismatch_max"] <= 1e-5


def test_temperature_is_the_same_on_both_sides(tmp_path, starts, small_config):
    config = small_config(
        "--regime.type=synchronous", "--sampling.temperature=0.6", "--batch.prompts=12"
    )
    run_new(config, tmp_path / "run", Quiet(), starts=starts)
    for row in current_rows(tmp_path / "run" / "steps.jsonl"):
        assert row["ratio_mean"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("regime", ["synchronous", "pipeline"])
def test_one_process_is_bit_reproducible_from_the_seed(regime, tmp_path, starts, small_config):
    config = small_config(f"--regime.type={regime}")
    for name in ("one", "two"):
        run_new(config, tmp_path / name, Quiet(), starts=starts)
    model = "checkpoints/step-000003/model/model.safetensors"
    assert (tmp_path / "one" / model).read_bytes() == (tmp_path / "two" / model).read_bytes()
    assert logged(tmp_path / "one") == logged(tmp_path / "two")
    other = small_config(f"--regime.type={regime}", "--seed=1")
    run_new(other, tmp_path / "three", Quiet(), starts=starts)
    assert logged(tmp_path / "one") != logged(tmp_path / "three")


TIMES = ("_s", "_hours", "_share", "device_hours")


def logged(path) -> list[str]:
    """Both logs without what a clock measured."""
    rows = [*current_rows(path / "steps.jsonl"), *current_rows(path / "curve.jsonl")]
    return [
        json.dumps({k: v for k, v in row.items() if not k.endswith(TIMES)}, sort_keys=True)
        for row in rows
    ]
