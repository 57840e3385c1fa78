"""The chunked head with a backward of its own against autograd through the whole head."""

import pytest
import torch

from scalerl.model.logprobs import (
    Head,
    chosen_logprobs,
    entropy_of,
    log_softmax_head,
    token_logprobs,
)
from scalerl.model.tiny import tiny_model

N, D, V = 13, 6, 11


def operands(dtype=torch.float32, bias=True, seed=0):
    rng = torch.Generator().manual_seed(seed)
    hidden, weight, offset = (
        torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((N, D), (V, D), (V,))
    )
    ids = torch.randint(V, (N,), generator=rng)
    return hidden, weight, offset if bias else None, ids


def plain(hidden, head, ids, **how):
    logp = log_softmax_head(hidden, head, **how)
    return logp.gather(-1, ids[:, None]).squeeze(-1), entropy_of(logp.detach())


def gradients(function, dtype, bias, softcap, scale, **how):
    hidden, weight, offset, ids = operands(dtype, bias)
    head = Head(weight_Vd=weight, bias_V=offset, softcap=softcap, scale=scale)
    logp, entropy = function(hidden, ids, head, **how)
    assert not entropy.requires_grad
    (logp * torch.linspace(-1, 2, N)).sum().backward()
    return [logp, entropy, hidden.grad, weight.grad, *([offset.grad] if bias else [])]


def by_plain(hidden, ids, head, **how):
    how.pop("chunk")
    return plain(hidden, head, ids, **how)


@pytest.mark.parametrize("chunk", [1, 4, 5, 13, 100])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("softcap", "scale", "temperature"), [(None, 1.0, 1.0), (None, 0.25, 0.7), (1.5, 2.0, 1.3)]
)
def test_values_are_equal_and_gradients_to_1e_6(chunk, bias, softcap, scale, temperature):
    how = {"softcap": softcap, "scale": scale, "temperature": temperature, "chunk": chunk}
    ours = gradients(chosen_logprobs, torch.float32, bias, **how)
    theirs = gradients(by_plain, torch.float32, bias, **how)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chunk", [4, 100])
@pytest.mark.parametrize(("softcap", "bias"), [(None, True), (2.0, False)])
def test_gradients_are_the_finite_differences(chunk, softcap, bias):
    hidden, weight, offset, ids = operands(torch.float64, bias)

    def function(hidden, weight, *rest):
        head = Head(weight_Vd=weight, bias_V=rest[0] if rest else None, softcap=softcap, scale=0.5)
        return chosen_logprobs(hidden, ids, head, temperature=0.8, chunk=chunk)[0]

    inputs = [hidden, weight, *([offset] if bias else [])]
    assert torch.autograd.gradcheck(function, inputs, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("fp32_head", [True, False])
@pytest.mark.parametrize("chunk", [4, 100])
def test_bfloat16_operands_get_gradients_of_their_type(fp32_head, chunk):
    how = {"softcap": None, "scale": 1.0, "fp32_head": fp32_head, "chunk": chunk}
    ours = gradients(chosen_logprobs, torch.bfloat16, True, **how)
    theirs = gradients(by_plain, torch.bfloat16, True, **how)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    exact = gradients(by_plain, torch.float64, True, **how)
    for a, b in zip(ours, exact, strict=True):
        assert (a.double() - b).abs().max() < 0.15


def test_values_and_gradients_of_frozen_operands():
    hidden, weight, _, ids = operands(bias=False)
    for thaw_hidden, thaw_weight in ((True, False), (False, True)):
        hidden.grad = weight.grad = None
        hidden.requires_grad_(thaw_hidden)
        weight.requires_grad_(thaw_weight)
        head = Head(weight_Vd=weight, bias_V=None, softcap=None, scale=1.0)
        chosen_logprobs(hidden, ids, head, chunk=4)[0].sum().backward()
        assert (hidden.grad is not None) == thaw_hidden
        assert (weight.grad is not None) == thaw_weight


def test_nothing_chosen_gives_zero_gradients():
    hidden, weight, _, ids = operands(bias=False)
    head = Head(weight_Vd=weight, bias_V=None, softcap=None, scale=1.0)
    logp, _ = chosen_logprobs(hidden[:0], ids[:0], head)
    logp.sum().backward()
    assert logp.shape == (0,)
    assert not weight.grad.any()
    assert not hidden.grad.any()


@pytest.mark.parametrize("chunk", [4, None])
def test_a_tied_embedding_gets_both_gradients(chunk):
    ids = torch.randint(2, 32, (3, 9), generator=torch.Generator().manual_seed(2))
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[:, 4:] = True
    found = []
    for ours in (True, False):
        model = tiny_model(seed=0)
        model.lm_head.weight = model.model.embed_tokens.weight
        if ours:
            token_logprobs(model, ids, scored, chunk=chunk)[0].sum().backward()
        else:
            logp = torch.log_softmax(model(ids).logits, -1)[:, :-1]
            chosen = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
            chosen[scored[:, 1:]].sum().backward()
        found.append(model.model.embed_tokens.weight.grad)
    assert (found[0] - found[1]).abs().max() <= 1e-6 * found[1].abs().max()
