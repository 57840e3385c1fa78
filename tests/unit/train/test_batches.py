"""Passes: however rows are cut, the same gradient; and every row is in one pass."""

import itertools
from functools import cache
from typing import get_args

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from train_rows import gradient_of, gradient_over, make_rows

from scalerl.algorithm.aggregation import Aggregation, weights
from scalerl.algorithm.losses import LossType
from scalerl.train.batches import PassLimits, length_of, passes, shares

ROWS = make_rows(14, seed=3)
WHOLE = PassLimits(rows=100)


@cache
def weighted(aggregation):
    """The rows in groups of two, one and three, with the weights of an aggregation."""
    whose = [0, 0, 1, 2, 2, 2, 3, 4, 4, 5, 6, 6, 6, 7]
    rows = [msgspec.structs.replace(r, group=g) for r, g in zip(ROWS, whose, strict=True)]
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda r: r.group)]
    weight_PG = weights([[sum(r.mask) for r in group] for group in groups], aggregation)
    return [
        msgspec.structs.replace(row, weight=float(weight))
        for group, weight_G in zip(groups, weight_PG, strict=True)
        for row, weight in zip(group, weight_G, strict=True)
    ]


@cache
def whole(loss, aggregation):
    gradient = gradient_of(weighted(aggregation), WHOLE, loss=loss)
    assert all(float(g.norm()) > 1e-6 for g in gradient.values())  # clipping has left something
    return gradient


def assert_same(found, loss, aggregation):
    for name, gradient in whole(loss, aggregation).items():
        assert (found[name] - gradient).norm() <= 1e-6 * gradient.norm(), name


EVERY = pytest.mark.parametrize(
    ("loss", "aggregation"), [*itertools.product(get_args(LossType), get_args(Aggregation))]
)


@EVERY
@settings(max_examples=8, deadline=None)
@given(rows=st.integers(1, 20), tokens=st.none() | st.integers(1, 400), order=st.randoms())
def test_no_cut_and_no_order_changes_the_gradient(loss, aggregation, rows, tokens, order):
    limits = PassLimits(rows=rows, tokens=tokens)
    shuffled = order.sample(weighted(aggregation), len(ROWS))
    assert_same(gradient_of(shuffled, limits, loss=loss), loss, aggregation)


@EVERY
@pytest.mark.parametrize("ranks", [2, 3, 20])  # of twenty ranks six have no row
def test_the_gradients_of_ranks_add_up_to_the_whole(loss, aggregation, ranks):
    limits = PassLimits(rows=4, tokens=120)
    todo = shares(weighted(aggregation), limits, ranks)
    parts = [gradient_over(mine, limits, loss=loss) for mine in todo]
    total = {name: sum(part[name] for part in parts) for name in parts[0]}
    assert_same(total, loss, aggregation)


def test_losses_and_aggregations_have_gradients_of_their_own():
    """So that the tests above are of different things. GRPO is DAPO with a bound between whose two
    values no ratio of these rows lies."""
    seen = [
        whole(loss, aggregation)["lm_head.weight"]
        for loss in ("cispo", "dapo", "gspo")
        for aggregation in get_args(Aggregation)
    ]
    for a, b in itertools.combinations(seen, 2):
        assert (a - b).norm() > 1e-2 * a.norm()


@given(
    lengths=st.lists(st.integers(1, 60), max_size=40),
    rows=st.integers(1, 8),
    tokens=st.none() | st.integers(1, 200),
    ranks=st.integers(1, 5),
)
def test_every_row_has_one_pass_within_the_limits_and_ranks_have_equally_many(
    lengths, rows, tokens, ranks
):
    limits = PassLimits(rows=rows, tokens=tokens)
    made = make_rows(len(lengths), seed=0, lengths=lengths)
    cut = list(passes(made, limits))
    divided = shares(made, limits, ranks)
    assert len({len(mine) for mine in divided}) == 1
    for todo in (cut, [p for mine in divided for p in mine if p]):
        assert sorted(r.group for p in todo for r in p) == list(range(len(lengths)))
        for one in todo:
            longest = max(map(length_of, one))
            assert len(one) <= rows
            assert len(one) == 1 or tokens is None or len(one) * longest <= tokens


def test_greedy_cut_on_hand_counted_rows():
    made = make_rows(5, seed=0, lengths=[1, 8, 2, 3, 3])  # with 2 prompt tokens each: 3 4 5 5 10
    sizes = lambda **limits: [len(p) for p in passes(made, PassLimits(**limits))]  # noqa: E731
    assert sizes(rows=2) == [2, 2, 1]
    assert sizes(rows=9, tokens=12) == [2, 2, 1]
    assert sizes(rows=9, tokens=15) == [3, 1, 1]
    assert sizes(rows=9, tokens=1) == [1, 1, 1, 1, 1]
    assert sizes(rows=9, tokens=50) == [5]


def test_ranks_get_about_equal_tokens():
    made = make_rows(64, seed=1)
    divided = shares(made, PassLimits(rows=8), 4)
    load = [sum(length_of(r) for p in mine for r in p) for mine in divided]
    assert max(load) < 1.15 * min(load)


def test_limits_below_one_are_refused():
    for bad in ({"rows": 0}, {"rows": 1, "tokens": 0}):
        with pytest.raises(ValueError, match="at least one"):
            PassLimits(**bad)


@pytest.mark.parametrize("how", [{"activation_checkpointing": True}, {"offload_optimizer": True}])
def test_memory_options_change_nothing(how):
    from train_rows import make_trainer

    plain, other = make_trainer(PassLimits(rows=5)), make_trainer(PassLimits(rows=5), **how)
    for version in range(2):
        a, b = plain.step(ROWS, version), other.step(ROWS, version)
        assert a.gradient_norm == b.gradient_norm
        assert (a.logp_train == b.logp_train).all()
    for name, weight in plain.weights().items():
        assert torch.equal(weight, other.weights()[name])
