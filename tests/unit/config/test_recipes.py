"""The six recipes as ALGORITHM's table has them, value by value, and a reason on every line."""

import pytest

from scalerl.cli.main import main
from scalerl.config import load_config, recipe_names, recipe_text

DAPO = {"type": "dapo", "clip_low": 0.2, "clip_high": 0.26}
GRPO = {"type": "grpo", "clip": 0.2}
CISPO = {"type": "cispo", "ratio_max": 5.0}
OFF_POLICY = {"type": "ppo_off_policy", "k": 8}
STREAMING = {"type": "pipeline", "k": 8}
UNIFORM = {"type": "uniform"}
RETIRING = {"type": "no_positive_resampling", "threshold": 0.9}

# loss, aggregation, advantage, regime, FP32 head, zero variance, curriculum, completions, truncated
TABLE = {
    "base": (DAPO, "sample", "prompt", OFF_POLICY, False, "keep", UNIFORM, 768, "keep"),
    "deepseek_grpo": (GRPO, "sample", "prompt", OFF_POLICY, False, "keep", UNIFORM, 768, "keep"),
    "qwen2.5_dapo": (DAPO, "prompt", "prompt", OFF_POLICY, False, "filter", UNIFORM, 1280, "keep"),
    "magistral": (DAPO, "prompt", "batch", STREAMING, False, "filter", UNIFORM, 1280, "keep"),
    "minimax": (CISPO, "prompt", "prompt", OFF_POLICY, True, "filter", UNIFORM, 1280, "keep"),
    "scalerl": (CISPO, "prompt", "batch", STREAMING, True, "filter", RETIRING, 768, "exclude"),
}


def test_the_table_has_every_recipe():
    assert sorted(TABLE) == recipe_names()


@pytest.mark.parametrize("name", TABLE)
def test_a_recipe_is_its_row_of_the_table(name):
    loss, aggregation, advantage, regime, head, zero, curriculum, completions, cut = TABLE[name]
    config = load_config(recipe=name)
    assert config.loss.model_dump() == loss
    assert config.algorithm.model_dump() == {
        "aggregation": aggregation,
        "advantage": advantage,
        "zero_variance": zero,
        "truncated": cut,
        "dynamic_limit": 8,
    }
    assert config.regime.model_dump() == regime
    assert config.curriculum.model_dump() == curriculum
    assert config.length.type == "interruption"
    assert (config.batch.prompts, config.batch.completions) == (32, 16)
    assert config.batch.oversample == pytest.approx(completions / 768, abs=1e-3)
    # a float32 body has an FP32 head whatever is said of it: without one, the body is bfloat16
    weights = "float32" if head else "bfloat16"
    assert (config.model.fp32_head, config.model.weights) == (head, weights)


@pytest.mark.parametrize("name", TABLE)
def test_every_setting_of_a_recipe_has_its_reason_beside_it(name):
    lines = [line for line in recipe_text(name).splitlines() if " = " in line and line[0] != "#"]
    assert len(lines) >= 10
    assert all("  # " in line for line in lines)


def test_the_table_of_the_command_fits_a_terminal_and_has_every_axis(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    for said in (
        *("loss", "aggregation", "advantage", "regime", "zero var.", "truncated", "curriculum"),
        *("oversample", "length", "fp32 head", "weights"),
        *("dapo 0.2 0.26", "no_positive_resampling 0.9", "1.667", "exclude", "interruption"),
    ):
        assert said in out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "minimax cispo 5 prompt prompt ppo_off_policy 8 filter keep" in rows
    assert "minimax uniform 1.667 interruption yes float32" in rows
