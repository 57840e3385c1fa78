"""Log-probabilities of tokens: one head, used by the generator and by the trainer alike.

Shapes: ``B`` rows, ``T`` tokens of a row, ``N`` tokens of a chunk, ``d`` hidden size, ``V``
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import PreTrainedModel

from scalerl.model.attention import ROWS, trainer_attention

CHUNK_FLOATS = 1 << 22  # 16 MiB: what the head holds of tokens × vocabulary at a time
CHUNK_FLOATS_CARD = 1 << 27  # 512 MiB: each chunk reads the whole head again


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A model's last linear layer, by reference: the tensors are the model's own parameters, so a
    weight update is seen at once and a tied embedding stays tied."""

    weight_Vd: Tensor
    bias_V: Tensor | None
    softcap: float | None  # logits become softcap · tanh(logits / softcap) (Gemma)
    scale: float  # logits are multiplied by this (Cohere; Granite divides)


def head_of(model: PreTrainedModel) -> Head:
    """The head of a HF causal LM, with the logit rules that its config states."""
    linear = model.get_output_embeddings()
    if linear is None:
        raise ValueError(f"{type(model).__name__} has no output embeddings: not a causal LM")
    config = model.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0
    return Head(
        weight_Vd=linear.weight,  # type: ignore[arg-type]
        bias_V=getattr(linear, "bias", None),
        softcap=getattr(config, "final_logit_softcapping", None),
        scale=scale / (getattr(config, "logits_scaling", None) or 1.0),
    )


def body_of(model: PreTrainedModel) -> nn.Module:
    """The model without its head; its output has the last hidden states."""
    body = model.base_model
    return model.model if body is model else body  # Llama 4 names it otherwise than its prefix


def log_softmax_head(
    hidden_Nd: Tensor, head: Head, *, temperature: float = 1.0, fp32_head: bool = True
) -> Tensor:
    """Log-probabilities of the next token, of the tempered distribution.

    log π = log_softmax(W h / temperature). With ``fp32_head`` (section 3.2 of arXiv 2510.13786) the
    product W h is taken in float32 whatever the weights' type; without it, in the weights' type.
    The log-softmax is float32 either way, as inference engines have it: log-probs rounded to
    bfloat16 would keep three digits.

    Args:
        hidden_Nd: last hidden states after the final norm, any leading shape.

    Returns:
        ``[N, V]`` float32 (float64 for a model of float64), nats.
    """
    rows = hidden_Nd.shape[:-1].numel()
    if rows < ROWS:  # fewer take other matrix kernels, with other last bits
        padded = F.pad(hidden_Nd.reshape(rows, hidden_Nd.shape[-1]), (0, 0, 0, ROWS - rows))
        logp = log_softmax_head(padded, head, temperature=temperature, fp32_head=fp32_head)
        return logp[:rows].reshape(*hidden_Nd.shape[:-1], logp.shape[-1])
    weight_Vd, bias_V = head.weight_Vd, head.bias_V
    if fp32_head:
        hidden_Nd, weight_Vd = _wide(hidden_Nd), _wide(weight_Vd)
        bias_V = None if bias_V is None else _wide(bias_V)
    logits_NV = _wide(F.linear(hidden_Nd, weight_Vd, bias_V))
    if head.scale != 1.0:
        logits_NV = logits_NV * head.scale
    if head.softcap is not None:
        logits_NV = head.softcap * torch.tanh(logits_NV / head.softcap)
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    return torch.log_softmax(logits_NV, dim=-1)


def entropy_of(logp_NV: Tensor) -> Tensor:
    """Entropy H = −Σ π log π of each row, in nats, ``[N]``; entries of probability 0 add 0."""
    return -(logp_NV.exp() * logp_NV.clamp_min(torch.finfo(logp_NV.dtype).min)).sum(-1)


