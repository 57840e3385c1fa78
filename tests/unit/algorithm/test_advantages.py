"""Advantages by hand, and the rounding traps of rewards that are not dyadic."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.algorithm.advantages import advantages, centred, has_spread
from scalerl.errors import InputError

ALL = ("prompt", "batch", "none")
Normalisation = Literal["prompt", "batch", "none"]


def test_centred_on_the_mean_of_the_group() -> None:
    assert centred([1.0, -1.0, -1.0, -1.0]).tolist() == [1.5, -0.5, -0.5, -0.5]


def test_prompt_divides_by_the_population_std_plus_epsilon() -> None:
    # (1, −1, −1, −1): mean −.5, population variance .75; √(G − 1) = √3 is the largest possible.
    (found,) = advantages([[1.0, -1.0, -1.0, -1.0]], "prompt")
    std = math.sqrt(0.75) + 1e-6
    assert found.tolist() == pytest.approx([1.5 / std] + [-0.5 / std] * 3, rel=1e-14)
    assert found[0] == pytest.approx(math.sqrt(3.0), rel=2e-6)


def test_batch_divides_by_the_population_std_of_all_advantages() -> None:
    # Â = (1, −1), (1.5, −.5, −.5, −.5): mean 0, squares 1+1+2.25+.75 = 5 over 6 completions.
    first, second = advantages([[1.0, -1.0], [1.0, -1.0, -1.0, -1.0]], "batch")
    std = math.sqrt(5.0 / 6.0)
    assert first.tolist() == pytest.approx([1 / std, -1 / std], rel=1e-14)
    assert second.tolist() == pytest.approx([1.5 / std] + [-0.5 / std] * 3, rel=1e-14)


def test_none_leaves_the_centred_rewards() -> None:
    assert advantages([[3.0, 1.0]], "none")[0].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("normalisation", ALL)
@pytest.mark.parametrize(
    "rewards", [[0.35] * 8, [0.1 + 0.2] * 7, [0.95] * 16, [-1.0] * 3, [1e-300] * 5, [0.7], []]
)
def test_equal_rewards_give_exactly_zero_also_where_a_float_std_would_not(
    rewards: list[float], normalisation: Normalisation
) -> None:
    # Eight rewards of 0.35 have a mean a rounding away from 0.35: a std test would let them pass.
    assert not has_spread(rewards)
    (found,) = advantages([rewards], normalisation)
    assert found.tolist() == [0.0] * len(rewards)


def test_a_group_of_one_gets_zero_beside_a_group_with_spread() -> None:
    lone, pair = advantages([[1.0], [1.0, -1.0]], "batch")
    assert lone.tolist() == [0.0]
    assert pair.tolist() == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5)])  # std over three


@pytest.mark.parametrize("normalisation", ALL)
def test_rewards_a_rounding_apart_stay_bounded(normalisation: Normalisation) -> None:
    # 0.1 + 0.2 and 0.3 differ by one unit in the last place: max ≠ min, and no explosion.
    rewards = [0.1 + 0.2, 0.3, 0.3, 0.3]
    assert has_spread(rewards)
    (found,) = advantages([rewards], normalisation)
    assert np.abs(found).max() <= math.sqrt(3.0) * (1 + 1e-9)


def test_one_reward_apart_from_seven_is_at_the_bound_and_no_further() -> None:
    (found,) = advantages([[0.0] + [0.95] * 7], "prompt")
    assert found[0] == pytest.approx(-math.sqrt(7.0), rel=1e-5)
    assert found[1:].tolist() == pytest.approx([1 / math.sqrt(7.0)] * 7, rel=1e-5)


def test_a_batch_of_equal_groups_gives_zeros_not_zero_over_zero() -> None:
    found = advantages([[1.0] * 4, [-1.0] * 4], "batch")
    assert [a.tolist() for a in found] == [[0.0] * 4, [0.0] * 4]
    assert advantages([], "batch") == ()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_not_a_number_is_named(bad: float) -> None:
    with pytest.raises(InputError, match="not finite"):
        advantages([[1.0, bad]], "prompt")


def test_an_unknown_normalisation_is_refused() -> None:
    with pytest.raises(InputError, match="choose prompt, batch or none"):
        advantages([[1.0, 0.0]], "group")


rewards_of_a_group = st.lists(
    st.floats(-1e6, 1e6) | st.sampled_from([0.1 + 0.2, 0.3, 0.35, 1.0, -1.0, 1e-300]), max_size=9
)


@given(st.lists(rewards_of_a_group, max_size=6), st.sampled_from(ALL))
def test_always_finite_and_within_the_bound(
    rewards: list[list[float]], normalisation: Normalisation
) -> None:
    found = advantages(rewards, normalisation)
    for reward_G, advantage_G in zip(rewards, found, strict=True):
        assert np.isfinite(advantage_G).all()
        if not has_spread(reward_G):
            assert not advantage_G.any()
        if normalisation == "prompt" and reward_G:
            assert np.abs(advantage_G).max() <= math.sqrt(max(0, len(reward_G) - 1)) + 1e-6
    n_all = sum(len(a) for a in found)
    if normalisation == "batch" and n_all:
        assert max(np.abs(a).max(initial=0.0) for a in found) <= math.sqrt(n_all) + 1e-6
