"""From finished groups to the rows of one optimiser step, with every token accounted for.

    groups → truncated leave → mean and spread of each group → zero-variance groups leave
           → batch std → advantages → weights → rows

Shapes: ``P`` groups, ``G`` completions of a group, ``T`` tokens of a completion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from scalerl.algorithm.advantages import Normalisation, advantages, has_spread
from scalerl.algorithm.aggregation import Aggregation, weights
from scalerl.algorithm.length_penalty import LengthPenalty, length_penalty
from scalerl.errors import InputError
from scalerl.messages import Group, Scored

ZeroVariance = Literal["filter", "dynamic", "keep"]
Truncated = Literal["exclude", "mask", "keep"]
SkipReason = Literal["no_groups", "all_truncated", "zero_variance", "all_masked", "zero_advantage"]

_Fate = Literal["trained", "truncated", "zero_variance", "masked", "skipped"]
SKIPPED_STEP = "skipped_step"  # the ledger's reason for rows of a step that taught nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The choices that turn groups into rows; the defaults are ScaleRL's.

    Errors: InputError on an unknown choice.
    """

    aggregation: Aggregation = "prompt"
    normalisation: Normalisation = "batch"
    zero_variance: ZeroVariance = "filter"  # "dynamic" filters too; the caller refills
    truncated: Truncated = "exclude"  # "mask": in the statistics, not trained; "keep": as any other
    penalty: LengthPenalty | None = None  # added here, to the bare verdict in ``Scored.reward``

    def __post_init__(self) -> None:
        for field, value, choices in (
            ("aggregation", self.aggregation, get_args(Aggregation)),
            ("normalisation", self.normalisation, get_args(Normalisation)),
            ("zero_variance", self.zero_variance, get_args(ZeroVariance)),
            ("truncated", self.truncated, get_args(Truncated)),
        ):
            if value not in choices:
                raise InputError(f"{field} = {value!r}: choose one of {', '.join(choices)}")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One completion ready for training. Set by ``assemble``; every list has length T."""

    group: int  # ordinal of the group in the run
    sample: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logp_gen: tuple[float, ...]  # as recorded (nats); 0 where it was unusable, and masked there
    mask: tuple[int, ...]  # 1 trained on; at least one is
    segments: tuple[tuple[int, int], ...]  # (first token index, version that sampled from there)
    advantage: float  # normalised
    weight: float  # of each trained token in the loss of the whole step


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the groups and completions handed in. Set by ``assemble``.

    groups = groups_trained + groups_truncated + groups_zero_variance + groups_masked, and likewise
    for completions; of a skipped step the would-be trained ones count as ``…_skipped``.
    """

    groups: int
    groups_trained: int
    groups_truncated: int  # no completion left after the truncated ones
    groups_zero_variance: int  # left the batch (with ``keep``: none leaves)
    groups_masked: int  # variance, but not one trained token
    groups_skipped: int  # would have been trained, but the step taught nothing
    completions: int
    completions_trained: int
    completions_truncated: int  # excluded or masked for it
    completions_zero_variance: int
    completions_masked: int  # no usable sampled token
    completions_skipped: int
    tokens_unusable: int  # sampled tokens of kept groups whose behaviour log-prob is unusable


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tokens of the groups handed in went; sums exactly to all of them.

    Every generated token counts, forced ones and end-of-text included, once.
    """

    trained: int = 0  # mask 1 in the loss
    masked: int = 0  # in kept groups: forced tokens, or an unusable log-prob
    filtered: int = 0  # zero-variance groups
    truncated: int = 0  # truncated completions, excluded or masked
    discarded: dict[str, int] = msgspec.field(default_factory=dict[str, int])  # by reason

    @property
    def total(self) -> int:
        kept = self.trained + self.masked
        return kept + self.filtered + self.truncated + sum(self.discarded.values())


class Effective(msgspec.Struct, frozen=True, kw_only=True):
    """The effective batch of one optimiser step. Set by ``assemble``, consumed by the trainer."""

    rows: tuple[Row, ...]  # in the order of the groups and samples; empty if skipped
    counts: Counts
    spent: Spent
    skip_reason: SkipReason | None  # not None: nothing to learn from, take no step


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A completion still in the batch, on its way to a row."""

    scored: Scored
    reward: float
    mask_T: NDArray[np.bool_]
    n_unusable: int
    truncated: bool  # masked for it
    advantage: float = 0.0
    weight: float = 0.0

    @property
    def n_trained(self) -> int:
        return int(self.mask_T.sum())


