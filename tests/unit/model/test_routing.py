"""Routing of a mixture of experts, counted by hand."""

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from scalerl.model.routing import disagreement, expert_counts, routers_of, watched
from scalerl.model.tiny import tiny_model


def experts_model():
    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        moe_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config)


def test_counts_are_those_of_a_router_that_is_told_where_to_send():
    model = experts_model()
    routers = routers_of(model)
    assert list(routers) == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]
    with torch.no_grad():
        for router in routers.values():
            router.weight.zero_()
            router.weight[3] = 100.0  # either expert 3 or, where its logit is negative, others
    kept = torch.tensor([True, True, False, True])
    with watched(routers) as seen, torch.no_grad():
        model(torch.tensor([[3, 4, 5, 6]]))
        model(torch.tensor([[7, 7, 7, 7]]))  # a recomputation, not counted
    counts = expert_counts(routers, seen, kept)
    assert counts.shape == (2, 4)
    assert counts.sum(dim=1).tolist() == [6, 6]  # tokens kept × experts a token: none dropped
    first = seen["model.layers.0.mlp.gate"][0][kept]
    assert counts[0].tolist() == [int((first == e).sum()) for e in range(4)]


def test_a_dense_model_has_no_routers_and_hooks_go():
    assert routers_of(tiny_model(seed=0)) == {}
    model = experts_model()
    routers = routers_of(model)
    with watched(routers) as seen:
        pass
    model(torch.tensor([[3, 4]]))
    assert not any(seen.values())
    assert expert_counts({}, {}, torch.tensor([True])).shape == (0, 0)


def test_disagreement_is_over_sets_of_experts():
    one = torch.tensor([[0, 1], [1, 2], [0, 3], [2, 3]])
    two = torch.tensor([[0, 1], [1, 3], [0, 3], [0, 1]])
    assert disagreement(one, two) == 0.5
