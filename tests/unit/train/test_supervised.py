"""The supervised stage: packing and passes change nothing; order, budget and schedule by hand."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from train_rows import SETTINGS

from scalerl.algorithm.losses import make_loss
from scalerl.errors import RunError
from scalerl.model.tiny import tiny_model
from scalerl.train.batches import PassLimits
from scalerl.train.sft import Trace
from scalerl.train.supervised import (
    Plan,
    SupervisedTrainer,
    length_of,
    packed,
    share_of_lr,
    steps_of,
)

TRACES = [
    Trace(
        prompt_ids=tuple(2 + (n * 7 + i) % 30 for i in range(1 + n % 5)),
        answer_ids=(*(2 + (n * 11 + i * 5) % 30 for i in range(1 + n % 9)), 1),
    )
    for n in range(24)
]


def plan(**changes) -> Plan:
    base = {
        "steps": 6,
        "tokens_per_step": 60,
        "row_tokens": 40,
        "packing": True,
        "warmup_steps": 2,
        "schedule": "cosine",
        "seed": 0,
    }
    return Plan(**base | changes)


def trainer_of(limits=None, model=None, **changes) -> SupervisedTrainer:
    trainer = SupervisedTrainer(
        model or tiny_model(seed=0),
        make_loss("cispo", ratio_max=5.0),
        SETTINGS,
        temperature=1.0,
        fp32_head=True,
        limits=limits or PassLimits(rows=4, tokens=80),
    )
    trainer.plan = plan(**changes)
    return trainer


def gradient(traces, limits, **changes):
    trainer = trainer_of(limits, **changes)
    for rows in trainer.passes(traces):
        (-trainer._logp(rows)).backward()
    return {name: p.grad for name, p in trainer.model.named_parameters()}


WHOLE = gradient(TRACES, PassLimits(rows=100), packing=False)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 9), tokens=st.integers(5, 200), row_tokens=st.integers(1, 120))
def test_neither_packing_nor_passes_change_the_gradient(rows, tokens, row_tokens):
    found = gradient(TRACES, PassLimits(rows=rows, tokens=tokens), row_tokens=row_tokens)
    for name, whole in WHOLE.items():
        assert (found[name] - whole).norm() <= 2e-6 * whole.norm(), name


@given(lengths=st.lists(st.integers(2, 30), max_size=30), room=st.integers(1, 60))
def test_packing_keeps_every_trace_once_and_fills_no_row_beyond_its_length(lengths, room):
    traces = [Trace(prompt_ids=(i,), answer_ids=(1,) * (n - 1)) for i, n in enumerate(lengths)]
    rows = packed(traces, room)
    assert sorted(t.prompt_ids for row in rows for t in row) == [(i,) for i in range(len(lengths))]
    for row in rows:
        assert len(row) == 1 or sum(map(length_of, row)) <= room
    if rows and max(lengths) <= room:  # first fit: at most one row is half empty
        assert sum(2 * sum(map(length_of, row)) <= room for row in rows) <= 1


def test_loss_is_the_mean_over_answer_tokens_only():
    model = tiny_model(seed=0)
    total = count = 0
    for trace in TRACES:
        logp = torch.log_softmax(
            model(torch.tensor([trace.prompt_ids + trace.answer_ids])).logits[0], -1
        )
        for i, token in enumerate(trace.answer_ids):
            total -= logp[len(trace.prompt_ids) - 1 + i, token].item()
            count += 1
    trainer = trainer_of()
    assert trainer.evaluate(TRACES) == pytest.approx(total / count, rel=1e-5)
    assert trainer.learn(TRACES, 1)[0] == pytest.approx(total / count, rel=1e-5)


def test_steps_take_tokens_up_to_the_budget_and_every_trace_before_any_again():
    lengths = [length_of(t) for t in TRACES]
    how = plan(steps=30)
    steps = list(steps_of(lengths, how))
    assert len(steps) == 30
    order = [i for step in steps for i in step]
    for start in range(0, len(order) - 23, 24):
        assert sorted(order[start : start + 24]) == list(range(24))
    for one, following in itertools.pairwise(steps):
        tokens = sum(lengths[i] for i in one)
        assert tokens <= 60 < tokens + lengths[following[0]]
    assert list(steps_of(lengths, how, skip=11)) == steps[11:]
    assert [len(s) for s in steps_of(lengths, plan(tokens_per_step=1))] == [1] * 6


def test_schedules_by_hand():
    shares = {
        kind: [share_of_lr(s, plan(schedule=kind)) for s in range(1, 7)]
        for kind in ("constant", "linear", "cosine")
    }
    assert shares["constant"] == [0.5, 1, 1, 1, 1, 1]
    assert shares["linear"] == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25])
    half = [(1 + math.cos(math.pi * x)) / 2 for x in (0, 0.25, 0.5, 0.75)]
    assert shares["cosine"] == pytest.approx([0.5, 1, *half])


def test_it_learns_with_bfloat16_weights_and_fp32_masters():
    model = tiny_model(seed=0).to(torch.bfloat16)
    trainer = trainer_of(model=model, steps=40, schedule="constant")
    before = trainer.evaluate(TRACES)
    for step in range(1, 41):
        trainer.learn(TRACES, step)
    assert trainer.evaluate(TRACES) < 0.7 * before
    assert next(model.parameters()).dtype == torch.bfloat16


def test_a_loss_that_is_not_finite_ends_the_run():
    trainer = trainer_of()
    with torch.no_grad():
        trainer.model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(RunError, match="supervised step 3"):
        trainer.learn(TRACES, 3)
