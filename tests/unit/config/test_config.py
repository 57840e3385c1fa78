"""Configuration: layers, messages a user can act on, and a file that comes back the same."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.config import Config, differences, dump_toml, load_config, recipe_names
from scalerl.config.load import known_keys, parse_overrides
from scalerl.errors import InputError


def message(*, files=(), overrides=()) -> str:
    with pytest.raises(InputError) as caught:
        load_config(files, overrides=overrides)
    return str(caught.value)


def test_defaults_are_the_scalerl_recipe_on_the_laptop():
    config = load_config()
    assert (config.recipe, config.loss.type, config.regime.type) == ("scalerl", "cispo", "pipeline")
    assert config.loss.ratio_max == 5.0
    assert config.regime.k == 8
    assert (config.batch.groups, config.batch.completions) == (32, 16)


def test_recipe_names_are_the_six_of_the_study():
    expected = ["base", "deepseek_grpo", "magistral", "minimax", "qwen2.5_dapo", "scalerl"]
    assert recipe_names() == expected


@pytest.mark.parametrize("name", ["base", "deepseek_grpo", "magistral", "minimax", "qwen2.5_dapo"])
def test_each_recipe_differs_from_scalerl_and_names_itself(name):
    config = load_config(recipe=name)
    assert config.recipe == name
    changed = differences(load_config(), config)
    assert any(key.startswith(("loss.", "algorithm.", "regime.")) for key in changed)


def test_layers_win_in_order(tmp_path: Path):
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("steps = 10\n[optimizer]\nlr = 1e-4\n")
    two.write_text("[optimizer]\nlr = 2e-4\n")
    config = load_config([one, two], overrides=["--optimizer.warmup-steps", "7"])
    assert (config.steps, config.optimizer.lr, config.optimizer.warmup_steps) == (10, 2e-4, 7)


def test_a_files_recipe_is_used_and_the_command_line_overrules_it(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('recipe = "base"\n')
    assert load_config([file]).loss.type == "dapo"
    assert load_config([file], recipe="minimax").loss.type == "cispo"


def test_another_type_starts_from_its_own_defaults():
    config = load_config(overrides=["--loss.type", "gspo"])
    assert config.loss.model_dump() == {"type": "gspo", "clip_low": 4e-3, "clip_high": 5e-3}


def test_unknown_key_names_file_and_nearest(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text("[optimizer]\nlrr = 1e-4\n")
    text = message(files=[file])
    assert str(file) in text
    assert "'optimizer.lrr'" in text
    assert "nearest: 'optimizer.lr'" in text


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("learning_rate", "optimizer.lr"),
        ("group_size", "batch.completions"),
        ("loss.ratiomax", "loss.ratio_max"),
        ("warmup_steps", "optimizer.warmup_steps"),
    ],
)
def test_other_trainers_words_and_misplaced_keys_find_theirs(key, nearest):
    text = message(overrides=[f"--{key}", "1"])
    assert "unknown key" in text
    assert nearest.rpartition(".")[2] in text


def test_a_key_of_another_type_says_so():
    text = message(overrides=["--loss.type", "gspo", "--loss.ratio_max", "4"])
    assert "loss.ratio_max" in text
    assert "no setting of loss.type = 'gspo'" in text


def test_all_faults_at_once_by_dotted_path():
    text = message(
        overrides=["--steps", "-3", "--batch.completions", "1", "--optimizer.lr", "fast"]
    )
    assert text.startswith("3 faults")
    for key in ("steps", "batch.completions", "optimizer.lr"):
        assert key in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["--sampling.top_p", "0.9"], "whole distribution"),
        (["--sampling.top_k", "20"], "whole distribution"),
        (["--model.fp32_head", "false"], "changes nothing"),
        (["--length.low", "30", "--length.high", "20"], "above high"),
        (["--length.high", "48"], "no room for an answer"),
        (["--algorithm.zero_variance", "dynamic", "--batch.oversample", "2"], "refills"),
        (
            ["--algorithm.zero_variance", "dynamic", "--regime.type", "ppo_off_policy"],
            "another regime",
        ),
    ],
)
def test_combinations_without_meaning_are_refused_with_the_reason(overrides, reason):
    assert reason in message(overrides=overrides)


def test_group_of_one_names_the_key():
    text = message(overrides=["--batch.completions", "1"])
    assert "batch.completions" in text
    assert "greater than or equal to 2" in text


@pytest.mark.parametrize("content", ["steps = [", "steps 3", "[a\n"])
def test_broken_toml_names_file_and_place(tmp_path: Path, content):
    file = tmp_path / "broken.toml"
    file.write_text(content)
    text = message(files=[file])
    assert str(file) in text
    assert "line 1" in text or "end of document" in text


def test_missing_file_and_recipe_are_named(tmp_path: Path):
    assert "no such file" in message(files=[tmp_path / "none.toml"])
    with pytest.raises(InputError, match="nearest: 'scalerl'"):
        load_config(recipe="scaleRL")


@pytest.mark.parametrize("words", [["--steps"], ["--steps", "--seed", "1"], ["steps", "3"]])
def test_command_line_without_a_value_is_refused(words):
    with pytest.raises(InputError):
        load_config(overrides=words)


def test_negative_and_scientific_values_are_values():
    assert parse_overrides(["--a.b", "-3", "--c=1e-6"]) == {"a": {"b": -3}, "c": 1e-6}


@given(
    recipe=st.sampled_from(recipe_names()),
    steps=st.integers(1, 10**6),
    lr=st.floats(1e-9, 1.0, allow_nan=False),
    phrase=st.text(min_size=1, max_size=12),
)
def test_the_written_config_reads_back_the_same(tmp_path_factory, recipe, steps, lr, phrase):
    before = load_config(recipe=recipe)
    tree = before.model_dump()
    tree["steps"], tree["optimizer"]["lr"], tree["length"]["phrase"] = steps, lr, phrase
    config = Config.model_validate(tree)
    file = tmp_path_factory.mktemp("config") / "config.toml"
    file.write_text(dump_toml(config), "utf-8")
    assert load_config([file]) == config


def test_differences_name_the_changed_key_only():
    one, two = load_config(), load_config(overrides=["--optimizer.lr", "1e-3"])
    assert differences(one, two) == {"optimizer.lr": (5e-4, 1e-3)}


def test_every_setting_has_a_name_that_an_error_can_point_to():
    assert {"steps", "optimizer.lr", "loss.clip_low", "length.cache", "regime.k"} <= set(
        known_keys()
    )


def test_configuration_is_importable_without_torch():
    code = "import sys, scalerl.config; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
