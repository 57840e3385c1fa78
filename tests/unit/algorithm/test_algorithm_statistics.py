"""What is logged of a step, by hand."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from scalerl.algorithm.effective import Rules, assemble
from scalerl.algorithm.length_penalty import LengthPenalty
from scalerl.algorithm.statistics import (
    advantage_statistics,
    batch_statistics,
    effective_sample_share,
    level,
    staleness,
    token_statistics,
)
from scalerl.messages import Completion, Group, Prompt, Scored

PROMPT = Prompt(id="p", text="", token_ids=(1,), answer="", task="t")
CORRECT = Scored(
    completion=Completion(
        group=0,
        sample=0,
        token_ids=(1, 2, 3, 4),
        logp_gen=(-1.0,) * 4,
        mask=(1, 1, 0, 1),
        segments=((0, 3), (2, 5)),
        finish="stop",
        interrupted=True,
        entropy=0.6,
    ),
    reward=1.0,
    outcome="correct",
)
TRUNCATED = Scored(
    completion=msgspec.structs.replace(
        CORRECT.completion,
        sample=1,
        token_ids=(1, 2),
        logp_gen=(-1.0, -1.0),
        mask=(1, 1),
        segments=((0, 5),),
        finish="length",
        interrupted=False,
        entropy=1.1,
    ),
    reward=-1.0,
    outcome="no_answer",
)
GROUP = Group(index=0, prompt=PROMPT, admitted_version=3, completions=(CORRECT, TRUNCATED))


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(0.0, "ok"), (0.05, "ok"), (0.051, "amber"), (0.1, "amber"), (0.101, "red"), (1.0, "red")],
)
def test_levels(rate: float, expected: str) -> None:
    assert level(rate) == expected


def test_effective_sample_share() -> None:
    assert effective_sample_share([1.0, 1.0, 1.0]) == 1.0
    assert effective_sample_share([1.0, 3.0]) == pytest.approx(16 / 20)
    assert effective_sample_share([math.exp(20.0)] + [math.exp(-20.0)] * 99) == pytest.approx(0.01)
    assert effective_sample_share([1e300, 1e300]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no positive ratio"):
        effective_sample_share([])


def test_token_statistics_by_hand() -> None:
    ratio = np.array([0.5, 1.0, 1.0, 6.0])
    found = token_statistics(
        ratio_N=ratio,
        capped_N=[False, False, False, True],
        logp_train_N=np.log(ratio) - 2.0,
        logp_gen_N=[-2.0] * 4,
    )
    assert found is not None
    assert found.n_tokens == 4
    assert found.ratio_mean == pytest.approx(2.125)
    assert found.ratio_quantiles["q50"] == 1.0
    assert found.ratio_quantiles["max"] == 6.0
    assert found.capped_share == 0.25
    assert found.ess_share == pytest.approx(8.5**2 / (4 * 38.25))
    assert found.mismatch_mean == pytest.approx((math.log(2) + math.log(6)) / 4)
    assert found.mismatch_max == pytest.approx(math.log(6))


def test_a_step_that_went_wrong_is_still_described() -> None:
    found = token_statistics(
        ratio_N=[math.nan, 1.0, 3.0],
        capped_N=[False, False, True],
        logp_train_N=[math.nan, -1.0, -1.0],
        logp_gen_N=[-1.0, -1.0, -2.0],
    )
    assert found is not None
    assert (found.n_tokens, found.n_nonfinite) == (3, 1)
    assert (found.ratio_mean, found.capped_share, found.mismatch_mean) == (2.0, 0.5, 0.5)
    nan = [math.nan]
    assert (
        token_statistics(ratio_N=nan, capped_N=[False], logp_train_N=nan, logp_gen_N=[-1.0]) is None
    )


def test_nothing_trained_has_no_token_statistics() -> None:
    empty: list[float] = []
    assert (
        token_statistics(ratio_N=empty, capped_N=empty, logp_train_N=empty, logp_gen_N=empty)
        is None
    )
    with pytest.raises(ValueError, match="alike"):
        token_statistics(ratio_N=[1.0], capped_N=empty, logp_train_N=empty, logp_gen_N=empty)


def test_batch_statistics_are_of_everything_generated() -> None:
    found = batch_statistics([GROUP], Rules())
    assert found is not None
    assert (found.n_completions, found.reward_mean, found.reward_std) == (2, 0.0, 1.0)
    assert found.pass_rate == 0.5
    assert found.outcomes == {"correct": 1, "no_answer": 1}
    assert (found.length_mean, found.length_median, found.length_max) == (3.0, 3.0, 4)
    assert (found.truncation_rate, found.truncation_level) == (0.5, "red")
    assert (found.interruption_rate, found.interruption_level) == (0.5, "red")
    assert found.entropy == pytest.approx((3 * 0.6 + 2 * 1.1) / 5)
    assert found.forced_tokens == 1
    assert batch_statistics([], Rules()) is None


def test_batch_statistics_take_the_penalty_in() -> None:
    rules = Rules(penalty=LengthPenalty(length_max=4, length_cache=4))
    found = batch_statistics([GROUP], rules)
    assert found is not None
    assert found.reward_mean == -0.5  # 1 − 1 for the correct one of length L_max, −1


def test_advantage_statistics() -> None:
    found = advantage_statistics(assemble([GROUP], Rules(truncated="keep")))
    assert found is not None
    assert (found.mean, found.std, found.min, found.max) == (0.0, 1.0, -1.0, 1.0)
    assert advantage_statistics(assemble([GROUP], Rules())) is None


def test_staleness_counts_tokens_by_the_weights_that_sampled_them() -> None:
    # At version 6: two tokens of version 3, two and two of version 5.
    found = staleness([GROUP], 6)
    assert found is not None
    assert found.mean == pytest.approx((2 * 3 + 4 * 1) / 6)
    assert (found.max, found.span_max) == (3, 2)
    assert staleness([], 6) is None
