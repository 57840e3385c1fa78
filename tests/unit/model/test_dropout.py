"""The trainer computes what the generator does, whatever a checkpoint's config says of dropout."""

from __future__ import annotations

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
)

from scalerl.model.load import without_dropout

IDS = torch.arange(1, 9)[None]


def test_no_dropout_is_left_in_training_mode() -> None:
    torch.manual_seed(0)
    for model in (
        GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=16, n_layer=2, n_head=2, n_positions=16)),
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=16,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                attention_dropout=0.5,
            )
        ),
        Starcoder2ForCausalLM(
            Starcoder2Config(
                vocab_size=16,
                hidden_size=16,
                intermediate_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=2,
                residual_dropout=0.5,
                embedding_dropout=0.5,
            )
        ),
    ):
        model.train()
        assert not torch.equal(model(IDS).logits, model(IDS).logits)
        without_dropout(model)
        assert torch.equal(model(IDS).logits, model(IDS).logits)
        assert torch.equal(model(IDS).logits, model.eval()(IDS).logits)
