"""Every family through a whole round: generate, score, train, evaluate, export."""

from pathlib import Path

import pytest
import torch
import transformers
from test_learning import Quiet
from transformers import AutoModelForCausalLM

from scalerl.config import Config, load_config
from scalerl.model.load import load_model, load_tokenizer, save_model
from scalerl.model.tiny import tiny_tokenizer
from scalerl.pipeline.records import current_rows
from scalerl.pipeline.session import run_new

SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
FAMILIES = {
    "Llama": {},
    "SmolLM2": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": 16},
    "Qwen2": {},
    "Qwen3": {},
    "Gemma": {"num_key_value_heads": 1},
    "Gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 8},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "Llama4Text": {
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 48,
        "attention_chunk_size": 128,
        "moe_layers": [0, 1],
    },
}
EXPERTS = {"Mixtral": 2, "Qwen3Moe": 2, "Llama4Text": 1}


def write_model(family: str, folder: Path) -> None:
    kind = "Llama" if family == "SmolLM2" else family
    config = getattr(transformers, f"{kind}Config")(**SIZES | FAMILIES[family])
    attention = "eager" if family == "Gemma2" else "sdpa"  # SDPA has no softcap
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    save_model(model, folder, tiny_tokenizer())


@pytest.fixture
def config(tmp_path, small_config) -> Config:
    """Two steps on prompts whose reward a random model sometimes gets."""
    lines = [f'{{"prompt": "{a}a+{b}=", "answer": "{a}"}}\n' for a in range(8) for b in range(5)]
    (tmp_path / "prompts.jsonl").write_text("".join(lines))
    (tmp_path / "run.toml").write_text(
        f"""
steps = 2
[model]
path = "{tmp_path / "model"}"
[[data.sources]]
path = "{tmp_path / "prompts.jsonl"}"
reward = "rewards_of_tests:even"
[execution]
mode = "interleaved"
[batch]
prompts = 4
completions = 4
rows_per_pass = 8
tokens_per_pass = 128
[sampling]
slots = 16
max_new_tokens = 12
[length]
type = "none"
[algorithm]
truncated = "keep"
[regime]
type = "synchronous"
[evaluation]
completions = 2
every = 100
"""
    )
    return load_config([tmp_path / "run.toml"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_of_every_family(family, config, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    write_model(family, tmp_path / "model")
    run = tmp_path / "run"
    assert run_new(config, run, Quiet(), starts=tmp_path) == "done"
    steps, curve = (current_rows(run / f"{name}.jsonl") for name in ("steps", "curve"))
    assert [row["step"] for row in curve] == [0, 2]
    for row in steps:
        assert row["applied"]
        assert row["gradient_norm"] > 0
    assert steps[0]["equal_weights_mismatch_max"] <= 1e-5  # generator and trainer agree
    assert steps[0]["equal_weights_tokens"] == steps[0]["n_tokens"] > 0
    experts = EXPERTS.get(family)
    assert ("expert_load" in steps[0]) == (experts is not None)
    if experts:
        assert steps[0]["expert_tokens_dropped"] == 0
        assert len(steps[0]["expert_load"]) == 4
        assert sum(steps[0]["expert_load"]) == pytest.approx(4, abs=1e-3)
    exported = run / "checkpoints" / "step-000002" / "model"
    before, after = load_model(tmp_path / "model"), load_model(exported)
    assert load_tokenizer(exported).decode([2]) == "<think>"
    assert type(after) is type(before)
    moved = [
        not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert any(moved)
