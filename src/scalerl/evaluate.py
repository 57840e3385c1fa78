"""Held-out evaluation: which completions to sample, and what they say about one weights version.

Shapes: ``N`` held-out prompts, ``K`` completions of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from scalerl.messages import Scored


class EvalSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation says. Lengths in tokens, entropies in nats."""

    pass_rate: float  # mean@K
    pass_rate_se: float  # of sampling K completions of these very prompts
    pass_at_k: dict[str, float]  # "1", "2", "4" … up to K
    n_prompts: int
    n_samples: int  # K
    entropy: float  # mean over sampled tokens
    truncation_rate: float
    interruption_rate: float
    mean_length: float


def summarise(scored_NK: Sequence[Sequence[Scored]]) -> EvalSummary:
    """Mean@K, pass@k and lengths of one evaluation.

    The standard error is the one between two evaluations of the same prompts at the same weights:
    √(Σ_n p_n(1−p_n)/(K−1)) / N. Prompts are fixed, so their spread is no noise of the curve.
    """
    correct_NK = np.array(
        [
            [s.outcome == "correct" and s.completion.finish == "stop" for s in row]
            for row in scored_NK
        ]
    )
    n_prompts, n_samples = correct_NK.shape
    p_N = correct_NK.mean(axis=1)
    variance_N = p_N * (1 - p_N) / max(1, n_samples - 1)
    completions = [s.completion for row in scored_NK for s in row]
    sampled = np.array([sum(c.mask) for c in completions])
    return EvalSummary(
        pass_rate=float(p_N.mean()),
        pass_rate_se=float(math.sqrt(variance_N.sum()) / n_prompts),
        pass_at_k={str(k): _pass_at(correct_NK, k) for k in _powers_of_two(n_samples)},
        n_prompts=n_prompts,
        n_samples=n_samples,
        entropy=float(np.dot([c.entropy for c in completions], sampled) / max(1, sampled.sum())),
        truncation_rate=float(np.mean([c.finish == "length" for c in completions])),
        interruption_rate=float(np.mean([c.interrupted for c in completions])),
        mean_length=float(np.mean([len(c.token_ids) for c in completions])),
    )


def _pass_at(correct_NK: np.ndarray, k: int) -> float:
    """Unbiased pass@k: 1 − C(K−c, k)/C(K, k), mean over prompts (Chen et al. 2021)."""
    n_samples = correct_NK.shape[1]
    total = math.comb(n_samples, k)
    missed = [math.comb(n_samples - int(c), k) / total for c in correct_NK.sum(axis=1)]
    return 1.0 - float(np.mean(missed))


def _powers_of_two(limit: int) -> list[int]:
    return [2**i for i in range(limit.bit_length()) if 2**i <= limit]
