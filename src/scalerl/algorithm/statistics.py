"""What a step looked like, for the log and the alarms: pure functions, nothing that trains.

Shapes: ``N`` trained tokens of the step, in any order. Log-probs and entropies in nats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from scalerl.algorithm.effective import Effective, Rules, final_reward
from scalerl.messages import Group

Level = Literal["ok", "amber", "red"]

AMBER_RATE = 0.05
RED_RATE = 0.10  # arXiv 2510.13786, A.15: 10–15 % truncated destabilises training
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)


class TokenStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Ratios and mismatch over the trained tokens of a step. Set by ``token_statistics``."""

    n_tokens: int
    n_nonfinite: int  # of these, left out of every figure below: the step itself went wrong
    ratio_mean: float
    ratio_quantiles: dict[str, float]  # "q01" … "q99", and "max"
    capped_share: float  # of tokens at which a bound replaced the ratio
    ess_share: float  # (Σρ)² / (N Σρ²): 1 on-policy, 1/N when one token dominates
    mismatch_mean: float  # |log π_train − log π_gen|
    mismatch_max: float


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The groups as generated, before any filter or mask. Set by ``batch_statistics``."""

    n_completions: int
    reward_mean: float  # of final rewards, penalty included
    reward_std: float  # population
    pass_rate: float  # correct and not truncated
    outcomes: dict[str, int]
    length_mean: float  # tokens generated, forced ones included
    length_median: float
    length_max: int
    truncation_rate: float
    truncation_level: Level
    interruption_rate: float
    interruption_level: Level
    entropy: float | None  # mean over sampled tokens; None without one
    forced_tokens: int


class AdvantageStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Advantages of the rows trained on, after normalisation. Set by ``advantage_statistics``."""

    mean: float
    std: float  # population
    min: float
    max: float


class Staleness(msgspec.Struct, frozen=True, kw_only=True):
    """How old the tokens are, in optimiser steps. Set by ``staleness``."""

    mean: float  # over tokens
    max: int  # of the oldest token; the invariant is max ≤ k
    span_max: int  # newest − oldest version inside one completion


def level(rate: float) -> Level:
    """Amber above 5 %, red above 10 %; exactly 5 % is still ok."""
    if rate > RED_RATE:
        return "red"
    return "amber" if rate > AMBER_RATE else "ok"


def effective_sample_share(ratio_N: ArrayLike) -> float:
    """(Σρ)² / (N Σρ²), in (0, 1]; scaled by the largest first, so that nothing overflows.

    Errors: ValueError if there is no ratio, or none above 0.
    """
    ratios = np.asarray(ratio_N, dtype=np.float64)
    if ratios.size == 0 or not ratios.max() > 0.0:
        raise ValueError("no positive ratio: an effective sample size is not defined")
    ratios = ratios / ratios.max()
    return float(ratios.sum() ** 2 / (ratios.size * np.square(ratios).sum()))


def token_statistics(
    *, ratio_N: ArrayLike, capped_N: ArrayLike, logp_train_N: ArrayLike, logp_gen_N: ArrayLike
) -> TokenStatistics | None:
    """Ratio quantiles, share capped, ESS and mismatch; None if no token was trained, or none
    with finite values.

    The mismatch at equal weights is the error between the two engines; across weight versions it
    holds the policy's own movement as well. A mean ratio off 1 on the first, on-policy step means
    that the two sides do not speak of the same distribution (temperature, top-p, top-k).

    Shapes: all ``[N]``, trained tokens only. Errors: ValueError on different lengths.
    """
    ratios, logp_train, logp_gen = (
        np.asarray(x, dtype=np.float64) for x in (ratio_N, logp_train_N, logp_gen_N)
    )
    capped: NDArray[np.bool_] = np.asarray(capped_N, dtype=np.bool_)
    if not ratios.shape == capped.shape == logp_train.shape == logp_gen.shape or ratios.ndim != 1:
        raise ValueError("ratio, capped, logp_train and logp_gen must be [N] alike")
    n_tokens = int(ratios.size)
    finite = np.isfinite(ratios) & np.isfinite(logp_train) & np.isfinite(logp_gen)
    ratios, capped = ratios[finite], capped[finite]
    if ratios.size == 0:
        return None
    mismatch = np.abs(logp_train[finite] - logp_gen[finite])
    values = np.quantile(ratios, QUANTILES)
    quantiles = {f"q{round(100 * q):02d}": float(v) for q, v in zip(QUANTILES, values, strict=True)}
    return TokenStatistics(
        n_tokens=n_tokens,
        n_nonfinite=n_tokens - int(ratios.size),
        ratio_mean=float(ratios.mean()),
        ratio_quantiles=quantiles | {"max": float(ratios.max())},
        capped_share=float(capped.mean()),
        ess_share=effective_sample_share(ratios),
        mismatch_mean=float(mismatch.mean()),
        mismatch_max=float(mismatch.max()),
    )