def chosen_logprobs(
    hidden_Nd: Tensor,
    ids_N: Tensor,
    head: Head,
    *,
    temperature: float = 1.0,
    fp32_head: bool = True,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of one entry of each row of the head, and the row's entropy.

    The values are those of :func:`log_softmax_head`, bit for bit, but only ``chunk`` rows of
    ``[N, V]`` exist at a time, forward and backward. With z the logits before scale s, cap c and
    temperature τ, and g the gradient of log π(id):

        ∂/∂z = g · (1[id] − π) · s / τ · (1 − tanh²(s z / c))

    so the backward makes a chunk's logits once more and adds its share to the gradients of the
    hidden states, the weight and the bias. One chunk is kept instead.

    Args:
        chunk: rows at a time; by default as many as keep ``CHUNK_FLOATS`` entries, on a CPU, or
            ``CHUNK_FLOATS_CARD``.

    Returns:
        ``logp_N`` and ``entropy_N``, the latter without gradient.
    """
    floats = CHUNK_FLOATS if hidden_Nd.device.type == "cpu" else CHUNK_FLOATS_CARD
    size = chunk or max(ROWS, floats // head.weight_Vd.shape[0])
    rules = _Rules(head.softcap, head.scale, temperature, fp32_head, size)
    return _Chosen.apply(hidden_Nd, head.weight_Vd, head.bias_V, ids_N, rules)  # type: ignore


@dataclass(frozen=True, slots=True)
class _Rules:
    softcap: float | None
    scale: float
    temperature: float
    fp32_head: bool
    chunk: int

    def logp(self, hidden_Nd: Tensor, weight_Vd: Tensor, bias_V: Tensor | None) -> Tensor:
        head = Head(weight_Vd=weight_Vd, bias_V=bias_V, softcap=self.softcap, scale=self.scale)
        return log_softmax_head(
            hidden_Nd, head, temperature=self.temperature, fp32_head=self.fp32_head
        )


class _Chosen(torch.autograd.Function):
    """:func:`chosen_logprobs` with its backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden_Nd: Tensor, weight_Vd: Tensor, bias_V: Tensor | None, ids_N: Tensor, rules
    ) -> tuple[Tensor, Tensor]:
        weight, bias = _product_operands(weight_Vd, bias_V, rules.fp32_head)
        logps, entropies, kept = [], [], None
        for part_Nd, part_N in zip(
            hidden_Nd.split(rules.chunk), ids_N.split(rules.chunk), strict=True
        ):
            logp_NV = rules.logp(part_Nd, weight, bias)
            logps.append(logp_NV.gather(-1, part_N[:, None]).squeeze(-1))
            entropies.append(entropy_of(logp_NV))
            kept = logp_NV
        if len(logps) > 1 or rules.softcap is not None:
            kept = None
        ctx.save_for_backward(hidden_Nd, weight_Vd, bias_V, ids_N, kept)
        ctx.rules = rules
        logp_N, entropy_N = torch.cat(logps), torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_N)
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_Nd, weight_Vd, bias_V, ids_N, kept = ctx.saved_tensors
        rules: _Rules = ctx.rules
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        weight, bias = _product_operands(weight_Vd, bias_V, rules.fp32_head)
        to_hidden = torch.empty_like(hidden_Nd) if wants_hidden else None
        to_weight = None
        to_bias = torch.zeros_like(bias_V, dtype=grad_N.dtype) if wants_bias else None
        for start in range(0, len(ids_N), rules.chunk):
            rows = slice(start, start + rules.chunk)
            part_Nd = hidden_Nd[rows]
            if kept is None:
                logp_NV = rules.logp(part_Nd, weight, bias)
                slope = _slope(part_Nd, weight, bias, rules)
                to_logits = logp_NV.exp_()
            else:
                to_logits, slope = kept.exp(), None
            grad = grad_N[rows, None]
            to_logits.mul_(-grad).scatter_add_(1, ids_N[rows, None], grad)
            if slope is not None:
                to_logits *= slope
            if rules.scale != rules.temperature:
                to_logits *= rules.scale / rules.temperature
            if to_bias is not None:
                to_bias += to_logits.sum(0)
            to_product = to_logits.to(weight.dtype)
            if to_hidden is not None:
                to_hidden[rows] = to_product @ weight
            if wants_weight:
                share = part_Nd.to(weight.dtype)
                if to_weight is None:
                    to_weight = _wide(to_product.t() @ share)
                elif to_weight.dtype == share.dtype:
                    to_weight.addmm_(to_product.t(), share)
                else:
                    to_weight += to_product.t() @ share
        if wants_weight and to_weight is None:
            to_weight = torch.zeros_like(weight_Vd)
        return (
            to_hidden,
            None if to_weight is None else to_weight.to(weight_Vd.dtype),
            None if to_bias is None else to_bias.to(bias_V.dtype),
            None,
            None,
        )


