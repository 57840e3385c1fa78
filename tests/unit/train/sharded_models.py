"""Small models for tests of the sharded trainer, the same in every process that makes them."""

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from scalerl.model.lora import add_lora
from scalerl.model.tiny import tiny_model


def make_model(family="llama", *, tied=False, dtype="float32", lora=False):
    if family == "experts":
        config = Qwen3MoeConfig(
            vocab_size=32,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=48,
            moe_intermediate_size=24,
            num_experts=4,
            num_experts_per_tok=2,
            max_position_embeddings=64,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config)
    else:
        model = tiny_model(seed=0)
    if tied:
        model.config.tie_word_embeddings = True
        model.lm_head.weight = model.model.embed_tokens.weight
    if lora:
        add_lora(model, rank=4, alpha=8, targets=(), seed=0)
    return model.to(getattr(torch, dtype))
