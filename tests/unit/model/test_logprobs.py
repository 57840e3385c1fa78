import math

import pytest
import torch

from scalerl.model.logprobs import entropy_of, head_of, log_softmax_head, token_logprobs
from scalerl.model.tiny import tiny_model


def test_head_on_hand_computed_numbers():
    model = tiny_model(seed=0, vocabulary=3, hidden=4)
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]))
    hidden = torch.tensor([[math.log(8.0), math.log(4.0), math.log(4.0), 9.0]])
    plain = log_softmax_head(hidden, head_of(model))
    torch.testing.assert_close(plain.exp(), torch.tensor([[0.5, 0.25, 0.25]]))
    torch.testing.assert_close(entropy_of(plain), torch.tensor([1.5 * math.log(2)]))
    # logits / 2: weights √8, 2, 2
    tempered = log_softmax_head(hidden, head_of(model), temperature=2.0)
    total = math.sqrt(8) + 4
    torch.testing.assert_close(
        tempered.exp(), torch.tensor([[math.sqrt(8) / total, 2 / total, 2 / total]])
    )


def test_entropy_counts_impossible_tokens_as_zero():
    logp = torch.log_softmax(torch.tensor([[0.0, 0.0, -torch.inf]]), dim=-1)
    torch.testing.assert_close(entropy_of(logp), torch.tensor([math.log(2)]))


def test_head_follows_the_weights_and_stays_tied():
    model = tiny_model(seed=0)
    head = head_of(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    out = log_softmax_head(torch.randn(2, 64), head)
    torch.testing.assert_close(out, torch.full((2, 32), -math.log(32)))
    assert head.weight_Vd is model.lm_head.weight


def test_fp32_head_on_bfloat16_weights_is_the_product_of_the_rounded_numbers_in_float32():
    model = tiny_model(seed=0).to(torch.bfloat16)
    hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = torch.log_softmax(hidden.double() @ model.lm_head.weight.double().T, -1)
    with_fp32 = log_softmax_head(hidden, head_of(model), fp32_head=True)
    without = log_softmax_head(hidden, head_of(model), fp32_head=False)
    assert with_fp32.dtype == without.dtype == torch.float32
    assert (with_fp32 - exact).abs().max() < 1e-6 < (without - exact).abs().max()


def test_softcap_and_scale_are_those_of_the_config():
    model = tiny_model(seed=0)
    model.config.final_logit_softcapping = 2.0
    model.config.logits_scaling = 4.0
    hidden = torch.randn(3, 64) * 50
    logits = 2 * torch.tanh(hidden @ model.lm_head.weight.T / 4 / 2)
    torch.testing.assert_close(
        log_softmax_head(hidden, head_of(model)), torch.log_softmax(logits, -1)
    )


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_token_logprobs_equal_the_models_own_logits_and_ignore_padding(chunk):
    model = tiny_model(seed=0)
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 32, (3, 11), generator=rng)
    lengths = [11, 6, 9]
    scored = torch.zeros(3, 11, dtype=torch.bool)
    for row, length in enumerate(lengths):
        scored[row, 3:length] = True
        ids[row, length:] = 0
    logp, entropy = token_logprobs(model, ids, scored, temperature=0.7, chunk=chunk)
    for row, length in enumerate(lengths):
        expected = torch.log_softmax(model(ids[row : row + 1, :length]).logits[0] / 0.7, dim=-1)
        for t in range(3, length):
            torch.testing.assert_close(logp[row, t], expected[t - 1, ids[row, t]])
            want = torch.distributions.Categorical(logits=expected[t - 1]).entropy()
            torch.testing.assert_close(entropy[row, t], want)
    assert not logp[~scored].any()
    assert not entropy[~scored].any()


def test_gradient_does_not_depend_on_chunks_and_entropy_has_none():
    ids = torch.randint(2, 32, (2, 9), generator=torch.Generator().manual_seed(2))
    scored = torch.zeros_like(ids, dtype=torch.bool)
    scored[:, 4:] = True
    gradients = []
    for chunk in (3, 4096):
        model = tiny_model(seed=0)
        logp, entropy = token_logprobs(model, ids, scored, chunk=chunk)
        assert not entropy.requires_grad
        logp.sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_token_logprobs_refuse_a_first_token_and_other_shapes():
    model = tiny_model(seed=0)
    ids = torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match="first token"):
        token_logprobs(model, ids, torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="differ"):
        token_logprobs(model, ids, torch.zeros(1, 5, dtype=torch.bool))


def test_nothing_to_score_gives_zeros():
    ids = torch.zeros(1, 4, dtype=torch.int64)
    logp, entropy = token_logprobs(tiny_model(seed=0), ids, torch.zeros(1, 4, dtype=torch.bool))
    assert not logp.any()
    assert not entropy.any()


def test_the_head_gives_a_row_the_same_bits_alone_and_in_company():
    head = head_of(tiny_model(seed=0))
    hidden = torch.randn(9, 64, generator=torch.Generator().manual_seed(0))
    together = log_softmax_head(hidden, head)
    for rows in (1, 2, 3):
        torch.testing.assert_close(
            log_softmax_head(hidden[:rows], head), together[:rows], rtol=0, atol=1e-6
        )
    assert log_softmax_head(hidden[0], head).shape == (32,)
    assert log_softmax_head(hidden[:0], head).shape == (0, 32)
