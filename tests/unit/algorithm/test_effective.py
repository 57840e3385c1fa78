"""Groups in, rows and a closed ledger out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.algorithm.effective import (
    Effective,
    Rules,
    Spent,
    assemble,
    final_reward,
    has_variance,
    usable_mask,
)
from scalerl.algorithm.length_penalty import LengthPenalty, length_penalty
from scalerl.errors import InputError
from scalerl.messages import Completion, Group, Prompt, Scored

PROMPT = Prompt(id="p", text="1+1", token_ids=(5, 6), answer="2", task="sum")
Finish = Literal["stop", "length"]


def scored(
    length: int,
    reward: float,
    *,
    finish: Finish = "stop",
    mask: Sequence[int] | None = None,
    logp_gen: Sequence[Any] | None = None,
    token_ids: Sequence[int] | None = None,
) -> Scored:
    return Scored(
        completion=Completion(
            group=0,
            sample=0,
            token_ids=tuple(range(length)) if token_ids is None else tuple(token_ids),
            logp_gen=(-0.5,) * length if logp_gen is None else tuple(logp_gen),
            mask=(1,) * length if mask is None else tuple(mask),
            segments=((0, 0),),
            finish=finish,
            interrupted=False,
            entropy=0.1,
        ),
        reward=reward,
        outcome="correct" if reward > 0 else "wrong",
    )


def group(*completions: Scored, index: int = 0) -> Group:
    numbered = tuple(
        msgspec.structs.replace(
            s, completion=msgspec.structs.replace(s.completion, group=index, sample=i)
        )
        for i, s in enumerate(completions)
    )
    return Group(index=index, prompt=PROMPT, admitted_version=0, completions=numbered)


def n_tokens(groups: Sequence[Group]) -> int:
    return sum(len(s.completion.token_ids) for g in groups for s in g.completions)


def check_closed(found: Effective, groups: Sequence[Group]) -> None:
    counts, spent = found.counts, found.spent
    assert spent.total == n_tokens(groups)
    assert spent.trained == sum(sum(row.mask) for row in found.rows)
    fates = ("trained", "truncated", "zero_variance", "masked", "skipped")
    assert counts.groups == len(groups) == sum(getattr(counts, f"groups_{f}") for f in fates)
    assert (
        counts.completions
        == sum(len(g.completions) for g in groups)
        == sum(getattr(counts, f"completions_{f}") for f in fates)
    )
    assert counts.completions_trained == len(found.rows)
    assert (found.skip_reason is None) == bool(found.rows)


# What the reports of others' users say, by content.


def test_the_end_token_is_trained_once_and_never_inferred_from_its_value() -> None:
    # Padding and end-of-text share id 2; the prompt holds a 2 as well. The mask comes with the
    # completion and truncation from its finish reason, never from token values.
    prompt = msgspec.structs.replace(PROMPT, token_ids=(2, 9))
    ended = scored(3, 1.0, token_ids=(7, 8, 2))
    other_end = scored(2, -1.0, token_ids=(7, 151643))  # a second legal end-of-text id
    cut = scored(3, -1.0, token_ids=(7, 8, 2), finish="length")  # last token looks like an end
    given = msgspec.structs.replace(group(ended, other_end, cut), prompt=prompt)
    found = assemble([given], Rules())
    assert [(row.token_ids, row.mask) for row in found.rows] == [
        ((7, 8, 2), (1, 1, 1)),
        ((7, 151643), (1, 1)),
    ]
    assert found.counts.completions_truncated == 1
    assert found.rows[0].prompt_ids == (2, 9)


def test_missing_nan_and_infinite_log_probs_are_masked_and_counted_the_rest_untouched() -> None:
    logp_gen = (-0.2, None, math.nan, -math.inf, -1.3)
    mask, n_unusable = usable_mask((1,) * 5, logp_gen)
    assert (mask.tolist(), n_unusable) == ([True, False, False, False, True], 3)
    found = assemble([group(scored(5, 1.0, logp_gen=logp_gen), scored(2, -1.0))], Rules())
    assert found.rows[0].mask == (1, 0, 0, 0, 1)
    assert found.rows[0].logp_gen == (-0.2, 0.0, 0.0, 0.0, -1.3)
    assert found.counts.tokens_unusable == 3
    assert found.spent == Spent(trained=4, masked=3)
    assert found.rows[0].weight == 1 / 4  # the masked tokens are in no denominator


def test_a_forced_token_without_a_log_prob_is_masked_but_not_counted_as_unusable() -> None:
    mask, n_unusable = usable_mask((1, 0, 1), (-0.1, math.nan, -0.1))
    assert (mask.tolist(), n_unusable) == ([True, False, True], 0)
    with pytest.raises(ValueError, match="mask has 1"):
        usable_mask((1,), ())


def test_zero_variance_groups_leave_before_any_denominator_is_taken() -> None:
    varied, constant = group(scored(4, 1.0), scored(4, -1.0)), group(scored(3, 1.0), scored(3, 1.0))
    alone, both = assemble([varied], Rules()), assemble([varied, constant], Rules())
    assert alone.rows == both.rows  # weights 1/8 and Â = ±1, constant group or not
    assert [(r.advantage, r.weight) for r in both.rows] == [(1.0, 1 / 8), (-1.0, 1 / 8)]
    assert both.spent == Spent(trained=8, filtered=6)


def test_under_keep_a_zero_variance_group_counts_in_the_denominators_with_advantage_zero() -> None:
    groups = [group(scored(4, 1.0), scored(4, -1.0)), group(scored(3, 1.0), scored(3, 1.0))]
    found = assemble(groups, Rules(zero_variance="keep", normalisation="batch"))
    # Â = 1, −1, 0, 0: population variance 1/2.
    assert [r.advantage for r in found.rows] == pytest.approx([2**0.5, -(2**0.5), 0.0, 0.0])
    assert [r.weight for r in found.rows] == [1 / 16, 1 / 16, 1 / 12, 1 / 12]
    assert found.spent == Spent(trained=14)


@pytest.mark.parametrize("rewards", [[0.35] * 8, [0.1 + 0.2] * 4])
def test_equal_rewards_that_a_float_std_misses_are_filtered(rewards: list[float]) -> None:
    groups = [group(*(scored(2, r) for r in rewards))]
    assert not has_variance(groups[0], Rules())
    found = assemble(groups, Rules())
    assert found.skip_reason == "zero_variance"
    check_closed(found, groups)


# Order: truncated leave, then group statistics, then zero variance, then the batch std.


def test_truncated_leave_before_the_mean_of_the_group() -> None:
    # Kept: +1, −1, −1, mean −1/3. With the truncated one the mean would be −1/2.
    groups = [
        group(scored(2, 1.0), scored(2, -1.0), scored(2, -1.0), scored(9, -1.0, finish="length"))
    ]
    found = assemble(groups, Rules(normalisation="none"))
    assert [r.advantage for r in found.rows] == pytest.approx([4 / 3, -2 / 3, -2 / 3])
    assert found.spent == Spent(trained=6, truncated=9)


def test_a_group_left_without_variance_by_truncation_is_filtered() -> None:
    # Variance only through the truncated completion.
    groups = [group(scored(2, 1.0), scored(3, 1.0), scored(9, -1.0, finish="length"))]
    assert not has_variance(groups[0], Rules())
    assert has_variance(groups[0], Rules(truncated="keep"))
    found = assemble(groups, Rules())
    assert found.skip_reason == "zero_variance"
    assert found.spent == Spent(filtered=5, truncated=9)


def test_batch_std_is_over_what_the_filters_left() -> None:
    groups = [
        group(scored(1, 1.0), scored(1, -1.0), index=0),  # Â = ±1
        group(scored(1, 1.0), scored(1, 1.0), index=1),  # leaves; its zeros would shrink the std
        group(scored(1, 1.0), scored(1, -1.0), scored(1, -1.0), scored(1, -1.0), index=2),
    ]
    found = assemble(groups, Rules())
    std = math.sqrt(5 / 6)  # (1, 1, 2.25, .25, .25, .25) / 6
    expected = [1 / std, -1 / std, 1.5 / std, -0.5 / std, -0.5 / std, -0.5 / std]
    assert [r.advantage for r in found.rows] == pytest.approx(expected)
    assert [r.group for r in found.rows] == [0, 0, 2, 2, 2, 2]
    assert [r.sample for r in found.rows] == [0, 1, 0, 1, 2, 3]


def test_masked_truncated_completions_stay_in_the_statistics_and_out_of_the_weights() -> None:
    groups = [group(scored(2, 1.0), scored(4, -1.0), scored(9, -1.0, finish="length"))]
    rules = Rules(truncated="mask", normalisation="none", aggregation="sample")
    found = assemble(groups, rules)
    assert [r.advantage for r in found.rows] == pytest.approx([4 / 3, -2 / 3])  # mean −1/3
    assert [r.weight for r in found.rows] == [1 / 4, 1 / 8]  # G_p = 2
    assert found.spent == Spent(trained=6, truncated=9)
    kept = assemble(groups, Rules(truncated="keep", normalisation="none"))
    assert [sum(r.mask) for r in kept.rows] == [2, 4, 9]
    assert kept.spent == Spent(trained=15)


def test_a_batch_with_one_surviving_prompt_is_trained_on_that_prompt_alone() -> None:
    groups = [
        group(scored(2, 1.0), scored(2, 1.0), index=0),
        group(scored(5, -1.0, finish="length"), scored(5, -1.0, finish="length"), index=1),
        group(scored(3, 1.0), scored(1, -1.0), index=2),
    ]
    found = assemble(groups, Rules())
    assert [(r.group, r.advantage, r.weight) for r in found.rows] == [
        (2, 1.0, 1 / 4),
        (2, -1.0, 1 / 4),
    ]
    assert found.skip_reason is None
    assert (found.counts.groups_zero_variance, found.counts.groups_truncated) == (1, 1)
    check_closed(found, groups)


def test_a_single_surviving_completion_has_no_variance() -> None:
    groups = [group(scored(2, 1.0), scored(7, -1.0, finish="length"))]
    found = assemble(groups, Rules())
    assert found.skip_reason == "zero_variance"
    assert found.spent == Spent(filtered=2, truncated=7)


# Nothing to learn from.


@pytest.mark.parametrize("zero_variance", ["filter", "dynamic", "keep"])
@pytest.mark.parametrize("normalisation", ["prompt", "batch", "none"])
def test_a_batch_of_equal_rewards_is_a_skip_filter_or_no_filter(
    zero_variance: Any, normalisation: Any
) -> None:
    groups = [group(scored(2, 1.0), scored(3, 1.0)), group(scored(4, -1.0), scored(5, -1.0))]
    found = assemble(groups, Rules(zero_variance=zero_variance, normalisation=normalisation))
    assert (found.rows, found.skip_reason) == ((), "zero_variance")
    assert found.spent == Spent(filtered=14)
    check_closed(found, groups)


@pytest.mark.parametrize("truncated", ["exclude", "mask"])
def test_an_all_truncated_batch_is_a_skip(truncated: Any) -> None:
    groups = [group(scored(2, 1.0, finish="length"), scored(3, -1.0, finish="length"))]
    found = assemble(groups, Rules(truncated=truncated))
    assert (found.rows, found.skip_reason) == ((), "all_truncated")
    assert found.spent == Spent(truncated=5)
    check_closed(found, groups)


def test_no_groups_is_a_skip() -> None:
    found = assemble([], Rules())
    assert (found.rows, found.skip_reason, found.spent) == ((), "no_groups", Spent())


def test_all_log_probs_unusable_is_a_skip() -> None:
    bad = (math.nan, math.nan)
    groups = [group(scored(2, 1.0, logp_gen=bad), scored(2, -1.0, logp_gen=bad))]
    found = assemble(groups, Rules())
    assert (found.rows, found.skip_reason) == ((), "all_masked")
    assert found.spent == Spent(masked=4)
    assert found.counts.tokens_unusable == 4


def test_trained_tokens_only_where_the_advantage_is_zero_is_a_skip() -> None:
    # Rewards 1, 0, −1; only the middle one has usable log-probs, and its advantage is 0.
    bad = (math.nan,)
    groups = [group(scored(1, 1.0, logp_gen=bad), scored(3, 0.0), scored(1, -1.0, logp_gen=bad))]
    found = assemble(groups, Rules())
    assert (found.rows, found.skip_reason) == ((), "zero_advantage")
    assert found.spent == Spent(masked=2, discarded={"skipped_step": 3})
    check_closed(found, groups)


# Length penalty.


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (500, -1.0)]
)
def test_length_penalty_by_hand(length: int, penalty: float) -> None:
    found = length_penalty(length, length_max=100, length_cache=20)
    assert found == pytest.approx(penalty, abs=1e-15)


def test_the_penalty_is_added_to_correct_completions_only_and_counts_forced_tokens() -> None:
    rules = Rules(penalty=LengthPenalty(length_max=100, length_cache=20), normalisation="none")
    correct, wrong = scored(90, 1.0, mask=(1,) * 80 + (0,) * 10), scored(90, -1.0)
    assert final_reward(correct, rules) == 0.5
    assert final_reward(wrong, rules) == -1.0
    assert final_reward(correct, Rules()) == 1.0
    found = assemble([group(correct, wrong)], rules)
    assert [r.advantage for r in found.rows] == [0.75, -0.75]


def test_zero_variance_is_judged_on_the_final_rewards() -> None:
    rules = Rules(penalty=LengthPenalty(length_max=100, length_cache=20))
    all_correct = group(scored(10, 1.0), scored(95, 1.0))
    assert has_variance(all_correct, rules)
    assert not has_variance(all_correct, Rules())


@pytest.mark.parametrize(("length_max", "length_cache"), [(10, 0), (10, 11), (0, 0)])
def test_a_penalty_without_a_meaning_is_refused(length_max: int, length_cache: int) -> None:
    with pytest.raises(InputError, match="length_cache"):
        LengthPenalty(length_max=length_max, length_cache=length_cache)


# Errors.


def test_unknown_rules_are_named() -> None:
    with pytest.raises(InputError, match="truncated = 'drop': choose one of exclude, mask, keep"):
        Rules(truncated="drop")


def test_malformed_completions_are_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens and a mask of 2"):
        assemble([group(scored(3, 1.0, mask=(1, 1), logp_gen=(-1.0,) * 2))], Rules())
    with pytest.raises(InputError, match="not finite"):
        assemble([group(scored(1, math.nan), scored(1, 1.0))], Rules())


# Over random batches.


@st.composite
def batches(draw: st.DrawFn) -> list[Group]:
    logp = st.sampled_from([-0.5, -2.0, -20.0, math.nan, -math.inf, None])

    @st.composite
    def completions(draw: st.DrawFn) -> Scored:
        length = draw(st.integers(0, 6))
        return scored(
            length,
            draw(st.sampled_from([1.0, -1.0, 0.35, 0.1 + 0.2, 0.3])),
            finish=draw(st.sampled_from(["stop", "stop", "length"])),
            mask=draw(st.lists(st.sampled_from([1, 1, 0]), min_size=length, max_size=length)),
            logp_gen=draw(st.lists(logp, min_size=length, max_size=length)),
        )

    many = draw(st.lists(st.lists(completions(), min_size=1, max_size=5), max_size=5))
    return [group(*members, index=i) for i, members in enumerate(many)]


all_rules = st.builds(
    Rules,
    aggregation=st.sampled_from(["prompt", "sample", "token"]),
    normalisation=st.sampled_from(["prompt", "batch", "none"]),
    zero_variance=st.sampled_from(["filter", "dynamic", "keep"]),
    truncated=st.sampled_from(["exclude", "mask", "keep"]),
    penalty=st.sampled_from([None, LengthPenalty(length_max=5, length_cache=3)]),
)


@given(batches(), all_rules)
def test_the_ledger_closes_and_nothing_is_nan(groups: list[Group], rules: Rules) -> None:
    found = assemble(groups, rules)
    check_closed(found, groups)
    assert found.spent.trained + found.spent.masked >= 0
    for row in found.rows:
        assert any(row.mask)
        assert math.isfinite(row.advantage)
        assert math.isfinite(row.weight)
        assert np.isfinite(row.logp_gen).all()
        assert row.weight > 0
    if found.rows:
        assert sum(r.weight * sum(r.mask) for r in found.rows) == pytest.approx(1.0)
        assert any(r.advantage != 0 for r in found.rows)
    if rules.zero_variance != "keep":
        varied = {g.index for g in groups if has_variance(g, rules)}
        assert {row.group for row in found.rows} <= varied


@given(batches(), all_rules, st.randoms())
def test_the_order_of_the_groups_changes_no_row(
    groups: list[Group], rules: Rules, random: Any
) -> None:
    def by_key(found: Effective) -> dict[tuple[int, int], tuple[float, float]]:
        return {(r.group, r.sample): (r.advantage, r.weight) for r in found.rows}

    shuffled = list(groups)
    random.shuffle(shuffled)
    one, other = by_key(assemble(groups, rules)), by_key(assemble(shuffled, rules))
    assert one.keys() == other.keys()
    for key in one:
        assert other[key] == pytest.approx(one[key], rel=1e-12)


def test_effective_batches_survive_message_pack() -> None:
    groups = [group(scored(2, 1.0), scored(3, -1.0))]
    for rules in (Rules(), Rules(truncated="keep")):
        found = assemble(groups, rules)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Effective) == found
