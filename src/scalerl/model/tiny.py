"""The model of the embedded default: a small Llama and a tokenizer of single characters.

Both are ordinary transformers objects, saved and loaded like any other checkpoint.
"""

from __future__ import annotations

import math

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHARACTERS = "0123456789+-*=abcdefghijkl"
ASCII = "".join(map(chr, range(32, 127))) + "\n"
PAD, END = "<pad>", "<eos>"


def tiny_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """One token a character, one a tag; padding 0, end of text 1. 32 entries by default.

    A character outside the vocabulary raises when it is encoded; nothing maps to an unknown token.
    """
    entries = [PAD, END, *TAGS, *characters]
    backend = Tokenizer(models.WordLevel({entry: i for i, entry in enumerate(entries)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # type: ignore
    backend.decoder = decoders.Fuse()  # type: ignore[assignment]
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def tiny_model(
    *,
    seed: int,
    vocabulary: int = 32,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 1,
    intermediate: int = 192,
    positions: int = 128,
) -> LlamaForCausalLM:
    """A Llama with random weights: 98,624 parameters at the default sizes.

    Fan-in initialisation (standard deviation 1/√fan_in; outputs into the residual stream divided by
    √(2 · layers); embedding .5, head .02): with transformers' usual .02 everywhere a model of this
    size does not leave chance. Deterministic in ``seed``, without touching the global generator.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
        use_cache=True,
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim < 2:
                weight.fill_(1.0)
            else:
                weight.normal_(0.0, _std(name, weight, layers), generator=generator)
    return model


def _std(name: str, weight: torch.Tensor, layers: int) -> float:
    if "embed_tokens" in name:
        return 0.5
    if "lm_head" in name:
        return 0.02
    fan_in = 1 / math.sqrt(weight.shape[1])
    into_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
    return fan_in / math.sqrt(2 * layers) if into_residual else fan_in
