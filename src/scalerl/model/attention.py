"""Attention that gives the same bits in the trainer and in the generator.

Two programs that compute the same attention in another order differ in the last bits, and a trained
model can amplify that: at a token after a forced phrase, where it has never been, a hundredfold, to
4e-5 nats of log-prob between two plain FP32 implementations. So with FP32 weights on a CPU both
sides go through the three operations of :func:`attend`, on operands laid out so that MKL (one
thread) adds up each number in one order whatever else is in the batch: at least ``ROWS`` rows in a
product, and a multiple of ``LANES`` keys, of which those that a query may not see weigh exactly 0.
Everything else in a model works row by row. Log-probs on both sides are then equal to the last bit.

On another library or device the same code gives equality to rounding, nothing else changes.

Shapes: ``B`` sequences, ``H`` query heads, ``K`` key/value heads, ``T`` tokens, ``L`` keys,
``M`` queries that share a key/value head, ``h`` head size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from scalerl.errors import InputError

TRAINER = "scalerl_same_bits"
ROWS = 4
LANES = 16
LONGEST = 512  # tokens; beyond it T × T scores cost more than equal bits are worth


def wants_same_bits(tensor: Tensor) -> bool:
    """Whether equal bits are to be had: FP32 on a CPU."""
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu"


def padded(count: int, multiple: int) -> int:
    """The least multiple that is not below ``count``."""
    return -(-count // multiple) * multiple


def attend(
    q_BMh: Tensor, k_BLh: Tensor, v_BLh: Tensor, bias: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """softmax(scale · q kᵀ + bias) v, the scores soft-capped before the bias if a cap is given.

    Plain batched matmuls: with one query a row attention is KV traffic, and on the CPU these beat
    masked SDPA; the queries that share a KV head are the rows of one product.

    Args:
        bias: broadcast to ``[B, M, L]``; −inf where a query may not look.

    Returns:
        ``[B, M, h]``.
    """
    if softcap is None:
        scores = torch.baddbmm(bias, q_BMh, k_BLh.transpose(1, 2), alpha=scale)
    else:
        scores = torch.bmm(q_BMh, k_BLh.transpose(1, 2)) * scale
        scores = softcap * torch.tanh(scores / softcap) + bias
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q_BMh.dtype)
    return torch.bmm(weights, v_BLh)


def causal(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, cap: float | None
) -> Tensor:
    """Whole sequences over themselves: ``[B, H, T, h]`` and ``[B, K, T, h]`` → ``[B, T, H, h]``."""
    sequences, heads, length, _ = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    if wants_same_bits(query):
        keys = padded(length, LANES)
        key, value = (F.pad(x, (0, 0, 0, keys - length)) for x in (key, value))
        query = F.pad(query, (0, 0, 0, max(0, ROWS - length)))
    tokens, keys = query.shape[2], key.shape[2]
    place_T, place_L = (torch.arange(n, device=query.device) for n in (tokens, keys))
    hidden_TL = place_L > place_T[:, None]
    if window is not None:
        hidden_TL |= place_L <= place_T[:, None] - window
    bias_TL = torch.zeros(tokens, keys, dtype=query.dtype, device=query.device)
    bias_TL.masked_fill_(hidden_TL, -torch.inf)
    q = query.transpose(1, 2).unflatten(2, (kv_heads, group)).transpose(1, 2)
    out = attend(
        q.reshape(sequences * kv_heads, tokens * group, -1),
        key.flatten(0, 1),
        value.flatten(0, 1),
        bias_TL.repeat_interleave(group, dim=0)[None],
        scale,
        cap,
    )
    out = out.view(sequences, kv_heads, tokens, group, -1).transpose(1, 2).flatten(2, 3)
    return out[:, :length]


def training_attention(name: str, device: torch.device, weights: str) -> str | None:
    """What to load a model with whose training passes are to use `name`; None: the model's own
    choice, which is SDPA where it can.

    Raises:
        InputError: it cannot run here; says what is missing.
    """
    if name == "sdpa":
        return None
    key = f"model.attention = {name!r}"
    if device.type != "cuda":
        raise InputError(f"{key} needs a card (execution.device); 'sdpa' runs everywhere")
    if name == "flash_attention_2":
        if not is_flash_attn_2_available():
            raise InputError(f"{key} needs the package flash-attn, which is not installed")
        if weights != "bfloat16":
            raise InputError(f"{key} has no kernels for {weights}: set model.weights = 'bfloat16'")
    return name


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


def register_trainer() -> None:
    """Make the function known to transformers, which builds no mask for a name without a rule."""
    AttentionInterface.register(TRAINER, causal_attention)


@contextmanager
def trainer_attention(model: PreTrainedModel, tokens: int) -> Iterator[None]:
    """The attention of this file inside, for rows of up to ``LONGEST`` tokens padded on the right,
    where equal bits are to be had; the model's own otherwise."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if not (
        wants_same_bits(next(model.parameters()))
        and tokens <= LONGEST
        and getattr(model, "_supports_attention_backend", False)
        and model.config._attn_implementation in ("sdpa", "eager")
        and kinds <= {"full_attention", "sliding_attention"}
        and not getattr(config, "attention_dropout", 0.0)
    ):
        yield
        return
    register_trainer()
    with attention_of(model, TRAINER):
        yield


def causal_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """:func:`causal` in the form that transformers calls."""
    if s_aux is not None or attention_mask is not None:
        raise NotImplementedError("attention sinks and masks are not supported here")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return causal(query, key, value, scale, sliding_window, softcap), None
