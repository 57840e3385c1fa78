"""Other architectures go through the same engine: norms, rotary, experts, windows, caps."""

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from scalerl.errors import InputError
from scalerl.generate.attention import check_supported
from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams
from scalerl.messages import Request
from scalerl.model.logprobs import token_logprobs

SIZES = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES = {
    "Llama": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": 5, "head_dim": 8},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Gemma2": {
        "sliding_window": 5,
        "head_dim": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 8,
    },
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "Gemma": {"head_dim": 8, "num_key_value_heads": 1},
    "Llama4Text": {
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "head_dim": 8,
        "intermediate_size_mlp": 48,
        "moe_layers": [0, 1],
    },
    "Qwen3Moe": EXPERTS | {"head_dim": 8},
}


def make_model(family: str) -> PreTrainedModel:
    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family])
    attention = "eager" if family == "Gemma2" else "sdpa"  # SDPA has no softcap
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(0.0, 0.3)
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_family_equals_generate_and_the_trainers_logprobs(family):
    model = make_model(family)
    requests = [
        Request(group=g, sample=s, prompt_ids=tuple(range(2 + g, 4 + 3 * g)), seed=10 * g + s)
        for g in range(6)
        for s in range(2)
    ]
    for greedy in (True, False):
        engine = Engine(
            model,
            slots=5,
            max_length=40,
            params=SamplingParams(max_new_tokens=12, greedy=greedy),
            interruption=None,
            end_ids=[1],
        )
        engine.submit(requests)
        done = []
        while engine.has_work:
            done += engine.step()
        for c in done:
            prompt = requests[2 * c.group].prompt_ids
            start = len(prompt)
            ids = torch.tensor([prompt + c.token_ids])
            scored = torch.zeros_like(ids, dtype=torch.bool)
            scored[:, start:] = True
            with torch.no_grad():
                logp, _ = token_logprobs(model, ids, scored)
            assert (logp[0, start:] - torch.tensor(c.logp_gen)).abs().max() <= 1e-5
            if greedy:
                out = model.generate(  # type: ignore[operator]
                    ids[:, :start],
                    attention_mask=torch.ones_like(ids[:, :start]),
                    do_sample=False,
                    max_new_tokens=12,
                )
                assert list(c.token_ids) == out[0, start:].tolist()


def test_what_would_go_wrong_silently_is_refused():
    model = make_model("Llama")
    check_supported(model, 64)
    original = dict(model.config.rope_parameters)
    model.config.rope_parameters = original | {"rope_type": "dynamic", "factor": 2.0}
    check_supported(model, 64)
    with pytest.raises(InputError, match="dynamic rotary positions"):
        check_supported(model, 65)
    model.config.rope_parameters = original
    model.config.layer_types = ["full_attention", "chunked_attention"]
    model.config.attention_chunk_size = 32
    check_supported(model, 32)
    with pytest.raises(InputError, match="no support for chunked_attention at 33 positions"):
        check_supported(model, 33)
    model.config.layer_types = ["linear_attention"]
    with pytest.raises(InputError, match="no support for linear_attention"):
        check_supported(model, 10)
    model._supports_attention_backend = False
    with pytest.raises(InputError, match="cannot be replaced"):
        check_supported(model, 10)


def test_tied_embeddings_stay_tied_when_weights_arrive_with_or_without_the_alias():
    model, other = make_model("Llama"), make_model("Llama")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.01)
    engine = Engine(
        model,
        slots=2,
        max_length=20,
        params=SamplingParams(max_new_tokens=6),
        interruption=None,
        end_ids=[1],
    )
    for version, duplicates in ((1, True), (2, False)):
        engine.load_weights(dict(other.named_parameters(remove_duplicate=duplicates)), version)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
