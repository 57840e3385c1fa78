"""Weights by hand, from the whole step."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.algorithm.aggregation import weights
from scalerl.errors import InputError

Aggregation = Literal["prompt", "sample", "token"]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Two prompts; the first with 4 + 2 trained tokens, the second with 3 and one all masked.
        ("prompt", [[1 / 12, 1 / 12], [1 / 6, 0.0]]),  # 1 / (2 · 6), 1 / (2 · 3)
        ("sample", [[1 / 16, 1 / 8], [1 / 6, 0.0]]),  # 1 / (2 · 2 · 4), …, G_p = 1: 1 / (2 · 1 · 3)
        ("token", [[1 / 9, 1 / 9], [1 / 9, 0.0]]),
    ],
)
def test_weights_by_hand(aggregation: Aggregation, expected: list[list[float]]) -> None:
    found = weights([[4, 2], [3, 0]], aggregation)
    assert [w.tolist() for w in found] == [pytest.approx(e, rel=1e-15) for e in expected]


def test_token_mean_of_four_tokens_at_one_and_one_at_five_is_nine_fifths() -> None:
    # Mean of micro-batch means would be 3.0, halved once more 0.9.
    (first,), (second,) = weights([[4], [1]], "token")
    assert 4 * 1.0 * first + 5.0 * second == pytest.approx(1.8)


def test_masked_tokens_leave_numerator_and_denominator() -> None:
    # Ten tokens of loss 1, six of them masked: 1.0, not 0.4.
    found = weights([[4, 0]], "token")[0]
    assert 4 * 1.0 * found[0] + 0 * found[1] == pytest.approx(1.0)


@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_everything_masked_gives_zeros(aggregation: Aggregation) -> None:
    assert [w.tolist() for w in weights([[0, 0], [0]], aggregation)] == [[0.0, 0.0], [0.0]]
    assert weights([], aggregation) == ()


def test_a_prompt_without_a_trained_token_is_not_counted() -> None:
    for aggregation in ("prompt", "sample", "token"):
        with_empty = weights([[4, 2], [0, 0]], aggregation)[0]
        assert with_empty.tolist() == weights([[4, 2]], aggregation)[0].tolist()


def test_errors() -> None:
    with pytest.raises(InputError, match="choose prompt, sample or token"):
        weights([[1]], "mean")
    with pytest.raises(ValueError, match="negative"):
        weights([[-1]], "token")


@given(
    st.lists(st.lists(st.integers(0, 20_000), max_size=6), max_size=6),
    st.sampled_from(("prompt", "sample", "token")),
)
def test_weights_times_lengths_sum_to_one(
    lengths: list[list[int]], aggregation: Aggregation
) -> None:
    found = weights(lengths, aggregation)
    total = sum(float(np.dot(w, n)) for w, n in zip(found, lengths, strict=True) if n)
    trained = any(any(n) for n in lengths)
    assert total == pytest.approx(1.0 if trained else 0.0, rel=1e-12)
