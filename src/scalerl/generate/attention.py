"""Attention over slots: the ragged batch of one engine step inside a HF model's own forward.

A step is one row of N tokens: first the next token of each of the n active slots, then the bodies
of new prompts, one after another. The model does everything per token itself; here, in the function
that transformers calls in place of its attention, the row comes apart:

    keys, values of prompt bodies → cache      (each distinct prompt once)
    copied to the slots with the same prompt
    keys, values of the n next tokens → cache
    n queries     × cache[:n, :, :longest]     (batched matmul, later positions masked)
    body queries  × their own prompt           (causal)

Shapes: ``N`` tokens of the step, ``n`` active slots, ``H`` query heads, ``K`` key/value heads,
``L`` cache positions of a slot, ``h`` head size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel

from scalerl.errors import InputError
from scalerl.model.attention import LANES, LONGEST, ROWS, attend, causal, padded, wants_same_bits

NAME = "scalerl_slots"


class KVCache:
    """Keys and values of every layer, ``[slots, K, L, h]``, allocated when a layer first writes."""

    def __init__(self, slots: int, length: int) -> None:
        self.slots, self.length = slots, padded(length, LANES)
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Layer ``index``, shaped for key and value of ``[1, K, N, h]``."""
        if index not in self.layers:
            # Zeros: a masked position adds 0 · value, which must not be 0 · NaN.
            k, v = (
                x.new_zeros(self.slots, x.shape[1], self.length, x.shape[3]) for x in (key, value)
            )
            self.layers[index] = k, v
        return self.layers[index]

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole slots."""
        for k, v in self.layers.values():
            k[targets], v[targets] = k[sources], v[sources]

    def copy(self, copies: Copies) -> None:
        """Copy prompt bodies, in all layers."""
        for k, v in self.layers.values():
            copies.within(k, v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Prompt bodies of equal length, adjacent in the row of tokens."""

    slots: Tensor  # [c] where their keys and values go
    length: int  # tokens of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Slots whose prompt body another slot holds already, or writes in this very step."""

    sources: Tensor  # [m] slots
    targets: Tensor  # [m] slots
    length: int  # positions to copy; what is copied beyond a slot's own body is never attended

    def within(self, k: Tensor, v: Tensor) -> None:
        """Copy in one layer's keys and values."""
        for x in (k, v):
            x[self.targets, :, : self.length] = x[self.sources, :, : self.length]


@dataclass(slots=True, kw_only=True)
class StepLayout:
    """What the attention function has to know of one step. Passed through the model's forward."""

    cache: KVCache
    positions: Tensor  # [n] position of the next token of each active slot
    longest: int  # cache positions to look at: above every active slot's own; 0 without one
    chunks: tuple[Chunk, ...] = ()
    copies: Copies | None = None
    _biases: dict[tuple[int | None, torch.dtype], Tensor] = field(default_factory=dict)
    _rows: dict[int, Tensor] = field(default_factory=dict)

    def bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """``[n, 1, L]``, L being ``longest`` rounded up: 0 where a slot's next token may look, −inf
        elsewhere."""
        if (window, dtype) not in self._biases:
            columns = torch.arange(padded(self.longest, LANES), device=self.positions.device)
            hidden = columns > self.positions[:, None]
            if window is not None:
                hidden |= columns <= self.positions[:, None] - window
            bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._biases[window, dtype] = bias.masked_fill_(hidden, -torch.inf)[:, None]
        return self._biases[window, dtype]

    def rows(self, kv_heads: int) -> Tensor:
        """``[n · K]``: where the next tokens' keys go in a layer seen as ``[slots · K · L, h]``."""
        if kv_heads not in self._rows:
            n = len(self.positions)
            heads = torch.arange(n * kv_heads, device=self.positions.device) * self.cache.length
            self._rows[kv_heads] = heads + self.positions.repeat_interleave(kv_heads)
        return self._rows[kv_heads]


def register() -> None:
    """Make the function known to transformers, which builds no mask for a name without a rule."""
    AttentionInterface.register(NAME, slot_attention)


