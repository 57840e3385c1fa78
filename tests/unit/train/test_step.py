"""A step that is not finite: skipped, counted, and nothing of it stays."""

import dataclasses
import math

import pytest
import torch
from sharded_models import make_model
from train_rows import SETTINGS, make_rows, make_trainer

from scalerl.algorithm.losses import make_loss
from scalerl.errors import RunError
from scalerl.train.batches import PassLimits

ROWS = make_rows(6, seed=2)
LIMITS = PassLimits(rows=4)  # two passes: only one of them is ill


@dataclasses.dataclass
class Steep:
    """A loss as finite as another whose slope is infinite: of √x at 0, in some calls."""

    ill: set[int]
    calls: int = 0

    def __call__(self, logp_train_BT, logp_gen_BT, advantage_B, mask_BT):
        self.calls += 1
        terms = make_loss("cispo")(logp_train_BT, logp_gen_BT, advantage_B, mask_BT)
        if self.calls not in self.ill:
            return terms
        nothing_BT = (terms.objective_BT - terms.objective_BT.detach()).sqrt()
        return dataclasses.replace(terms, objective_BT=terms.objective_BT + nothing_BT)


def trainer_with(ill, *, budget=0, dtype="float32", **how):
    settings = dataclasses.replace(SETTINGS, skip_budget=budget)
    loss = Steep(set(ill))
    return make_trainer(LIMITS, model=make_model(dtype=dtype), settings=settings, loss=loss, **how)


def copied(tensors):
    return {name: tensor.clone() for name, tensor in tensors.items()}


def assert_equal(a, b):
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), name


@pytest.mark.parametrize(
    "how", [{}, {"dtype": "bfloat16"}, {"offload_optimizer": True}], ids=["fp32", "bf16", "offload"]
)
def test_a_gradient_that_is_not_finite_is_skipped_though_the_loss_is(how):
    """The second step is ill; the third goes on as if it had never been."""
    trainer, other = trainer_with([4], budget=1, **how), trainer_with([], **how)
    for each in (trainer, other):
        assert each.step(ROWS, 0).applied
    weights, optimizer = copied(trainer.weights()), copied(trainer.optimizer_tensors())
    seen = trainer.step(ROWS, 1)
    assert math.isfinite(seen.loss)
    assert not math.isfinite(seen.gradient_norm)
    assert seen.applied is False
    assert trainer.skipped_in_a_row == 1
    assert_equal(trainer.weights(), weights)
    assert_equal(trainer.optimizer_tensors(), optimizer)
    well, straight = trainer.step(ROWS, 2), other.step(ROWS, 2)
    assert well.applied
    assert trainer.skipped_in_a_row == 0
    assert well.gradient_norm == straight.gradient_norm
    assert_equal(trainer.weights(), other.weights())
    assert any(not torch.equal(w, weights[name]) for name, w in trainer.weights().items())


def test_more_than_the_budget_in_a_row_ends_it_and_says_that_it_is_the_gradient():
    trainer = trainer_with(range(1, 99), budget=2)
    weights = copied(trainer.weights())
    for version in range(2):
        assert not trainer.step(ROWS, version).applied
    with pytest.raises(
        RunError, match=r"step 3: loss -?\d\S* and gradient norm (nan|inf) are not finite"
    ):
        trainer.step(ROWS, 2)
    assert_equal(trainer.weights(), weights)
