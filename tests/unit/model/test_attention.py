import pytest
import torch

from scalerl.model.attention import TRAINER, causal, padded, trainer_attention
from scalerl.model.tiny import tiny_model


def plainly(q, k, v, scale, window, cap):
    """Query by query, key by key, in float64."""
    out = torch.zeros(q.shape[0], q.shape[2], q.shape[1], q.shape[3], dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                first = 0 if window is None else max(0, t - window + 1)
                keys = k[b, h // group, first : t + 1].double()
                scores = keys @ q[b, h, t].double() * scale
                if cap is not None:
                    scores = cap * torch.tanh(scores / cap)
                weights = torch.softmax(scores, 0)
                out[b, t, h] = weights @ v[b, h // group, first : t + 1].double()
    return out


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize(("heads", "kv_heads", "length"), [(4, 1, 5), (4, 2, 18), (2, 2, 1)])
def test_causal_attention_is_the_sum_written_out(window, cap, heads, kv_heads, length):
    rng = torch.Generator().manual_seed(0)
    q = torch.randn(2, heads, length, 8, generator=rng)
    k, v = (torch.randn(2, kv_heads, length, 8, generator=rng) for _ in range(2))
    out = causal(q, k, v, 0.3, window, cap)
    assert out.shape == (2, length, heads, 8)
    expected = plainly(q, k, v, 0.3, window, cap)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-5)


def test_the_trainers_attention_and_its_gradient_are_the_models_own_to_rounding():
    ids = torch.randint(2, 32, (3, 13), generator=torch.Generator().manual_seed(0))
    seen = []
    for ours in (True, False):
        model = tiny_model(seed=0, kv_heads=2)
        if ours:
            with trainer_attention(model, 13):
                assert model.config._attn_implementation == TRAINER
                logits = model(ids).logits
            assert model.config._attn_implementation == "sdpa"
        else:
            logits = model(ids).logits
        torch.log_softmax(logits, -1)[..., 5].sum().backward()
        seen.append([logits, *(p.grad for p in model.parameters())])
    for a, b in zip(*seen, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_long_rows_other_types_and_dropout_keep_the_models_own():
    dropout = tiny_model(seed=0)
    dropout.config.attention_dropout = 0.1
    hybrid = tiny_model(seed=0)
    hybrid.config.layer_types = ["full_attention", "linear_attention"]
    for model, tokens in (
        (tiny_model(seed=0), 513),
        (tiny_model(seed=0).to(torch.bfloat16), 9),
        (dropout, 9),
        (hybrid, 9),
    ):
        with trainer_attention(model, tokens):
            assert model.config._attn_implementation == "sdpa"


def test_padded():
    assert [padded(n, 16) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
