"""Losses as pure functions of log-probabilities: per-token objective terms, nothing reduced.

One row is one completion. Shapes: ``B`` completions, ``T`` tokens (padded to the longest).

    loss = −Σ_b weight_B[b] · Σ_t objective_BT[b, t]

The weights come from the whole optimiser step (``aggregation``), so the sum may be taken in any
micro-batches, any order and on any number of ranks. A trainer that packs several completions
into one sequence gathers their log-probs into rows first.

Every ratio is of the distribution sampled from (temperature included) and against the log-probs
that the generator recorded while it sampled, never recomputed ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from scalerl.errors import InputError

LOG_RATIO_MAX = 20.0  # e^20 ≈ 4.9e8: far beyond any bound, far inside float32

LossType = Literal["cispo", "dapo", "grpo", "gspo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """What a loss says of each token; set by the loss, 0 or False at masked tokens."""

    objective_BT: Tensor  # to be maximised; carries the gradient
    ratio_BT: Tensor  # π_train / π_gen (GSPO: of the completion), log clamped to ±20; detached
    capped_BT: Tensor  # bool: a bound replaced the ratio (CISPO's cap, PPO's clip); detached


class Loss(Protocol):
    """A loss with its bounds filled in, as ``make_loss`` returns it."""

    def __call__(
        self, logp_train_BT: Tensor, logp_gen_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor
    ) -> LossTerms: ...


def cispo(
    logp_train_BT: Tensor,
    logp_gen_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    *,
    ratio_max: float = 5.0,
) -> LossTerms:
    """Truncated importance sampling: a capped, detached ratio times the policy gradient.

        objective = sg(min(ρ, ratio_max)) · Â · log π_train,    ρ = π_train / π_gen

    so the gradient of −objective with respect to log π_train is exactly −min(ρ, ratio_max)·Â:
    a capped token keeps its gradient, and there is no lower bound.

    Paper: arXiv 2510.13786, section 3.2 (CISPO), after MiniMax-M1 (arXiv 2506.13585).
    Shapes: log-probs (nats) and mask ``[B, T]``, advantage ``[B]``.
    Errors: ValueError on shapes that do not belong together.
    Deviations: ``ratio_max`` is absolute (5 means ρ ≤ 5, not 1 + 5). TRL's ``cispo`` has the same
    terms with ``epsilon_high = ratio_max``, but left unset its cap is 0.2.
    """
    logp_train_BT, logp_gen_BT, advantage_B1, keep_BT = _cleaned(
        logp_train_BT, logp_gen_BT, advantage_B, mask_BT
    )
    ratio_BT = _ratio(logp_train_BT.detach() - logp_gen_BT)
    objective_BT = ratio_BT.clamp(max=ratio_max) * advantage_B1 * logp_train_BT
    return _terms(objective_BT, ratio_BT, ratio_BT > ratio_max, keep_BT)


def dapo(
    logp_train_BT: Tensor,
    logp_gen_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.26,
) -> LossTerms:
    """PPO's clipped surrogate with a looser upper bound ("clip-higher"), token by token.

        objective = min(ρ Â, clip(ρ, 1 − clip_low, 1 + clip_high) Â)

    The gradient is zero where Â > 0 and ρ ≥ 1 + clip_high, or Â < 0 and ρ ≤ 1 − clip_low;
    on the other side of the range the ratio is left as it is.

    Paper: arXiv 2503.14476 (DAPO), equation 8; arXiv 2510.13786, section 3.2.
    Shapes: log-probs (nats) and mask ``[B, T]``, advantage ``[B]``.
    Errors: ValueError on shapes that do not belong together.
    Deviations: no gradient at the bound itself either, where ``min`` has two subgradients. TRL's
    ``dapo`` has the same terms, without the clamp: a log-ratio of 100 is infinite there.
    """
    logp_train_BT, logp_gen_BT, advantage_B1, keep_BT = _cleaned(
        logp_train_BT, logp_gen_BT, advantage_B, mask_BT
    )
    ratio_BT = _ratio(logp_train_BT - logp_gen_BT)
    used_BT, clipped_BT = _clipped(ratio_BT, advantage_B1, clip_low, clip_high)
    return _terms(used_BT * advantage_B1, ratio_BT, clipped_BT, keep_BT)


def grpo(
    logp_train_BT: Tensor,
    logp_gen_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    *,
    clip: float = 0.2,
) -> LossTerms:
    """PPO's clipped surrogate with a symmetric range, as GRPO uses it.

        objective = min(ρ Â, clip(ρ, 1 − clip, 1 + clip) Â)

    Paper: arXiv 2402.03300 (GRPO), equation 3.
    Shapes and errors: those of ``dapo``.
    Deviations: no KL term (arXiv 2510.13786 trains without one); the 1/|y| of GRPO's equation
    is an aggregation (``sample``), not part of the loss. TRL's ``grpo`` has the same terms; its
    mean over completions also counts those without a trained token, ours does not.
    """
    return dapo(logp_train_BT, logp_gen_BT, advantage_B, mask_BT, clip_low=clip, clip_high=clip)


def gspo(
    logp_train_BT: Tensor,
    logp_gen_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float = 4e-3,
    clip_high: float = 5e-3,
) -> LossTerms:
    """One length-normalised ratio for a completion, clipped as a whole.

        s = exp(mean over mask-1 tokens of (log π_train − log π_gen))
        objective = min(s Â, clip(s, 1 − clip_low, 1 + clip_high) Â),  at every token alike

    The gradient with respect to one token's log-prob is s Â / |y| from each of its |y| equal
    terms, zero for the whole completion on the clipped side.

    Paper: arXiv 2507.18071 (GSPO), equations 5 and 7.
    Shapes: log-probs (nats) and mask ``[B, T]``, advantage ``[B]``; a row is one completion.
    Errors: ValueError on shapes that do not belong together.
    Deviations: arXiv 2510.13786 prints the plain product of the ratios; the length-normalised
    form of the GSPO paper is meant, and its bounds make sense only with it. The clamp to ±20 is
    on the mean, which is what is exponentiated. TRL has the same terms as ``grpo`` with
    ``importance_sampling_level="sequence"``.
    """
    logp_train_BT, logp_gen_BT, advantage_B1, keep_BT = _cleaned(
        logp_train_BT, logp_gen_BT, advantage_B, mask_BT
    )
    length_B1 = keep_BT.sum(dim=1, keepdim=True).clamp(min=1)
    mean_B1 = (logp_train_BT - logp_gen_BT).sum(dim=1, keepdim=True) / length_B1
    ratio_B1 = _ratio(mean_B1)
    used_B1, clipped_B1 = _clipped(ratio_B1, advantage_B1, clip_low, clip_high)
    shape = logp_train_BT.shape
    return _terms(
        (used_B1 * advantage_B1).expand(shape),
        ratio_B1.expand(shape),
        clipped_B1.expand(shape),
        keep_BT,
    )


def weighted_loss(terms: LossTerms, weight_B: Tensor) -> Tensor:
    """The scalar to minimise: −Σ_b w_b Σ_t objective_bt, for any part of the global batch.

    Shapes: weight ``[B]``, one constant per completion from ``aggregation.weights``. Parts add
    up: never divide by micro-batches, ranks or accumulation steps as well.
    """
    if weight_B.shape != terms.objective_BT.shape[:1]:
        raise ValueError(
            f"weight has shape {tuple(weight_B.shape)}, {terms.objective_BT.shape[0]} rows given"
        )
    weight_B = weight_B.to(terms.objective_BT)
    return -(weight_B * terms.objective_BT.sum(dim=1)).sum()


def make_loss(type: LossType, **bounds: float) -> Loss:
    """The loss of that name with its bounds; a bound left out keeps that loss's own default.

    Errors: InputError on an unknown loss, a bound the loss does not have, or one out of range:
    ``ratio_max`` ≥ 1 (it caps the ratio itself, which is 1 on-policy), 0 < ``clip`` < 1,
    0 < ``clip_low`` < 1, ``clip_high`` > 0, all finite.
    """
    match type:
        case "cispo":
            _check_bounds(type, bounds, ("ratio_max",))
            return partial(cispo, **bounds)
        case "dapo":
            _check_bounds(type, bounds, ("clip_low", "clip_high"))
            return partial(dapo, **bounds)
        case "grpo":
            _check_bounds(type, bounds, ("clip",))
            return partial(grpo, **bounds)
        case "gspo":
            _check_bounds(type, bounds, ("clip_low", "clip_high"))
            return partial(gspo, **bounds)
        case _:
            raise InputError(f"loss.type: no loss {type!r}; choose cispo, dapo, grpo or gspo")


def _check_bounds(type: str, bounds: Mapping[str, float], known: tuple[str, ...]) -> None:
    for name, value in bounds.items():
        if name not in known:
            raise InputError(f"loss.{name}: {type} has no such bound; it has {', '.join(known)}")
        match name:
            case "ratio_max":
                fits = 1.0 <= value < math.inf
                wanted = "a finite number ≥ 1: the cap on the ratio itself (5 means ρ ≤ 5)"
            case "clip_low" | "clip":
                fits = 0.0 < value < 1.0
                wanted = f"between 0 and 1: the ratio is kept above 1 − {name}"
            case _:
                fits = 0.0 < value < math.inf
                wanted = "a finite number > 0: the ratio is kept below 1 + clip_high"
        if not fits:
            raise InputError(f"loss.{name} = {value}: must be {wanted}")


def _cleaned(
    logp_train_BT: Tensor, logp_gen_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Checked inputs in one dtype (float32 at least); masked log-probs replaced by 0 before any
    arithmetic, so that garbage there reaches neither the value nor the gradient."""
    shape = logp_train_BT.shape
    if len(shape) != 2 or logp_gen_BT.shape != shape or mask_BT.shape != shape:
        raise ValueError(
            "logp_train, logp_gen and mask must be [B, T] alike, are "
            f"{tuple(shape)}, {tuple(logp_gen_BT.shape)}, {tuple(mask_BT.shape)}"
        )
    if advantage_B.shape != shape[:1]:
        raise ValueError(
            f"advantage must be [B] = [{shape[0]}], is {tuple(advantage_B.shape)}: "
            "one value per completion"
        )
    keep_BT = mask_BT != 0
    dtype = torch.promote_types(logp_train_BT.dtype, torch.float32)
    zero = torch.zeros((), dtype=dtype, device=logp_train_BT.device)
    advantage_B = advantage_B.detach().to(zero)
    # A row without a trained token may carry any advantage; 0 keeps 0 · NaN out of the value.
    advantage_B1 = torch.where(keep_BT.any(dim=1), advantage_B, zero)[:, None]
    logp_train_BT = torch.where(keep_BT, logp_train_BT.to(dtype), zero)
    logp_gen_BT = torch.where(keep_BT, logp_gen_BT.detach().to(zero), zero)
    return logp_train_BT, logp_gen_BT, advantage_B1, keep_BT


