import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from scalerl.errors import InputError
from scalerl.model import load
from scalerl.model.load import load_model, load_tokenizer, save_model
from scalerl.model.tiny import tiny_model, tiny_tokenizer


def test_tiny_model_has_the_documented_size_and_is_seeded_apart_from_the_global_generator():
    state = torch.random.get_rng_state()
    a, b, c = tiny_model(seed=3), tiny_model(seed=3), tiny_model(seed=4)
    assert torch.equal(state, torch.random.get_rng_state())
    assert sum(p.numel() for p in a.parameters()) == 98_624
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
    assert not torch.equal(a.lm_head.weight, c.lm_head.weight)


def test_fan_in_initialisation():
    model = tiny_model(seed=0)
    layer = model.model.layers[0]
    expected = {
        model.model.embed_tokens: 0.5,
        model.lm_head: 0.02,
        layer.mlp.up_proj: 64**-0.5,
        layer.self_attn.o_proj: 64**-0.5 / 2,
        layer.mlp.down_proj: 192**-0.5 / 2,
    }
    for module, std in expected.items():
        assert module.weight.std().item() == pytest.approx(std, rel=0.05)


def test_tokenizer_is_one_token_a_character_and_loads_without_custom_code(tmp_path):
    tokenizer = tiny_tokenizer()
    assert len(tokenizer) == 32
    text = "3a+8b-4c*7=<think>a+8=1b-4=7c*7=9</think><answer>9</answer>"
    save_model(tiny_model(seed=0), tmp_path / "start", tokenizer)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "start")
    for each in (tokenizer, loaded, load_tokenizer(tmp_path / "start")):
        ids = each(text + each.eos_token)["input_ids"]
        assert len(ids) == 11 + 1 + 15 + 1 + 3 + 1
        assert ids[-1] == each.eos_token_id == 1
        assert each.pad_token_id == 0
        assert each.decode(ids, skip_special_tokens=True) == text
        assert each.decode(ids) == text + "<eos>"


def test_model_round_trip_is_exact_and_can_be_read_as_bfloat16(tmp_path):
    model = tiny_model(seed=5)
    save_model(model, tmp_path / "m")
    for a, b in zip(
        model.named_parameters(), load_model(tmp_path / "m").named_parameters(), strict=True
    ):
        assert a[0] == b[0]
        assert torch.equal(a[1], b[1])
    rounded = load_model(tmp_path / "m", "bfloat16")
    assert torch.equal(rounded.lm_head.weight, model.lm_head.weight.bfloat16())


def test_saving_replaces_whole_folders_and_leaves_the_old_one_when_interrupted(
    tmp_path, monkeypatch
):
    path = tmp_path / "m"
    save_model(tiny_model(seed=0), path)
    (path / "stale.txt").write_text("from before")
    save_model(tiny_model(seed=1), path)
    assert not (path / "stale.txt").exists()

    def interrupted(fd):
        raise KeyboardInterrupt

    monkeypatch.setattr(load.os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_model(tiny_model(seed=2), path)
    assert torch.equal(load_model(path).lm_head.weight, tiny_model(seed=1).lm_head.weight)
    assert os.listdir(tmp_path) == ["m"]


def test_pickled_weights_are_refused_with_a_way_out(tmp_path):
    path = tmp_path / "m"
    save_model(tiny_model(seed=0), path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin.*convert them to safetensors"):
        load_model(path)


def test_missing_weights_are_refused_not_made_up(tmp_path):
    path = tmp_path / "m"
    save_model(tiny_model(seed=0), path)
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"missing: model\.layers\.0\.mlp\.up_proj\.weight"):
        load_model(path)


def test_unreadable_folders_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="no such model folder"):
        load_model(tmp_path / "none")
    path = tmp_path / "m"
    path.mkdir()
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(path)
    save_model(tiny_model(seed=0), path)
    with pytest.raises(InputError, match="no readable tokenizer"):
        load_tokenizer(path)
    (path / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(InputError, match="not a readable model checkpoint"):
        load_model(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no \*\.safetensors"):
        load_model(path)
