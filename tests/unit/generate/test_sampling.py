import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from scalerl.generate.sampling import SamplingParams, draw, request_seed, uniforms

WORD = (1 << 64) - 1


def splitmix(x: int) -> int:
    """The finaliser in Python's integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 20))
def test_uniforms_are_the_hash_in_exact_integers(seed, index):
    golden = 0x9E3779B97F4A7C15
    state = splitmix((seed + golden) & WORD)
    expected = (splitmix((state + (index + 1) * golden) & WORD) >> 11) / 2**53
    got = uniforms(torch.tensor([seed]), torch.tensor([index]))
    assert got.dtype == torch.float64
    assert got.item() == expected


def test_uniforms_are_uniform_along_seeds_and_along_indices_and_not_correlated():
    base = torch.arange(20_000)
    along_seeds = uniforms(base, torch.zeros_like(base)).numpy()
    along_indices = uniforms(torch.full_like(base, 7), base).numpy()
    for u in (along_seeds, along_indices):
        assert kstest(u, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03
    assert abs(np.corrcoef(along_seeds, along_indices)[0, 1]) < 0.03


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_drawn_frequencies_are_the_softmax(temperature):
    logits = torch.tensor([2.0, 0.0, -1.0, 1.0, -torch.inf, 3.0, -4.0])
    logp = torch.log_softmax(logits / temperature, -1)
    n = 50_000
    seeds = torch.tensor([request_seed(11, "test", 0, "p", i) for i in range(n)])
    tokens = draw(logp.expand(n, -1), uniforms(seeds, torch.full((n,), 5)))
    counts = torch.bincount(tokens, minlength=7).numpy()
    assert counts[4] == 0
    keep = [0, 1, 2, 3, 5, 6]
    expected = logp.double().exp().numpy()[keep]
    assert chisquare(counts[keep], expected / expected.sum() * n).pvalue > 1e-3


def test_draw_on_hand_computed_intervals():
    logp = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).log().expand(6, -1)
    u = torch.tensor(
        [0.0, 0.2499999, 0.2500001, 0.7499999, 0.7500001, 1 - 2**-53], dtype=torch.float64
    )
    assert draw(logp, u).tolist() == [0, 0, 2, 2, 3, 3]


def test_request_seeds_are_stable_and_distinct_in_every_argument():
    assert request_seed(0, "rollout", 3, "abc", 5) == 7144855380702304962
    base = (0, "rollout", 3, "abc", 5)
    others = [(1, *base[1:]), (0, "evaluation", *base[2:]), (0, "rollout", 4, "abc", 5)]
    others += [(0, "rollout", 3, "abd", 5), (0, "rollout", 3, "abc", 6)]
    seeds = {request_seed(*args) for args in [base, *others]}  # type: ignore[arg-type]
    assert len(seeds) == 6
    assert all(0 <= s < 1 << 63 for s in seeds)


def test_sampling_params_are_checked():
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=0.0, max_new_tokens=1)
    with pytest.raises(ValueError, match="max_new_tokens"):
        SamplingParams(max_new_tokens=0)
