"""What a model needs, on paper: parameters, and what a forward keeps for its backward.

The model is built of shapes without memory (torch's meta device) and run once in the shape of a
pass; the tensors that autograd would save are counted, each storage once, parameters apart. So any
architecture is counted as it is, and nothing is estimated from a formula.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig

from scalerl.model.attention import LONGEST, TRAINER, attention_of, register_trainer
from scalerl.model.logprobs import CHUNK_FLOATS, body_of

FUSED = "scalerl_plan"
CHUNK_COPIES = 4  # logits, log-probs, their exponentials, one product: of a chunk of the head


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What memory follows from, counted in elements."""

    parameters: int
    largest: int  # elements of the largest parameter
    layer: int  # elements of the largest repeated layer
    vocabulary: int
    hidden: int
    layers: int
    kv_width: int  # elements of keys and values of one token, all layers


def shape_of(config: PreTrainedConfig) -> Shape:
    model = _on_meta(config, torch.float32)
    text = config.get_text_config()
    heads = text.num_attention_heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    repeated = [m for m in model.modules() if type(m).__name__ in kinds]
    sizes = [p.numel() for p in model.parameters()]
    return Shape(
        parameters=sum(sizes),
        largest=max(sizes),
        layer=max((sum(p.numel() for p in m.parameters()) for m in repeated), default=0),
        vocabulary=text.vocab_size,
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        kv_width=2 * text.num_hidden_layers * (text.num_key_value_heads or heads) * head,
    )


def activation_bytes(
    config: PreTrainedConfig,
    *,
    rows: int,
    tokens: int,
    dtype: torch.dtype,
    checkpointing: bool = False,
    same_bits: bool = False,
) -> int:
    """Bytes that the body's forward keeps for its backward, over ``rows`` × ``tokens``.

    Args:
        checkpointing: layer inputs of all layers, and everything of one.
        same_bits: with the attention of FP32 weights on a CPU.
    """
    model = _on_meta(config, dtype).train()
    saved = _Saved({p.untyped_storage()._cdata for p in model.parameters()})
    ids = torch.zeros(rows, tokens, dtype=torch.int64, device="meta")
    register_trainer()
    AttentionInterface.register(FUSED, _fused)
    name = TRAINER if same_bits and tokens <= LONGEST else FUSED
    with attention_of(model, name), torch.autograd.graph.saved_tensors_hooks(saved, lambda x: x):
        output = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state
    stream = output.numel() * output.element_size()
    if checkpointing:
        layers = config.get_text_config().num_hidden_layers
        return stream * (layers + 1) + saved.total // layers
    return saved.total + stream


def head_bytes(shape: Shape, *, tokens: int, weights: torch.dtype, fp32_head: bool) -> int:
    """Chunks of the head, the hidden states it scores, and its FP32 weight and gradient."""
    chunk = min(tokens * shape.vocabulary, max(CHUNK_FLOATS, 4 * shape.vocabulary))
    copies = 4 * CHUNK_COPIES * chunk + 2 * 4 * tokens * shape.hidden
    matrix = shape.vocabulary * shape.hidden
    cast = 4 * matrix if fp32_head and weights != torch.float32 else 0
    return copies + cast + 4 * matrix


def _fused(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: object, **_: object):
    """The model's own attention as far as memory goes: fused, nothing of T × T is kept. A name
    without a rule for masks, because building one looks at values, which meta tensors lack."""
    grouped = query.shape[1] != key.shape[1]
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
    return out.transpose(1, 2), None


class _Saved:
    """Counts what autograd saves."""

    def __init__(self, parameters: set[int]) -> None:
        self._seen = parameters
        self.total = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.total += storage.nbytes()
        return tensor


def _on_meta(config: PreTrainedConfig, dtype: torch.dtype):
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # initialisers speak of tensors without values
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