@dataclass(slots=True, kw_only=True)
class _KeptGroup:
    group: Group
    kept: list[_Kept]
    spread: bool

    @property
    def all_truncated(self) -> bool:
        return all(k.truncated for k in self.kept)


def usable_mask(
    mask: Sequence[int], logp_gen: Sequence[float | None]
) -> tuple[NDArray[np.bool_], int]:
    """The mask without tokens whose behaviour log-prob is missing, NaN or infinite, and how many
    sampled tokens that took away.

    An engine returns such values for a near-certain token when entropy collapses; the run must
    survive that to be diagnosed. Shapes: ``[T]`` both; None stands for missing.
    Errors: ValueError if the lengths differ.
    """
    if len(mask) != len(logp_gen):
        raise ValueError(f"mask has {len(mask)} tokens, logp_gen {len(logp_gen)}")
    logp_T = np.array(logp_gen, dtype=np.float64)  # None becomes NaN
    sampled_T = np.asarray(mask, dtype=np.int64) != 0
    usable_T = sampled_T & np.isfinite(logp_T)
    return usable_T, int(sampled_T.sum() - usable_T.sum())


def final_reward(scored: Scored, rules: Rules) -> float:
    """The reward that advantages are taken of: the verdict, plus the length penalty if passed.

    |y| of the penalty counts every generated token, forced ones included. A right answer whose
    completion was cut at the limit has the reward of a wrong one, and no penalty on top.
    """
    if rules.penalty is None or scored.outcome != "correct" or scored.reward < 0:
        return scored.reward
    return scored.reward + length_penalty(
        len(scored.completion.token_ids),
        length_max=rules.penalty.length_max,
        length_cache=rules.penalty.length_cache,
    )


def has_variance(group: Group, rules: Rules) -> bool:
    """Whether the group's final rewards differ after the truncated have left.

    Decides alone, without the rest of the batch, so that dynamic sampling can refill.
    """
    return has_spread([final_reward(s, rules) for s in _remaining(group, rules)])


def assemble(groups: Sequence[Group], rules: Rules) -> Effective:
    """The effective batch of one optimiser step: rows with advantage and weight, and the ledger.

    Order: truncated completions leave; mean and spread of each group over what remains;
    zero-variance groups leave; advantages, the batch std over what is left then; weights from
    trained tokens only. A batch with nothing to learn from is a result with ``skip_reason``.

    Paper: arXiv 2510.13786, sections 3.2, 4 and appendix A.15 (truncated completions).
    Errors: InputError on a reward that is not finite; ValueError on a malformed completion.
    Deviations: a truncated completion under ``mask`` and one without any usable token stay in
    the statistics of group and batch, and in no denominator of the weights.
    """
    kept_groups = [_kept_group(group, rules) for group in groups]
    effective = [g for g in kept_groups if g.kept and (g.spread or rules.zero_variance == "keep")]
    _fill_in(effective, rules)
    skip_reason = _skip_reason(groups, kept_groups, effective)
    trained = [] if skip_reason else effective
    counts, spent = _account(kept_groups, skip_reason, rules)
    return Effective(
        rows=tuple(_row(g.group, k) for g in trained for k in g.kept if k.n_trained),
        counts=counts,
        spent=spent,
        skip_reason=skip_reason,
    )


def _remaining(group: Group, rules: Rules) -> list[Scored]:
    if rules.truncated != "exclude":
        return list(group.completions)
    return [s for s in group.completions if s.completion.finish != "length"]


def _kept_group(group: Group, rules: Rules) -> _KeptGroup:
    kept = [_kept(scored, rules) for scored in _remaining(group, rules)]
    return _KeptGroup(group=group, kept=kept, spread=has_spread([k.reward for k in kept]))


def _kept(scored: Scored, rules: Rules) -> _Kept:
    completion = scored.completion
    if len(completion.token_ids) != len(completion.mask):
        raise ValueError(
            f"completion {completion.sample} of group {completion.group} has "
            f"{len(completion.token_ids)} tokens and a mask of {len(completion.mask)}"
        )
    mask_T, n_unusable = usable_mask(completion.mask, completion.logp_gen)
    truncated = rules.truncated == "mask" and completion.finish == "length"
    if truncated:
        mask_T, n_unusable = np.zeros_like(mask_T), 0
    return _Kept(
        scored=scored,
        reward=final_reward(scored, rules),
        mask_T=mask_T,
        n_unusable=n_unusable,
        truncated=truncated,
    )


