"""Drawing tokens: random numbers that belong to a request, not to the batch it runs in.

Shapes: ``n`` active slots, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

_LOW = {shift: (1 << (64 - shift)) - 1 for shift in (11, 27, 30, 31)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn. There is no top-p or top-k: recorded log-probs are of the distribution
    sampled from, and training needs that one to be the policy's."""

    temperature: float = 1.0
    max_new_tokens: int  # forced tokens and the end of text included
    greedy: bool = False  # the likeliest token, for evaluation only

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")


def request_seed(seed: int, purpose: str, step: int, prompt_id: str, sample: int) -> int:
    """63-bit key of one completion's random numbers, the same on every machine.

    Args:
        seed: of the run; purpose: "rollout", "evaluation", … so that these never share numbers.
        step: what tells visits of one prompt apart (group ordinal, or optimiser step).
    """
    text = f"{seed}\0{purpose}\0{step}\0{prompt_id}\0{sample}"
    digest = blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def uniforms(seeds_n: Tensor, index_n: Tensor) -> Tensor:
    """u in [0, 1), float64: a function of (seed, token index) alone.

    The finaliser of SplitMix64 (Steele, Lea & Flood 2014), applied to the seed and again to the
    state advanced by ``index`` golden-ratio steps; its top 53 bits. int64 products wrap.
    """
    state = _mix(seeds_n + _signed(0x9E3779B97F4A7C15))
    bits = _mix(state + (index_n + 1) * _signed(0x9E3779B97F4A7C15))
    return _shift(bits, 11).double() * 2.0**-53


def draw(logp_nV: Tensor, u_n: Tensor) -> Tensor:
    """Inverse transform sampling: the first token whose cumulative probability exceeds u.

    The cumulative sum is taken in float64, so that a token of probability p is drawn with p to
    within rounding whatever the size of the vocabulary.
    """
    cumulative_nV = logp_nV.double().exp_().cumsum(-1)
    target_n1 = u_n[:, None] * cumulative_nV[:, -1:]
    token_n = torch.searchsorted(cumulative_nV, target_n1, right=True).squeeze(-1)
    return token_n.clamp_max(logp_nV.shape[-1] - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    """Logical right shift of the 64 bits of an int64."""
    return (x >> by) & _LOW[by]


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant
