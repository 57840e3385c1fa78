"""Values and gradients worked out by hand. Gradients are of the loss, so of −objective.

All in float64, one completion a row, log-prob of the generator −1 unless said otherwise: then the
training log-prob is −1 + log ρ.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scalerl.algorithm.losses import Loss, LossTerms, make_loss, weighted_loss
from scalerl.errors import InputError

LOSSES = ("cispo", "dapo", "grpo", "gspo")
GARBAGE = (1e6, -1e6, math.nan, math.inf, -math.inf)


def run(
    loss: Loss,
    logp_train: list[list[float]],
    logp_gen: list[list[float]],
    advantage: list[float],
    mask: list[list[int]] | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[LossTerms, list[list[float]]]:
    """The terms, and the gradient of −Σ objective with respect to every log-prob."""
    logp = torch.tensor(logp_train, dtype=dtype, requires_grad=True)
    keep = torch.ones_like(logp) if mask is None else torch.tensor(mask)
    terms = loss(logp, torch.tensor(logp_gen, dtype=dtype), torch.tensor(advantage), keep)
    weighted_loss(terms, torch.ones(len(advantage))).backward()
    assert logp.grad is not None
    return terms, logp.grad.tolist()


def at_ratio(loss: Loss, ratio: float, advantage: float) -> tuple[float, float, bool]:
    """Objective, gradient of the loss and capped flag of a single token."""
    terms, gradient = run(loss, [[-1.0 + math.log(ratio)]], [[-1.0]], [advantage])
    return float(terms.objective_BT.detach()), gradient[0][0], bool(terms.capped_BT)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient", "capped"),
    [
        (6.0, 1.0, -5.0, True),  # over the cap: weight 5, neither dropped (0) nor uncapped (−6)
        (6.0, -1.0, 5.0, True),  # the cap is the same for a negative advantage
        (1.0, 1.0, -1.0, False),
        (4.0, 0.5, -2.0, False),
        (0.01, 1.0, -0.01, False),  # no lower bound
        (0.01, -2.0, 0.02, False),
    ],
)
def test_cispo_gradient_is_minus_capped_ratio_times_advantage(
    ratio: float, advantage: float, gradient: float, capped: bool
) -> None:
    objective, found, was_capped = at_ratio(make_loss("cispo"), ratio, advantage)
    assert found == pytest.approx(gradient, rel=1e-12)
    assert objective == pytest.approx(-gradient * (-1.0 + math.log(ratio)), rel=1e-12)
    assert was_capped is capped


def test_cispo_cap_is_absolute_and_configurable() -> None:
    # 4, 5 and 8 are caps on ρ itself: at ρ = 6 the weights are 4, 5 and 6.
    for ratio_max, weight in ((4.0, 4.0), (5.0, 5.0), (8.0, 6.0)):
        _, gradient, _ = at_ratio(make_loss("cispo", ratio_max=ratio_max), 6.0, 1.0)
        assert gradient == pytest.approx(-weight, rel=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "gradient", "clipped"),
    [
        (1.3, 1.0, 1.26, 0.0, True),  # above the range, wants higher: clipped
        (1.3, -1.0, -1.3, 1.3, False),  # above the range, wants lower: free
        (0.7, -1.0, -0.8, 0.0, True),  # below the range, wants lower: clipped
        (0.7, 1.0, 0.7, -0.7, False),  # below the range, wants higher: free
        (1.25, 2.0, 2.5, -2.5, False),  # inside: over GRPO's 1.2, under DAPO's 1.26
        (0.9, -2.0, -1.8, 1.8, False),
    ],
)
def test_dapo_clips_only_the_side_that_the_advantage_pushes_to(
    ratio: float, advantage: float, objective: float, gradient: float, clipped: bool
) -> None:
    found = at_ratio(make_loss("dapo"), ratio, advantage)
    assert found[0] == pytest.approx(objective, rel=1e-12)
    assert found[1] == pytest.approx(gradient, rel=1e-12, abs=1e-15)
    assert found[2] is clipped


def test_grpo_is_symmetric_at_a_fifth() -> None:
    assert at_ratio(make_loss("grpo"), 1.25, 2.0) == (pytest.approx(2.4), 0.0, True)
    assert at_ratio(make_loss("grpo"), 1.19, 2.0) == (
        pytest.approx(2.38),
        pytest.approx(-2.38),
        False,
    )
    assert at_ratio(make_loss("grpo"), 0.75, -1.0) == (pytest.approx(-0.8), 0.0, True)


def test_a_ratio_exactly_at_the_bound_has_no_gradient_on_the_clipped_side() -> None:
    # exp(log 2) is exactly 2 in float64, so ρ can lie on the bounds 1 + 1 and 1 − 0.5 themselves.
    loss = make_loss("dapo", clip_low=0.5, clip_high=1.0)
    log_two = math.log(2.0)
    assert math.exp(log_two) == 2.0
    assert run(loss, [[log_two]], [[0.0]], [1.0])[1] == [[0.0]]
    assert run(loss, [[-log_two]], [[0.0]], [-1.0])[1] == [[0.0]]
    assert run(loss, [[log_two]], [[0.0]], [-1.0])[1] == [[2.0]]


def test_gspo_ratio_is_exp_of_the_mean_log_ratio_and_padding_is_ignored() -> None:
    # Log-ratios (.3, −.1, .1, .1): mean .1, so 1.10517; exp of the sum, 1.49182, is wrong.
    # Two padded positions hold 7 and −9; s = 1.10517 is over 1 + 0.2 for neither sign.
    log_ratio = [[0.3, -0.1, 0.1, 0.1, 7.0, -9.0]]
    mask = [[1, 1, 1, 1, 0, 0]]
    loss = make_loss("gspo", clip_low=0.2, clip_high=0.2)
    terms, gradient = run(loss, log_ratio, [[0.0] * 6], [2.0], mask)
    assert terms.ratio_BT[0, :4].tolist() == pytest.approx([1.1051709180756477] * 4, rel=1e-12)
    assert terms.objective_BT.tolist()[0] == pytest.approx([2.2103418361512953] * 4 + [0.0, 0.0])
    # d/dlogp_t of four equal terms s·Â: 4 · s·Â/4 = s·Â at each trained token.
    assert gradient[0] == pytest.approx([-2.2103418361512953] * 4 + [0.0, 0.0], rel=1e-12)


def test_gspo_clips_the_completion_as_a_whole_with_its_own_narrow_bounds() -> None:
    log_ratio, zero = [[0.3, -0.1, 0.1, 0.1]], [[0.0] * 4]
    up, gradient = run(make_loss("gspo"), log_ratio, zero, [1.0])
    assert up.objective_BT[0].tolist() == pytest.approx([1.005] * 4)
    assert up.capped_BT.all()
    assert gradient == [[0.0] * 4]  # also for the token whose own log-ratio is negative
    down, gradient = run(make_loss("gspo"), log_ratio, zero, [-1.0])
    assert not down.capped_BT.any()
    assert gradient[0] == pytest.approx([1.1051709180756477] * 4)
    low, gradient = run(make_loss("gspo"), [[-0.01] * 4], zero, [-1.0])
    assert low.objective_BT[0].tolist() == pytest.approx([-0.996] * 4)
    assert gradient == [[0.0] * 4]


def test_gspo_of_a_long_near_on_policy_completion_stays_near_one() -> None:
    # 8000 tokens of −3.5e-4: a summed ratio collapses to 0.0608, the mean gives 0.99965.
    terms, _ = run(make_loss("gspo"), [[-3.5e-4] * 8000], [[0.0] * 8000], [1.0])
    assert float(terms.ratio_BT[0, 0]) == pytest.approx(0.99965006, abs=1e-8)


def test_gspo_long_answers_weigh_no_more_than_short_ones_per_token_weight() -> None:
    # One term per completion under `sample` weights 1/|y|: Σ_t w·s·Â = s·Â for 2 and for 5 tokens.
    logp = torch.zeros(2, 5, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    terms = make_loss("gspo")(logp, logp, torch.ones(2), mask)
    weight = torch.tensor([1 / 2, 1 / 5], dtype=torch.float64)
    assert (terms.objective_BT.sum(dim=1) * weight).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [100.0, -100.0])
@pytest.mark.parametrize("name", LOSSES)
def test_a_log_ratio_of_a_hundred_is_finite_in_value_and_gradient(
    name: str, log_ratio: float, advantage: float, dtype: torch.dtype
) -> None:
    terms, gradient = run(
        make_loss(name), [[log_ratio - 101.0]], [[-101.0]], [advantage], dtype=dtype
    )
    assert math.isfinite(float(terms.objective_BT.detach()))
    assert math.isfinite(gradient[0][0])
    assert float(terms.ratio_BT) == pytest.approx(math.exp(math.copysign(20.0, log_ratio)))
    if name == "cispo":  # the gradient is through log π only, never through the ratio
        expected = -min(math.exp(math.copysign(20.0, log_ratio)), 5.0) * advantage
        assert gradient[0][0] == pytest.approx(expected, rel=1e-2)
    else:  # clamped or clipped: nothing passes through the ratio
        assert gradient[0][0] == 0.0


@pytest.mark.parametrize("where", ["logp_train", "logp_gen", "both"])
@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", LOSSES)
def test_masked_positions_change_neither_value_nor_gradient(
    name: str, garbage: float, where: str
) -> None:
    mask = [[1, 1, 0, 0], [1, 0, 1, 0]]
    train = torch.tensor([[-0.5, -1.2, -0.3, -0.1], [-2.0, -0.4, -0.7, -0.2]], dtype=torch.float64)
    gen = torch.tensor([[-0.6, -1.0, -0.2, -0.4], [-1.9, -0.5, -0.71, -3.0]], dtype=torch.float64)
    clean, clean_gradient = run(make_loss(name), train.tolist(), gen.tolist(), [0.7, -1.1], mask)
    hole = torch.tensor(mask) == 0
    if where != "logp_gen":
        train = train.masked_fill(hole, garbage)
    if where != "logp_train":
        gen = gen.masked_fill(hole, garbage)
    dirty, gradient = run(make_loss(name), train.tolist(), gen.tolist(), [0.7, -1.1], mask)
    assert torch.equal(dirty.objective_BT, clean.objective_BT)
    assert torch.equal(dirty.ratio_BT, clean.ratio_BT)
    assert torch.equal(dirty.capped_BT, clean.capped_BT)
    assert gradient == clean_gradient
    assert all(
        g == 0.0
        for row, keep in zip(gradient, mask, strict=True)
        for g, m in zip(row, keep, strict=True)
        if not m
    )


@pytest.mark.parametrize("name", LOSSES)
def test_everything_masked_gives_zero_and_a_zero_gradient_not_nan(name: str) -> None:
    terms, gradient = run(
        make_loss(name), [[math.nan, -1.0]], [[-1.0, math.nan]], [math.nan], [[0, 0]]
    )
    assert terms.objective_BT.tolist() == [[0.0, 0.0]]
    assert gradient == [[0.0, 0.0]]


@pytest.mark.parametrize("name", LOSSES)
def test_on_policy_every_loss_is_the_policy_gradient(name: str) -> None:
    for advantage in (1.5, -0.5):
        terms, gradient = run(make_loss(name), [[-0.3, -2.0]], [[-0.3, -2.0]], [advantage])
        assert gradient[0] == pytest.approx([-advantage, -advantage])
        assert not terms.capped_BT.any()
        assert not terms.ratio_BT.requires_grad


def test_temperature_is_inside_the_softmax_on_both_sides() -> None:
    # Logits (2, 1, 0) at temperature 0.5, token 0: log-prob −0.14293 of the tempered distribution
    # on both sides gives ratio 1. A raw −0.40761 (logits as they are) or a scaled raw log-prob
    # −0.81522 on the generator's side would show as ratios of 1.303 and 1.959.
    logits = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    tempered = float(torch.log_softmax(logits / 0.5, dim=0)[0])
    raw = float(torch.log_softmax(logits, dim=0)[0])
    assert tempered == pytest.approx(-0.14293, abs=1e-5)
    for logp_gen, ratio in ((tempered, 1.0), (raw, 1.30301), (raw / 0.5, 1.95870)):
        terms, _ = run(make_loss("cispo"), [[tempered]], [[logp_gen]], [1.0])
        assert float(terms.ratio_BT) == pytest.approx(ratio, abs=1e-5)


def test_truncated_sampling_would_multiply_every_ratio_by_the_surviving_mass() -> None:
    # Probabilities (.665, .245, .090), top-k 2: recorded log-probs are renormalised over 0.91, so
    # each ratio is 0.91 on-policy. This is why configurations that truncate are refused.
    full = [math.log(0.665), math.log(0.245)]
    renormalised = [logp - math.log(0.665 + 0.245) for logp in full]
    terms, _ = run(make_loss("cispo"), [full], [renormalised], [1.0])
    assert terms.ratio_BT[0].tolist() == pytest.approx([0.91, 0.91])


@pytest.mark.parametrize(
    ("name", "bounds", "words"),
    [
        ("cispo", {"ratio_max": 0.2}, "loss.ratio_max = 0.2"),  # TRL's unconfigured cap
        ("cispo", {"ratio_max": math.inf}, "finite"),
        ("cispo", {"ratio_max": math.nan}, "ratio_max"),
        ("cispo", {"clip_high": 0.2}, "cispo has no such bound; it has ratio_max"),
        ("dapo", {"clip_low": 0.0}, "between 0 and 1"),
        ("dapo", {"clip_low": 1.0}, "between 0 and 1"),
        ("dapo", {"clip_high": -0.1}, "clip_high = -0.1"),
        ("dapo", {"ratio_max": 5.0}, "clip_low, clip_high"),
        ("grpo", {"clip": 1.2}, "between 0 and 1"),
        ("grpo", {"clip_low": 0.2}, "it has clip"),
        ("gspo", {"clip_high": math.nan}, "clip_high"),
        ("reinforce", {}, "choose cispo, dapo, grpo or gspo"),
    ],
)
def test_make_loss_refuses_what_it_cannot_mean(
    name: str, bounds: dict[str, float], words: str
) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        make_loss(name, **bounds)


@pytest.mark.parametrize(
    ("advantage_shape", "mask_shape"),
    [((3, 4), (3, 4)), ((4,), (3, 4)), ((3,), (4, 3)), ((3,), (3,))],
)
def test_shapes_that_would_broadcast_silently_are_refused(
    advantage_shape: tuple[int, ...], mask_shape: tuple[int, ...]
) -> None:
    logp: Tensor = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"\[B"):
        make_loss("gspo")(logp, logp, torch.zeros(advantage_shape), torch.ones(mask_shape))


def test_a_weight_per_row_is_required() -> None:
    logp = torch.zeros(2, 3)
    terms = make_loss("cispo")(logp, logp, torch.ones(2), torch.ones(2, 3))
    with pytest.raises(ValueError, match="2 rows"):
        weighted_loss(terms, torch.ones(2, 3))
