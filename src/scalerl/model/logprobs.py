"""Log-probabilities of tokens: one head, used by the generator and by the trainer alike.

Shapes: ``B`` rows, ``T`` tokens of a row, ``N`` tokens of a chunk, ``d`` hidden size, ``V``
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from scalerl.model.attention import ROWS, trainer_attention


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
        ``[N, V]`` float32, nats.
    """
    rows = hidden_Nd.shape[:-1].numel()
    if rows < ROWS:  # fewer take other matrix kernels, with other last bits
        padded = F.pad(hidden_Nd.reshape(rows, hidden_Nd.shape[-1]), (0, 0, 0, ROWS - rows))
        logp = log_softmax_head(padded, head, temperature=temperature, fp32_head=fp32_head)
        return logp[:rows].reshape(*hidden_Nd.shape[:-1], logp.shape[-1])
    weight_Vd, bias_V = head.weight_Vd, head.bias_V
    if fp32_head:
        hidden_Nd, weight_Vd = hidden_Nd.float(), weight_Vd.float()
        bias_V = None if bias_V is None else bias_V.float()
    logits_NV = F.linear(hidden_Nd, weight_Vd, bias_V).float()
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


def token_logprobs(
    model: PreTrainedModel,
    ids_BT: Tensor,
    scored_BT: Tensor,
    *,
    temperature: float = 1.0,
    fp32_head: bool = True,
    chunk: int = 4096,
) -> tuple[Tensor, Tensor]:
    """Log-probability of given tokens, and entropy of the distributions they were drawn from.

    logp[b, t] = log π(ids[b, t] | ids[b, :t]), tempered as in :func:`log_softmax_head`. Rows are
    padded on the right: under a causal mask no token sees the padding, so no mask is built.

    Args:
        ids_BT: token ids, int64; padding may be any valid id.
        scored_BT: bool, the tokens wanted; never the first of a row, which nothing predicts.
        chunk: the head runs on this many tokens at a time, which bounds the extra memory of a
            forward without gradient by ``chunk · V`` floats.

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
    with trainer_attention(model, ids_BT.shape[1]):
        hidden_BTd = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
    head = head_of(model)
    hidden_Nd = hidden_BTd[:, :-1][scored_BT[:, 1:]]
    ids_N = ids_BT[scored_BT]
    logps, entropies = [], []
    for part_Nd, part_N in zip(hidden_Nd.split(chunk), ids_N.split(chunk), strict=True):
        logp_NV = log_softmax_head(part_Nd, head, temperature=temperature, fp32_head=fp32_head)
        logps.append(logp_NV.gather(-1, part_N[:, None]).squeeze(-1))
        entropies.append(entropy_of(logp_NV.detach()))
    zeros_BT = torch.zeros(ids_BT.shape, dtype=torch.float32, device=ids_BT.device)
    return (
        zeros_BT.masked_scatter(scored_BT, torch.cat(logps)),
        zeros_BT.masked_scatter(scored_BT, torch.cat(entropies)),
    )