def _fill_in(effective: Sequence[_KeptGroup], rules: Rules) -> None:
    """Advantage and weight of every completion of the effective batch."""
    advantage_PG = advantages([[k.reward for k in g.kept] for g in effective], rules.normalisation)
    weight_PG = weights([[k.n_trained for k in g.kept] for g in effective], rules.aggregation)
    for g, advantage_G, weight_G in zip(effective, advantage_PG, weight_PG, strict=True):
        for k, advantage, weight in zip(g.kept, advantage_G, weight_G, strict=True):
            k.advantage, k.weight = float(advantage), float(weight)


def _skip_reason(
    groups: Sequence[Group], kept_groups: Sequence[_KeptGroup], effective: Sequence[_KeptGroup]
) -> SkipReason | None:
    """Why the step would teach nothing, judged in the order in which things leave."""
    if not groups:
        return "no_groups"
    if all(g.all_truncated for g in kept_groups):
        return "all_truncated"
    if not any(g.spread for g in kept_groups):
        return "zero_variance"
    trained = [k for g in effective for k in g.kept if k.n_trained]
    if not trained:
        return "all_masked"
    if all(k.advantage == 0.0 for k in trained):
        return "zero_advantage"
    return None


def _account(
    kept_groups: Sequence[_KeptGroup], skip_reason: SkipReason | None, rules: Rules
) -> tuple[Counts, Spent]:
    """Every group, completion and token of the step under exactly one heading."""
    groups, completions, tokens = Counter[_Fate](), Counter[_Fate](), Counter[_Fate]()
    n_masked = n_unusable = 0
    for g in kept_groups:
        fate = _group_fate(g, skip_reason, rules)
        groups[fate] += 1
        n_excluded = len(g.group.completions) - len(g.kept)
        completions["truncated"] += n_excluded
        tokens["truncated"] += sum(len(s.completion.token_ids) for s in g.group.completions)
        for k in g.kept:
            length = len(k.mask_T)
            fate_k = _completion_fate(k, fate)
            completions[fate_k] += 1
            tokens["truncated"] -= length  # what is left there are the excluded ones
            tokens[fate_k] += length
            if fate_k == "trained":
                n_masked += length - k.n_trained
            if fate in ("trained", "masked"):
                n_unusable += k.n_unusable
    counts = Counts(
        groups=len(kept_groups),
        completions=sum(completions.values()),
        tokens_unusable=n_unusable,
        **{f"groups_{fate}": groups[fate] for fate in get_args(_Fate)},
        **{f"completions_{fate}": completions[fate] for fate in get_args(_Fate)},
    )
    spent = Spent(
        trained=tokens["trained"] - n_masked,
        masked=tokens["masked"] + n_masked,
        filtered=tokens["zero_variance"],
        truncated=tokens["truncated"],
        discarded={SKIPPED_STEP: tokens["skipped"]} if tokens["skipped"] else {},
    )
    return counts, spent


def _group_fate(g: _KeptGroup, skip_reason: SkipReason | None, rules: Rules) -> _Fate:
    if g.all_truncated:
        return "truncated"
    if not g.spread and (rules.zero_variance != "keep" or skip_reason):
        return "zero_variance"
    if not any(k.n_trained for k in g.kept):
        return "masked"
    return "skipped" if skip_reason else "trained"


def _completion_fate(k: _Kept, group_fate: _Fate) -> _Fate:
    if k.truncated:
        return "truncated"
    if group_fate == "zero_variance" or k.n_trained:
        return group_fate
    return "masked"


def _row(group: Group, kept: _Kept) -> Row:
    completion = kept.scored.completion
    logp_gen = completion.logp_gen
    logp_T = np.array(logp_gen, dtype=np.float64)
    if not np.isfinite(logp_T).all():
        logp_gen = tuple(float(x) for x in np.where(kept.mask_T, logp_T, 0.0))
    return Row(
        group=group.index,
        sample=completion.sample,
        prompt_ids=group.prompt.token_ids,
        token_ids=completion.token_ids,
        logp_gen=logp_gen,
        mask=tuple(kept.mask_T.astype(int).tolist()),
        segments=completion.segments,
        advantage=kept.advantage,
        weight=kept.weight,
    )
