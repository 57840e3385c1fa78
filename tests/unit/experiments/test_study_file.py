"""STUDY.toml: expansion to resolved configurations, and every way in which it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from scalerl.errors import InputError
from scalerl.experiments.study_file import Study, load_study
from scalerl.experiments.variants import SETS

EXAMPLES = Path(__file__).parents[3] / "examples"
STUDIES = (
    "leave_one_out", "recipes", "forward", "axes", "replicates", "regimes", "collapse", "precision",
)  # fmt: skip


def study(tmp_path: Path, text: str, *, steps: int = 40) -> Study:
    file = tmp_path / "mine.toml"
    file.write_text(f"budget.steps = {steps}\n" + text)
    return load_study(file)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputError) as refused:
        study(tmp_path, text)
    return str(refused.value)


def changed(found: Study) -> dict[str, dict[str, object]]:
    return {v.name: {k: new for k, (_, new) in v.changed.items()} for v in found.variants}


def test_leave_one_out_changes_one_axis_each(tmp_path):
    found = changed(study(tmp_path, 'sets = ["leave_one_out"]'))
    assert found["scalerl"] == {}
    assert found["prompt_advantage"] == {"algorithm.advantage": "prompt"}
    assert found["keep_zero_variance"] == {"algorithm.zero_variance": "keep"}
    assert found["sample_average"] == {"algorithm.aggregation": "sample"}
    assert found["off_policy"] == {"regime.type": "ppo_off_policy"}
    assert found["uniform_sampling"] == {"curriculum.type": "uniform", "curriculum.threshold": None}
    assert found["no_fp32_head"] == {"model.fp32_head": False, "model.weights": "bfloat16"}
    assert found["dapo"] == {
        "loss.type": "dapo",
        "loss.ratio_max": None,
        "loss.clip_low": 0.2,
        "loss.clip_high": 0.26,
    }
    assert {k.partition(".")[0] for k in found["length_penalty"]} == {"length"}
    assert len(found) == 9


def test_the_head_alone_changes_where_the_body_is_bfloat16_already(tmp_path):
    text = 'sets = ["leave_one_out"]\n[base.settings]\nmodel.weights = "bfloat16"'
    assert changed(study(tmp_path, text))["no_fp32_head"] == {"model.fp32_head": False}


def test_recipes_are_the_other_five_with_equal_completions(tmp_path):
    found = study(tmp_path, 'sets = ["recipes"]', steps=100)
    names = {v.name for v in found.variants}
    assert names == {"scalerl", "base", "deepseek_grpo", "qwen2.5_dapo", "magistral", "minimax"}
    steps = {v.name: v.config.steps for v in found.variants}
    groups = {v.name: v.config.batch.groups for v in found.variants}
    assert groups["magistral"] == 53  # 32 × 1.6667
    assert steps["base"] == 100
    assert steps["magistral"] == round(100 * 32 / 53) == 60


def test_equal_steps_leave_a_larger_batch_more_completions(tmp_path):
    text = 'budget.equal = "steps"\nsets = ["recipes"]'
    assert {v.config.steps for v in study(tmp_path, text).variants} == {40}


def test_evaluations_are_spread_over_each_variants_own_steps(tmp_path):
    text = "evaluation.points = 10\n[variants.big]\nbatch.prompts = 64"
    base, big = study(tmp_path, text, steps=100).variants
    assert (base.config.steps, base.config.evaluation.every) == (100, 10)
    assert (big.config.steps, big.config.evaluation.every) == (50, 5)


def test_axes_hold_the_batch_fixed_when_completions_change(tmp_path):
    found = study(tmp_path, 'sets = ["axes"]')
    for name in ("completions_half", "completions_double"):
        batch = found.variant(name).config.batch
        assert batch.prompts * batch.completions == 32 * 16
    short = found.variant("budget_short").config
    assert short.sampling.max_new_tokens == 34
    assert (short.length.low, short.length.high) == (24, 26)


def test_a_pretrained_base_has_no_model_size_axis(tmp_path):
    names = {
        v.name
        for v in study(
            tmp_path, 'sets = ["axes"]\n[base.settings]\nmodel.path = "somewhere"'
        ).variants
    }
    assert not {n for n in names if n.startswith("model_")}


def test_a_grid_is_every_combination_and_its_base_cell_stands_for_itself(tmp_path):
    text = '[grid.g]\nregime.type = ["pipeline", "ppo_off_policy"]\nregime.k = [1, 8]'
    found = study(tmp_path, text)
    assert [v.name for v in found.variants] == ["scalerl", "g-pipeline-1", "g-off-1", "g-off-8"]
    assert found.variant("g-off-8").config.regime.k == 8
    assert len(found.notes) == 1
    assert "g-pipeline-8 is the base" in found.notes[0]


def test_replicates_are_the_base_alone_with_its_seeds(tmp_path):
    found = study(tmp_path, 'sets = ["replicates"]\nseeds = [3, 4]')
    assert [(v.name, v.seeds) for v in found.variants] == [("scalerl", (3, 4))]


def test_the_base_may_have_more_seeds(tmp_path):
    found = study(tmp_path, "base.seeds = [0, 1, 2]\n[variants.a]\nloss.ratio_max = 8")
    assert [v.seeds for v in found.variants] == [(0, 1, 2), (0,)]


def test_a_run_is_deterministic_and_single_threaded_unless_said_otherwise(tmp_path):
    text = "[variants.a]\nloss.ratio_max = 8\n"
    execution = study(tmp_path, text).base.config.execution
    assert (execution.mode, execution.threads) == ("interleaved", 1)
    other = study(tmp_path, text + '[base.settings]\nexecution.mode = "async"')
    assert other.base.config.execution.mode == "async"


def test_a_change_of_recipe_is_a_variant(tmp_path):
    found = study(tmp_path, '[variants.other]\nrecipe = "minimax"')
    assert found.variant("other").config.recipe == "minimax"
    assert found.variant("other").changed["algorithm.advantage"] == ("batch", "prompt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[variants.a]\nloss.ratio_max = 5", "variants.a: it is equal to the base"),
        ("[variants.a]\nabout = 'nothing'", "variants.a: it changes nothing"),
        (
            "[variants.a]\nloss.ratio_max = 8\n[variants.b]\nloss.ratio_max = 8.0",
            "variants.b: it is equal to the variant 'a'",
        ),
        ('sets = ["leave_one_out"]\nbase.recipe = "minimax"', "prompt_advantage: it is equal"),
        ('sets = ["leave_one"]', "nearest: 'leave_one_out'"),
        ("", "there is no variant"),
        ("[variants.scalerl]\nloss.ratio_max = 8", "variants.scalerl: the name is used twice"),
        ("[variants.'a/b']\nloss.ratio_max = 8", "a name is a folder"),
        ("[variants.a]\nsteps = 3", "variants.a.steps: a study sets it: give budget.steps"),
        (
            "[base.settings]\nevaluation.every = 2\n[variants.a]\nloss.ratio_max = 8",
            "base.settings.evaluation.every: a study sets it: give evaluation.points",
        ),
        ('[variants.a]\nrecipe = "scale_rl"', "no recipe 'scale_rl' (nearest: 'scalerl')"),
        ("[variants.a]\nloss.ratio_maxx = 8", "variants.a: unknown key 'loss.ratio_maxx'"),
        ("seeds = [1, 1]\n[variants.a]\nloss.ratio_max = 8", "each seed once"),
        ("race.rounds = [0.5, 0.4, 1.0]\n[variants.a]\nloss.ratio_max = 8", "shares must rise"),
        ("race.rounds = [0.5, 0.9]\n[variants.a]\nloss.ratio_max = 8", "the last of them 1"),
        ("stages.extend_to = 40\n[variants.a]\nloss.ratio_max = 8", "is not above budget.steps"),
        (
            "stages.extend_to = 80\nstages.extend = ['b']\n[variants.a]\nloss.ratio_max = 8",
            "stages.extend: no variant 'b'",
        ),
        ("budget.stepz = 4\n[variants.a]\nloss.ratio_max = 8", "unknown key 'budget.stepz'"),
        ("[grid.g]\nloss.ratio_max = 8", "grid.g.loss.ratio_max: give a list"),
    ],
)  # fmt: skip
def test_refused_by_key(tmp_path, text, words):
    message = refusal(tmp_path, text)
    assert words in message
    assert "mine.toml" in message


def test_all_faults_come_at_once(tmp_path):
    message = refusal(
        tmp_path,
        "[variants.a]\nloss.type = 'gspoo'\n[variants.b]\noptimizer.lr = -1\n"
        "[variants.c]\nloss.ratio_max = 5\n",
    )
    assert "3 faults" in message
    assert all(word in message for word in ("variants.a", "variants.b", "variants.c"))


def test_a_missing_or_broken_file_is_named(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        load_study(tmp_path / "nowhere.toml")
    (tmp_path / "broken.toml").write_text("seeds = [")
    with pytest.raises(InputError, match="not valid TOML"):
        load_study(tmp_path / "broken.toml")


@pytest.mark.parametrize("name", STUDIES)
def test_the_examples_expand(name):
    found = load_study(EXAMPLES / f"{name}.toml")
    assert found.name == name
    assert all(v.config.execution.mode == "interleaved" for v in found.variants)
    assert {s for s in SETS if s == name} <= set(found.plan.sets)