def _product_operands(
    weight_Vd: Tensor, bias_V: Tensor | None, fp32_head: bool
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias in the type of the product, converted once for all chunks."""
    if not fp32_head:
        return weight_Vd, bias_V
    return _wide(weight_Vd), None if bias_V is None else _wide(bias_V)


def _slope(
    hidden_Nd: Tensor, weight_Vd: Tensor, bias_V: Tensor | None, rules: _Rules
) -> Tensor | None:
    """1 − tanh²(s z / c), the derivative of the cap; None without one."""
    if rules.softcap is None:
        return None
    if rules.fp32_head:
        hidden_Nd = _wide(hidden_Nd)
    logits_NV = _wide(F.linear(hidden_Nd, weight_Vd, bias_V))
    return 1.0 - torch.tanh(logits_NV * (rules.scale / rules.softcap)).square_()


def _wide(x: Tensor) -> Tensor:
    """As float32; what is float64 stays so."""
    return x if x.dtype == torch.float64 else x.float()


def token_logprobs(
    model: PreTrainedModel,
    ids_BT: Tensor,
    scored_BT: Tensor,
    *,
    temperature: float = 1.0,
    fp32_head: bool = True,
    chunk: int | None = None,
    positions_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of given tokens, and entropy of the distributions they were drawn from.

    logp[b, t] = log π(ids[b, t] | ids[b, :t]), tempered as in :func:`log_softmax_head`. Rows are
    padded on the right: under a causal mask no token sees the padding, so no mask is built.

    Args:
        ids_BT: token ids, int64; padding may be any valid id.
        scored_BT: bool, the tokens wanted; never the first of a row, which nothing predicts.
        chunk: as in :func:`chosen_logprobs`.
        positions_BT: of rows that hold several sequences, the place of each token in its own; a
            token sees its own sequence only, and the first of each is not to be scored.

    Returns:
        ``logp_BT`` (differentiable) and ``entropy_BT`` (no gradient), float32, nats, 0 where not
        scored.

    Raises:
        ValueError: shapes differ, or the first token of a row is to be scored.
    """
    if ids_BT.shape != scored_BT.shape or ids_BT.ndim != 2:
        raise ValueError(f"ids {tuple(ids_BT.shape)} and scored {tuple(scored_BT.shape)} differ")
    if bool(scored_BT[:, 0].any()):
        raise ValueError("the first token of a row has no log-probability: nothing predicts it")
    if positions_BT is None:
        with trainer_attention(model, ids_BT.shape[1]):
            hidden_BTd = body_of(model)(input_ids=ids_BT, use_cache=False).last_hidden_state
    else:  # transformers builds the mask of sequences that begin anew at position 0
        hidden_BTd = (
            body_of(model)(input_ids=ids_BT, position_ids=positions_BT, use_cache=False)
        ).last_hidden_state
    logp_N, entropy_N = chosen_logprobs(
        hidden_BTd[:, :-1][scored_BT[:, 1:]],
        ids_BT[scored_BT],
        head_of(model),
        temperature=temperature,
        fp32_head=fp32_head,
        chunk=chunk,
    )
    zeros_BT = torch.zeros(ids_BT.shape, dtype=logp_N.dtype, device=ids_BT.device)
    return zeros_BT.masked_scatter(scored_BT, logp_N), zeros_BT.masked_scatter(scored_BT, entropy_N)
