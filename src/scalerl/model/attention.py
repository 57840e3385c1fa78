"""Attention that gives the same bits in the trainer and in the generator.

Two programs that compute the same attention in another order differ in the last bits, and a trained
model can amplify that: at a token after a forced phrase, where it has never been, a hundredfold, to
4e-5 nats of log-prob between two plain FP32 implementations. Computed in float64 and rounded once,
both sides come to the same float32 numbers whatever their order. Everything else in a model works
row by row, and with one thread MKL computes a row of a product alike whatever rows are beside it
(from four rows on), so log-probs on both sides are then equal to the last bit.

So with FP32 weights on a CPU, where float64 costs little, attention is taken in float64. Elsewhere
each side uses its own, and the mismatch is what it is measured to be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

FLOAT64 = "scalerl_float64"


def wants_float64(tensor: Tensor) -> bool:
    """Whether attention over this is taken in float64: FP32 on a CPU."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


@contextmanager
def attention_of(model: PreTrainedModel, name: str) -> Iterator[None]:
    """The model uses the registered attention ``name`` inside, and its own again after."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def trainer_attention(model: PreTrainedModel) -> Iterator[None]:
    """SDPA in float64 inside, where the model uses SDPA and :func:`wants_float64` holds."""
    weight = next(model.parameters())
    if model.config._attn_implementation != "sdpa" or not wants_float64(weight):
        yield
        return
    AttentionInterface.register(FLOAT64, float64_attention)
    AttentionMaskInterface.register(FLOAT64, sdpa_mask)
    with attention_of(model, FLOAT64):
        yield


def float64_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Transformers' SDPA attention on float64 copies: ``[B, H, T, h]`` → ``[B, T, H, h]``."""
    out, _ = sdpa_attention_forward(
        module, query.double(), key.double(), value.double(), attention_mask, **options
    )
    return out.to(query.dtype), None
