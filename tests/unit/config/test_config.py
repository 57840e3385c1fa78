"""Configuration: layers, messages a user can act on, and a file that comes back the same."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.config import Config, differences, dump_toml, load_config, recipe_names
from scalerl.config.load import known_keys, parse_overrides
from scalerl.config.schema import TinyModel
from scalerl.errors import InputError
from scalerl.experiments.study_file import load_study


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
        ("lrr", "optimizer.lr"),
        ("batch.prompt", "batch.prompts"),
        ("batch_size", "batch.prompts"),
        ("optimiser", "optimizer"),
        ("optimizer.epsilon", "optimizer.eps"),
        ("sft.learning_rate", "sft.lr"),
        ("sampling.max_tokens", "sampling.max_new_tokens"),
        ("learning_rate", "optimizer.lr"),
        ("group_size", "batch.completions"),
        ("loss.ratiomax", "loss.ratio_max"),
        ("warmup_steps", "optimizer.warmup_steps"),
    ],
)
def test_other_trainers_words_and_misplaced_keys_find_theirs(key, nearest):
    text = message(overrides=[f"--{key}", "1"])
    assert f"command line: unknown key {key!r} (nearest: {nearest!r})" in text


def test_a_key_unlike_all_others_names_one_too():
    assert "unknown key 'foo' (nearest: '" in message(overrides=["--foo", "1"])
    assert "unknown key 'batch.foo' (nearest: 'batch." in message(overrides=["--batch.foo", "1"])


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


def test_what_does_not_go_together_comes_all_at_once_each_by_key_and_file(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text(
        "[sampling]\nmax_new_tokens = 30\ntop_k = 5\n"
        "[length]\nlow = 50\n"
        "[algorithm]\nzero_variance = 'dynamic'\n"
        "[batch]\noversample = 2.0\n"
    )
    text = message(files=[file], overrides=["--length.high", "44", "--model.fp32_head", "false"])
    lines = text.split("\n  ")
    assert lines[0] == "4 faults in the configuration:"
    assert [line.partition(":")[0] for line in lines[1:]].count(str(file)) == 2
    for fault in (
        f"{file}: sampling.top_k: training samples the whole distribution",
        "command line: length.high: low (50) is above high (44)",
        f"{file}: batch.oversample: algorithm.zero_variance = 'dynamic' refills",
        "command line: model.fp32_head = false changes nothing",
    ):
        assert any(line.startswith(fault) for line in lines), fault


def test_what_does_not_go_together_is_said_beside_bad_values():
    text = message(
        overrides=[
            *("--optimizer.lr", "fast", "--stepz", "3", "--length.low", "50"),
            *("--length.high", "49", "--model.fp32_head", "false"),
        ]
    )
    assert text.startswith("4 faults")
    for said in ("optimizer.lr: must be", "'stepz'", "low (50) is above", "changes nothing"):
        assert said in text


def test_a_default_in_place_of_a_bad_value_is_held_against_nothing():
    text = message(overrides=["--length.high", "x", "--sampling.max_new_tokens", "30"])
    assert text.startswith("configuration:\n  command line: length.high: must be a number")


def test_the_file_that_set_the_key_is_named_not_the_recipe(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text("[length]\nlow = 30\nhigh = 20\n")
    assert f"{file}: length.low: low (30) is above high (20)" in message(files=[file])
    file.write_text("[sampling]\nmax_new_tokens = 30\n")
    assert f"{file}: sampling.max_new_tokens: length.high (40)" in message(files=[file])
    file.write_text("[loss]\ntype = 'none'\n")
    assert f"{file}: loss: " in message(files=[file])


@pytest.mark.parametrize(
    "words",
    [
        "optimizer.lr=inf",
        "optimizer.lr=nan",
        "optimizer.lr=true",
        "loss.ratio_max=inf",
        "sampling.temperature=inf",
        "steps=true",
        'steps="3"',
        "batch.tokens_per_pass=true",
    ],
)
def test_what_is_no_finite_number_is_none(words):
    key = words.partition("=")[0]
    assert f"command line: {key}: " in message(overrides=[f"--{words}"])


def test_an_infinite_clip_is_refused_where_the_loss_has_one():
    text = message(overrides=["--loss.type=dapo", "--loss.clip_high=inf"])
    assert "loss.clip_high: Input should be a finite number" in text


@pytest.mark.parametrize(("hidden", "heads"), [(63, 4), (60, 4), (63, 3), (64, 5), (64, 64)])
def test_a_tiny_model_that_cannot_be_made_is_refused(hidden, heads):
    text = message(overrides=[f"--model.tiny.hidden={hidden}", f"--model.tiny.heads={heads}"])
    assert f"model.tiny.hidden: hidden ({hidden}) must be a multiple of twice" in text


@pytest.mark.parametrize(("hidden", "heads"), [(60, 5), (4, 2), (48, 8)])
def test_a_tiny_model_that_is_accepted_can_be_made(hidden, heads):
    import torch

    from scalerl.model.tiny import tiny_model

    tiny = load_config(
        overrides=[f"--model.tiny.hidden={hidden}", f"--model.tiny.heads={heads}"]
    ).model.tiny
    model = tiny_model(seed=0, hidden=tiny.hidden, heads=tiny.heads, layers=1)
    assert model(torch.tensor([[2, 3]])).logits.shape == (1, 2, 32)
    assert model.config.max_position_embeddings == TinyModel.positions


def test_the_embedded_models_positions_hold_prompt_and_completion(tmp_path: Path):
    fits = ["--length.type", "none", "--sampling.max_new_tokens"]
    assert load_config(overrides=[*fits, "108"]).sampling.max_new_tokens == 108
    assert load_config(overrides=[*fits, "400", "--model.path", "some/folder"])
    text = message(overrides=[*fits, "109"])
    assert "sampling.max_new_tokens (109) is too much for the embedded model" in text
    assert "128 positions, of which the longest prompt takes 20" in text


@pytest.mark.parametrize("file", [*Path("examples").glob("*.toml")], ids=lambda f: f.stem)
def test_every_example_loads(file):
    content = tomllib.loads(file.read_text("utf-8"))
    assert load_study(file) if "budget" in content else load_config([file])


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_written_in_full_with_all_defaults_loads_again(tmp_path: Path, recipe):
    config = load_config(recipe=recipe)
    (tmp_path / "config.toml").write_text(dump_toml(config))
    assert load_config([tmp_path / "config.toml"]) == config


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["--sampling.top_p", "0.9"], "whole distribution"),
        (["--sampling.top_k", "20"], "whole distribution"),
        (["--model.fp32_head", "false"], "changes nothing"),
        (["--length.low", "30", "--length.high", "20"], "above high"),
        (["--length.high", "48"], "no room for an answer"),
        (["--length.solution_tokens", "500"], "length.solution_tokens (500) is above"),
        (["--length.type", "penalty", "--length.cache", "60"], "length.cache: cache (60) is above"),
        (["--length.type", "penalty", "--length.limit", "60"], "never be full"),
        (["--sampling.recompute_kv=true", "--regime.type=synchronous"], "in flight"),
        (["--sampling.recompute_kv=true", "--regime.type=ppo_off_policy"], "in flight"),
        (["--algorithm.dynamic_limit", "20"], "bounds the refill"),
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
    assert parse_overrides(["--a", ".5", "--b", "-2."]) == {"a": 0.5, "b": -2.0}


@given(
    recipe=st.sampled_from(recipe_names()),
    steps=st.integers(1, 10**6),
    lr=st.floats(1e-9, 1.0, allow_nan=False),
    phrase=st.text(min_size=1, max_size=12),
)
def test_the_written_config_reads_back_the_same(tmp_path_factory, recipe, steps, lr, phrase):
    before = load_config(recipe=recipe)
    tree = before.model_dump()
    tree["steps"], tree["optimizer"]["lr"], tree["length"]["phrase"] = (
        steps,
        lr,
        f"{phrase}</think>",
    )
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
