"""One global batch, any split: the same gradient.

A tiny differentiable model (logits = feature of the token · parameters) stands for the policy.
The reference is one pass over all rows; each other way cuts the rows into micro-batches in some
order, pads them with garbage, deals them to ranks whose gradients are summed, or packs several
completions into one flat sequence before they are gathered into rows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, Literal

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from scalerl.algorithm.effective import Effective, Row, Rules, assemble
from scalerl.algorithm.losses import Loss, LossType, make_loss, weighted_loss
from scalerl.messages import Completion, Group, Prompt, Scored

VOCABULARY, WIDTH = 7, 4
PROMPT = Prompt(id="p", text="", token_ids=(1,), answer="", task="t")


def model(parameters: Tensor, ids: Tensor) -> Tensor:
    """Log-prob of each token given the one before it (the first: given token 0)."""
    features = torch.sin(torch.arange(VOCABULARY * WIDTH, dtype=torch.float64).reshape(-1, WIDTH))
    before = torch.cat([torch.zeros_like(ids[..., :1]), ids[..., :-1]], dim=-1)
    logp = torch.log_softmax(features[before] @ parameters, dim=-1)
    return logp.gather(-1, ids[..., None])[..., 0]


def rows_as_tensors(
    rows: Sequence[Row], extra: int, garbage: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    width = max(len(row.token_ids) for row in rows) + extra
    ids = torch.randint(VOCABULARY, (len(rows), width))
    logp_gen = torch.full((len(rows), width), garbage, dtype=torch.float64)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for b, row in enumerate(rows):
        n = len(row.token_ids)
        ids[b, :n] = torch.tensor(row.token_ids, dtype=torch.int64)
        logp_gen[b, :n] = torch.tensor(row.logp_gen, dtype=torch.float64)
        mask[b, :n] = torch.tensor(row.mask, dtype=torch.bool)
    advantage = torch.tensor([row.advantage for row in rows], dtype=torch.float64)
    weight = torch.tensor([row.weight for row in rows], dtype=torch.float64)
    return ids, logp_gen, mask, advantage, weight


def padded_gradient(
    loss: Loss, batches: Sequence[Sequence[Row]], extra: int, garbage: float
) -> Tensor:
    """Sum over micro-batches, or over ranks: no division anywhere."""
    parameters = torch.linspace(-1, 1, WIDTH * VOCABULARY, dtype=torch.float64)
    parameters = parameters.reshape(WIDTH, VOCABULARY).requires_grad_()
    for batch in batches:
        ids, logp_gen, mask, advantage, weight = rows_as_tensors(batch, extra, garbage)
        logp = torch.where(mask, model(parameters, ids), garbage)
        weighted_loss(loss(logp, logp_gen, advantage, mask), weight).backward()
    assert parameters.grad is not None
    return parameters.grad


def packed_gradient(loss: Loss, packs: Sequence[Sequence[Row]]) -> Tensor:
    """Completions end to end in one sequence each pack; log-probs gathered into rows after."""
    parameters = torch.linspace(-1, 1, WIDTH * VOCABULARY, dtype=torch.float64)
    parameters = parameters.reshape(WIDTH, VOCABULARY).requires_grad_()
    for pack in packs:
        flat = torch.cat([torch.tensor((0, *row.token_ids)) for row in pack])
        pieces = model(parameters, flat).split([len(row.token_ids) + 1 for row in pack])
        logp = torch.nn.utils.rnn.pad_sequence([p[1:] for p in pieces], batch_first=True)
        _, logp_gen, mask, advantage, weight = rows_as_tensors(pack, 0, math.nan)
        weighted_loss(loss(logp, logp_gen, advantage, mask), weight).backward()
    assert parameters.grad is not None
    return parameters.grad


def close(found: Tensor, expected: Tensor) -> bool:
    scale = float(expected.abs().max())
    return float((found - expected).abs().max()) <= 1e-6 * max(scale, 1e-12)


def groups_of(seed: int, n_groups: int, pattern: str) -> list[Group]:
    """Groups of uneven lengths; behaviour log-probs near the model's, some far from it."""
    r = random.Random(seed)
    groups: list[Group] = []
    for index in range(n_groups):
        completions: list[Scored] = []
        for sample in range(r.randint(2, 4)):
            n = r.randint(1, 9)
            mask = [1] * n
            if pattern in ("forced", "all") and n > 2:
                mask[n // 2] = mask[-1] = 0
            logp = [r.choice([-2.0, -1.9, -1.5, -4.0, -8.0]) for _ in range(n)]
            if pattern in ("unusable", "all") and r.random() < 0.4:
                logp[r.randrange(n)] = math.nan
            finish: Literal["stop", "length"] = "stop"
            if pattern in ("truncated", "all") and r.random() < 0.3:
                finish = "length"
            completion = Completion(
                group=index,
                sample=sample,
                token_ids=tuple(r.randrange(VOCABULARY) for _ in range(n)),
                logp_gen=tuple(logp),
                mask=tuple(mask),
                segments=((0, 0),),
                finish=finish,
                interrupted=False,
                entropy=1.0,
            )
            reward = r.choice([1.0, -1.0]) if sample else 1.0 - 2.0 * (index % 2)
            completions.append(Scored(completion=completion, reward=reward, outcome="wrong"))
        groups.append(
            Group(index=index, prompt=PROMPT, admitted_version=0, completions=tuple(completions))
        )
    return groups


def cut(rows: Sequence[Row], seed: int) -> list[list[Row]]:
    """The rows in a random order, in random non-empty parts."""
    r = random.Random(seed)
    shuffled = r.sample(rows, len(rows))
    parts: list[list[Row]] = []
    while shuffled:
        n = r.randint(1, len(shuffled))
        parts.append(shuffled[:n])
        shuffled = shuffled[n:]
    return parts


def batch_of(seed: int, n_groups: int, pattern: str, rules: Rules) -> Effective:
    return assemble(groups_of(seed, n_groups, pattern), rules)


@pytest.mark.parametrize("pattern", ["plain", "forced", "unusable", "truncated", "all"])
@pytest.mark.parametrize("normalisation", ["prompt", "batch", "none"])
@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
@pytest.mark.parametrize("name", ["cispo", "dapo", "grpo", "gspo"])
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    seed=st.integers(0, 10**6),
    cut_seed=st.integers(0, 10**6),
    n_groups=st.integers(1, 4),
    extra=st.integers(0, 3),
    garbage=st.sampled_from([0.0, 1e6, -1e6, math.nan, math.inf]),
    truncated=st.sampled_from(["exclude", "mask", "keep"]),
    zero_variance=st.sampled_from(["filter", "keep"]),
)
def test_any_split_gives_the_same_gradient(
    name: LossType,
    aggregation: Any,
    normalisation: Any,
    pattern: str,
    seed: int,
    cut_seed: int,
    n_groups: int,
    extra: int,
    garbage: float,
    truncated: Any,
    zero_variance: Any,
) -> None:
    rules = Rules(
        aggregation=aggregation,
        normalisation=normalisation,
        truncated=truncated,
        zero_variance=zero_variance,
    )
    rows = batch_of(seed, n_groups, pattern, rules).rows
    if not rows:
        return
    loss = make_loss(name)
    whole = padded_gradient(loss, [rows], 0, 0.0)
    assert torch.isfinite(whole).all()
    parts = cut(rows, cut_seed)
    assert close(padded_gradient(loss, parts, extra, garbage), whole)
    assert close(padded_gradient(loss, [[row] for row in rows], 0, garbage), whole)
    ranks = [padded_gradient(loss, parts[r::2], extra, garbage) for r in (0, 1) if parts[r::2]]
    assert close(torch.stack(ranks).sum(dim=0), whole)
    assert close(packed_gradient(loss, parts), whole)


