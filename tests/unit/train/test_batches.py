"""Passes: however rows are cut, the same gradient; and every row is in one pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from train_rows import gradient_of, make_rows

from scalerl.train.batches import PassLimits, length_of, passes, shares

ROWS = make_rows(14, seed=3)
WHOLE = gradient_of(ROWS, PassLimits(rows=100))


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 20), tokens=st.none() | st.integers(1, 400), order=st.randoms())
def test_no_cut_and_no_order_changes_the_gradient(rows, tokens, order):
    shuffled = order.sample(ROWS, len(ROWS))
    found = gradient_of(shuffled, PassLimits(rows=rows, tokens=tokens))
    for name, gradient in WHOLE.items():
        assert (found[name] - gradient).norm() <= 1e-6 * gradient.norm(), name


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
