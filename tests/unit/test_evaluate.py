"""Held-out figures against values worked out by hand."""

import math

import pytest

from scalerl.evaluate import summarise
from scalerl.messages import Completion, Scored


def scored(
    correct: bool,
    *,
    length: int = 4,
    truncated: bool = False,
    forced: int = 0,
    entropy: float = 0.5,
) -> Scored:
    completion = Completion(
        group=0,
        sample=0,
        token_ids=(5,) * length,
        logp_gen=(-0.1,) * length,
        mask=(0,) * forced + (1,) * (length - forced),
        segments=((0, 0),),
        finish="length" if truncated else "stop",
        interrupted=forced > 0,
        entropy=entropy,
    )
    outcome = "correct" if correct else "wrong"
    return Scored(completion=completion, reward=1.0 if correct else -1.0, outcome=outcome)


def test_mean_at_k_and_unbiased_pass_at_k():
    # prompt one: 1 of 4 right; prompt two: 4 of 4
    figures = summarise([[scored(i == 0) for i in range(4)], [scored(True)] * 4])
    assert figures.pass_rate == pytest.approx((0.25 + 1) / 2)
    # pass@2 of one: 1 − C(3,2)/C(4,2) = 1 − 3/6
    expected = {"1": (0.25 + 1) / 2, "2": (0.5 + 1) / 2, "4": 1.0}
    assert figures.pass_at_k == pytest.approx(expected)
    assert (figures.n_prompts, figures.n_samples) == (2, 4)


def test_standard_error_is_that_of_sampling_the_same_prompts_again():
    figures = summarise([[scored(i == 0) for i in range(4)], [scored(True)] * 4])
    # p(1 − p)/(K − 1) = .25·.75/3 and 0; √ of the sum over N = 2
    assert figures.pass_rate_se == pytest.approx(math.sqrt(0.25 * 0.75 / 3) / 2)


def test_a_truncated_completion_is_not_passed_even_if_its_answer_is_right():
    figures = summarise([[scored(True, truncated=True), scored(True)]])
    assert figures.pass_rate == 0.5
    assert figures.truncation_rate == 0.5


def test_entropy_is_a_mean_over_sampled_tokens_and_lengths_count_all():
    one = scored(True, length=4, entropy=1.0)
    two = scored(True, length=6, forced=5, entropy=0.0)  # one sampled token
    figures = summarise([[one, two]])
    assert figures.entropy == pytest.approx(4 / 5)
    assert figures.mean_length == 5.0
    assert figures.interruption_rate == 0.5