def test_the_batches_above_do_teach_and_do_clip() -> None:
    """The property would hold of nothing but zeros: most of its batches have a gradient, and
    tokens on both sides of the bounds."""
    taught = capped = free = 0
    for seed in range(40):
        rows = batch_of(seed, 3, "all", Rules()).rows
        if not rows:
            continue
        taught += bool(padded_gradient(make_loss("dapo"), [rows], 0, 0.0).abs().max() > 1e-6)
        ids, logp_gen, mask, advantage, _ = rows_as_tensors(rows, 0, 0.0)
        parameters = torch.linspace(-1, 1, WIDTH * VOCABULARY, dtype=torch.float64)
        logp = model(parameters.reshape(WIDTH, VOCABULARY), ids)
        terms = make_loss("dapo")(logp, logp_gen, advantage, mask)
        capped += int(terms.capped_BT.sum())
        free += int((mask & ~terms.capped_BT).sum())
    assert taught >= 30
    assert min(capped, free) >= 50


def test_the_same_step_by_hand_in_one_and_in_two_parts() -> None:
    # Four tokens of loss 1 in one completion, one token of loss 5 in another, token mean 9/5.
    def loss_of(parts: list[tuple[list[float], float]]) -> float:
        total = 0.0
        for logp, weight in parts:
            log_ratio = torch.tensor([logp], dtype=torch.float64)
            terms = make_loss("cispo")(
                log_ratio, log_ratio, torch.tensor([1.0]), torch.ones(1, len(logp))
            )
            total += float(weighted_loss(terms, torch.tensor([weight])))
        return total

    four, one = ([-1.0] * 4, 1 / 5), ([-5.0], 1 / 5)
    assert loss_of([four, one]) == pytest.approx(1.8)
    assert loss_of([one, four]) == pytest.approx(1.8)


@pytest.mark.parametrize("name", ["cispo", "dapo", "grpo", "gspo"])
@pytest.mark.parametrize("aggregation", ["prompt", "sample", "token"])
def test_a_step_raises_the_log_prob_of_what_was_rewarded(name: LossType, aggregation: Any) -> None:
    """Gradient direction: on-policy, one small step of descent on a frozen batch."""
    rewarded, other = (1, 2, 3, 4), (4, 3, 6, 5, 2)
    parameters = torch.linspace(-1, 1, WIDTH * VOCABULARY, dtype=torch.float64)
    parameters = parameters.reshape(WIDTH, VOCABULARY).requires_grad_()

    def scored(sample: int, ids: tuple[int, ...], reward: float) -> Scored:
        logp = tuple(model(parameters, torch.tensor(ids)).tolist())
        completion = Completion(
            group=0,
            sample=sample,
            token_ids=ids,
            logp_gen=logp,
            mask=(1,) * len(ids),
            segments=((0, 0),),
            finish="stop",
            interrupted=False,
            entropy=1.0,
        )
        return Scored(completion=completion, reward=reward, outcome="wrong")

    completions = (scored(0, rewarded, 1.0), scored(1, other, -1.0))
    group = Group(index=0, prompt=PROMPT, admitted_version=0, completions=completions)
    rows = assemble([group], Rules(aggregation=aggregation)).rows
    gradient = padded_gradient(make_loss(name), [rows], 0, 0.0)
    after = parameters.detach() - 0.05 * gradient
    for ids, sign in ((rewarded, 1), (other, -1)):
        change = model(after, torch.tensor(ids)) - model(parameters, torch.tensor(ids))
        assert sign * float(change.detach().sum()) > 0