def batch_statistics(groups: Sequence[Group], rules: Rules) -> BatchStatistics | None:
    """Rewards, lengths, truncation and interruption over all completions; None without any.

    Paper: arXiv 2510.13786, appendix A.15 (truncation as the sign of instability).
    """
    scored = [s for group in groups for s in group.completions]
    if not scored:
        return None
    completions = [s.completion for s in scored]
    rewards = np.array([final_reward(s, rules) for s in scored])
    lengths = np.array([len(c.token_ids) for c in completions])
    sampled = np.array([sum(c.mask) for c in completions], dtype=np.float64)
    entropies = np.array(
        [c.entropy if n else 0.0 for c, n in zip(completions, sampled, strict=True)]
    )
    truncation_rate = sum(c.finish == "length" for c in completions) / len(completions)
    interruption_rate = sum(c.interrupted for c in completions) / len(completions)
    return BatchStatistics(
        n_completions=len(completions),
        reward_mean=float(rewards.mean()),
        reward_std=float(rewards.std()),
        pass_rate=sum(s.outcome == "correct" and s.completion.finish == "stop" for s in scored)
        / len(scored),
        outcomes=dict(Counter[str](s.outcome for s in scored)),
        length_mean=float(lengths.mean()),
        length_median=float(np.median(lengths)),
        length_max=int(lengths.max()),
        truncation_rate=truncation_rate,
        truncation_level=level(truncation_rate),
        interruption_rate=interruption_rate,
        interruption_level=level(interruption_rate),
        entropy=float((entropies * sampled).sum() / sampled.sum()) if sampled.any() else None,
        forced_tokens=int(lengths.sum() - sampled.sum()),
    )


def advantage_statistics(effective: Effective) -> AdvantageStatistics | None:
    """Mean, spread and range of the advantages trained on; None for a skipped step."""
    if not effective.rows:
        return None
    values = np.array([row.advantage for row in effective.rows])
    return AdvantageStatistics(
        mean=float(values.mean()),
        std=float(values.std()),
        min=float(values.min()),
        max=float(values.max()),
    )


def staleness(groups: Sequence[Group], version: int) -> Staleness | None:
    """Age of the tokens at a step that trains at ``version`` (the one before its update).

    Segments say which weights sampled which tokens. None if there is no token.
    """
    n_tokens = total = oldest = span = 0
    for completion in (s.completion for group in groups for s in group.completions):
        ends = [*(first for first, _ in completion.segments[1:]), len(completion.token_ids)]
        for (first, sampled_at), end in zip(completion.segments, ends, strict=True):
            if end > first:
                n_tokens += end - first
                total += (end - first) * (version - sampled_at)
                oldest = max(oldest, version - sampled_at)
        if completion.token_ids:
            span = max(span, completion.newest_version - completion.oldest_version)
    if n_tokens == 0:
        return None
    return Staleness(mean=total / n_tokens, max=oldest, span_max=span)
