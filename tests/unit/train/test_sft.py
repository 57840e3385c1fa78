import pytest
import torch

from scalerl.errors import RunError
from scalerl.model.tiny import tiny_model
from scalerl.train.sft import SupervisedSettings, Trace, pad_traces, supervise
from scalerl.train.sft import _batches as batches
from scalerl.train.sft import _share as share

TRACES = [
    Trace(prompt_ids=tuple(range(4, 5 + n % 4)), answer_ids=(6 + n % 9, 7, 8 + n % 5, 1))
    for n in range(20)
]
SETTINGS = SupervisedSettings(steps=12, rows=6, lr=4e-3, warmup_steps=3)


def run(seed=0, settings=SETTINGS, traces=TRACES):
    model = tiny_model(seed=0)
    losses = []
    supervise(model, traces, settings, seed=seed, on_step=lambda *a: losses.append(a))
    return model, losses


def test_the_same_seed_gives_the_same_bits_whatever_the_global_generator():
    torch.manual_seed(1)
    a, losses_a = run()
    torch.manual_seed(2)
    b, losses_b = run()
    _, losses_c = run(seed=1)
    assert losses_a == losses_b != losses_c
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(x, y)
    assert [step for step, _ in losses_a] == list(range(1, 13))


def test_it_learns_and_leaves_the_mode_as_it_was():
    settings = SupervisedSettings(steps=60, rows=10, lr=4e-3, warmup_steps=3)
    model, losses = run(settings=settings)
    assert losses[0][1] > 3
    assert losses[-1][1] < 1
    assert model.training


def test_loss_is_the_mean_over_answer_tokens_only():
    model = tiny_model(seed=0)
    traces = [
        Trace(prompt_ids=(4, 5, 6), answer_ids=(7, 1)),
        Trace(prompt_ids=(9,), answer_ids=(5, 6, 7, 1)),
    ]
    total = 0.0
    for t in traces:
        logp = torch.log_softmax(model(torch.tensor([t.prompt_ids + t.answer_ids])).logits[0], -1)
        for i, token in enumerate(t.answer_ids):
            total -= logp[len(t.prompt_ids) - 1 + i, token].item()
    settings = SupervisedSettings(steps=1, rows=2, lr=1e-3, warmup_steps=0)
    _, losses = run(settings=settings, traces=traces)
    assert losses[0][1] == pytest.approx(total / 6, rel=1e-5)


def test_padding_on_the_right_and_marks_on_the_answers():
    ids, scored = pad_traces(
        [
            Trace(prompt_ids=(4, 5), answer_ids=(1,)),
            Trace(prompt_ids=(6,), answer_ids=(7, 8, 1)),
        ],
        device=torch.device("cpu"),
    )
    assert ids.tolist() == [[4, 5, 1, 0], [6, 7, 8, 1]]
    assert scored.int().tolist() == [[0, 0, 1, 0], [0, 1, 1, 1]]


def test_learning_rate_warms_up_and_decays_to_nearly_nothing():
    shares = [share(step, SETTINGS) for step in range(1, 13)]
    assert shares == pytest.approx([1 / 3, 2 / 3, 1, 1, *[i / 9 for i in range(8, 0, -1)]])


def test_every_trace_is_used_once_before_any_is_used_again():
    order = batches(7, 3, seed=0)
    drawn = [i for _ in range(7) for i in next(order)]
    for epoch in range(3):
        assert sorted(drawn[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert drawn[:7] != drawn[7:14]


def test_an_interruption_passes_through():
    def stop(step, loss):
        if step == 3:
            raise KeyboardInterrupt

    model = tiny_model(seed=0)
    with pytest.raises(KeyboardInterrupt):
        supervise(model, TRACES, SETTINGS, seed=0, on_step=stop)


def test_a_loss_that_is_not_finite_ends_the_run():
    model = tiny_model(seed=0)
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(RunError, match="supervised step 1"):
        supervise(model, TRACES, SETTINGS, seed=0)


def test_empty_sides_are_refused():
    for traces in ([], [Trace(prompt_ids=(), answer_ids=(1,))]):
        with pytest.raises(ValueError, match="each with a prompt and an answer"):
            supervise(tiny_model(seed=0), traces, SETTINGS, seed=0)
