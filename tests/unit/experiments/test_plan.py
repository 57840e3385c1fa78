"""Memory on paper: parts by hand, and what each setting changes."""

import pytest
import torch

from scalerl.cli.main import main
from scalerl.config import load_config
from scalerl.experiments.plan import lines_of, make_plan, model_config
from scalerl.model.attention import trainer_attention
from scalerl.model.footprint import activation_bytes, shape_of
from scalerl.model.tiny import tiny_model

N = 98_624


def plan_of(*overrides):
    config = load_config([], overrides=overrides)
    return make_plan(config, model_config(config))


def test_the_embedded_model_by_hand():
    plan = plan_of()
    assert plan.trainer["weights"] == plan.trainer["gradients"] == 4 * N
    assert plan.trainer["optimiser"] == 8 * N
    assert plan.tokens_per_pass == 64 * (20 + 48)
    assert plan.generator["KV"] == 2 * 256 * 68 * (2 * 2 * 1 * 16) * 4
    assert plan.shared == 4 * 4 * N


def test_settings_change_the_parts_they_should():
    plain, half = plan_of(), plan_of("--model.weights=bfloat16")
    assert half.trainer["weights"] == plain.trainer["weights"] / 2
    assert half.trainer["optimiser"] == 12 * N
    assert half.generator["KV"] == plain.generator["KV"] / 2
    two = plan_of("--execution.trainer_ranks=2")
    assert two.trainer["gradients"] == plain.trainer["gradients"] / 2
    fewer = plan_of("--batch.tokens_per_pass=700")
    assert fewer.tokens_per_pass == 10 * 68
    assert fewer.trainer["activations"] < plain.trainer["activations"] / 5
    kept = plan_of("--execution.activation_checkpointing=true")
    assert kept.trainer["activations"] < plain.trainer["activations"]


def test_activations_are_what_autograd_saves():
    """Counted on shapes without memory, and on real tensors."""
    config = tiny_model(seed=0).config
    saved: dict[int, int] = {}

    def note(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    model = tiny_model(seed=0)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    with (
        trainer_attention(model, 32),
        torch.autograd.graph.saved_tensors_hooks(note, lambda x: x),
    ):
        out = model.model(input_ids=torch.zeros(4, 32, dtype=torch.int64), use_cache=False)
    real = sum(size for place, size in saved.items() if place not in own)
    stream = out.last_hidden_state.numel() * 4
    counted = activation_bytes(config, rows=4, tokens=32, dtype=torch.float32, same_bits=True)
    assert counted == pytest.approx(real + stream, rel=0.02)


def test_shapes_of_a_model_without_its_memory():
    shape = shape_of(tiny_model(seed=0).config)
    assert (shape.parameters, shape.vocabulary, shape.hidden, shape.layers) == (N, 32, 64, 2)
    assert shape.kv_width == 64


def test_the_command_says_whether_it_fits(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text("steps = 3\n")
    assert main(["doctor", "--plan", str(file)]) == 0
    out = capsys.readouterr().out
    assert "trainer rank × 1" in out
    assert "\nfits: " in out
    assert "DOES NOT FIT" in lines_of(plan_of(), 1000)[-1]
    assert main(["doctor", "--plan", str(tmp_path / "none.toml")]) == 2