def _ratio(log_ratio: Tensor) -> Tensor:
    """exp of the clamped log-ratio; beyond ±20 constant, so no gradient passes there."""
    return log_ratio.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).exp()


def _clipped(
    ratio: Tensor, advantage_B1: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """The ratio that min(ρ Â, clip(ρ) Â) uses, and where a bound took its place.

    Only one side can bind: the upper for Â > 0, the lower for Â < 0. The bounds enter as
    constants, at equality too, so the clipped side has no gradient.
    """
    high, low = 1.0 + clip_high, 1.0 - clip_low
    above = (advantage_B1 > 0) & (ratio.detach() >= high)
    below = (advantage_B1 < 0) & (ratio.detach() <= low)
    used = torch.where(above, torch.full_like(ratio, high), ratio)
    used = torch.where(below, torch.full_like(ratio, low), used)
    return used, above | below


def _terms(objective_BT: Tensor, ratio_BT: Tensor, capped_BT: Tensor, keep_BT: Tensor) -> LossTerms:
    zero = torch.zeros((), dtype=objective_BT.dtype, device=objective_BT.device)
    return LossTerms(
        objective_BT=torch.where(keep_BT, objective_BT, zero),
        ratio_BT=torch.where(keep_BT, ratio_BT.detach(), zero),
        capped_BT=capped_BT & keep_BT,
    )