def check_supported(model: PreTrainedModel, length: int) -> None:
    """Raise InputError for a model that this attention would get wrong at slots of ``length``.

    Chunked attention is full attention up to its chunk; rotary frequencies that follow the longest
    sequence of a batch ("dynamic", "longrope") are fixed up to the original length, and beyond it
    would make a completion depend on its neighbours.
    """
    if not getattr(model, "_supports_attention_backend", False):
        raise InputError(f"{type(model).__name__}: its attention cannot be replaced")
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    chunk = getattr(config, "attention_chunk_size", None) or length
    known = {"full_attention", "sliding_attention"}
    if length <= chunk:
        known.add("chunked_attention")
    if unknown := sorted(kinds - known):
        raise InputError(
            f"{type(model).__name__}: no support for {', '.join(unknown)} at {length} positions"
        )
    rotary = getattr(config, "rope_parameters", None) or {}
    each = [rotary, *(value for value in rotary.values() if isinstance(value, dict))]
    for rope in each:
        original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        if rope.get("rope_type") in ("dynamic", "longrope") and length > original:
            raise InputError(
                f"{type(model).__name__}: {rope['rope_type']} rotary positions depend on the "
                f"longest sequence beyond {original} positions; {length} are asked for"
            )


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_layout: StepLayout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Write this step's keys and values to the cache and attend, as drawn at the top of the file.

    Args:
        query: ``[1, H, N, h]``; key, value: ``[1, K, N, h]``; rotary positions are applied already.

    Returns:
        ``[1, N, H, h]``, and no attention weights.
    """
    if s_aux is not None:
        raise NotImplementedError("attention sinks are not supported by the slot engine")
    n = len(slot_layout.positions)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    k, v = slot_layout.cache.layer(module.layer_idx, key, value)  # type: ignore[arg-type]
    parts = []
    start = n
    for chunk in slot_layout.chunks:
        end = start + len(chunk.slots) * chunk.length
        q_c, k_c, v_c = (_sequences(x[0, :, start:end], chunk.length) for x in (query, key, value))
        k[chunk.slots, :, : chunk.length], v[chunk.slots, :, : chunk.length] = k_c, v_c
        parts.append(_bodies(q_c, k_c, v_c, scale, sliding_window, softcap))
        start = end
    if slot_layout.copies is not None:
        slot_layout.copies.within(k, v)
    if n:
        rows = slot_layout.rows(key.shape[1])
        for x, cached in ((key, k), (value, v)):
            flat = x[0, :, :n].transpose(0, 1).reshape(-1, x.shape[-1])
            cached.view(-1, x.shape[-1]).index_copy_(0, rows, flat)
        parts.insert(0, _decode(query[0, :, :n], k, v, slot_layout, scale, sliding_window, softcap))
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _decode(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    layout: StepLayout,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """One query a slot over the slot's cache: ``[H, n, h]`` → ``[n, H, h]``."""
    n, heads, kv_heads = query.shape[1], query.shape[0], k.shape[1]
    group = heads // kv_heads
    q = query.transpose(0, 1).reshape(n * kv_heads, group, -1)
    if group < ROWS and wants_same_bits(q):
        q = F.pad(q, (0, 0, 0, ROWS - group))
    bias = layout.bias(window, q.dtype)
    if kv_heads > 1:
        bias = bias.repeat_interleave(kv_heads, dim=0)
    k_n, v_n = (x[:n, :, : bias.shape[-1]].flatten(0, 1) for x in (k, v))
    return attend(q, k_n, v_n, bias, scale, softcap)[:, :group].reshape(n, heads, -1)


def _bodies(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Prompt bodies over themselves: ``[c, H, t, h]`` → ``[c · t, H, h]``."""
    length, grouped = q.shape[2], q.shape[1] != k.shape[1]
    plain = softcap is None and (window is None or window >= length)
    if plain and (length > LONGEST or not wants_same_bits(q)):
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=scale, enable_gqa=grouped
        ).transpose(1, 2)
    else:
        out = causal(q, k, v, scale, window, softcap)
    return out.flatten(0, 1)


def _sequences(x: Tensor, length: int) -> Tensor:
    """``[heads, c · t, h]`` → ``[c, heads, t, h]``."""
    return x.unflatten(1, (-1, length)).transpose(0, 1)
