"""Do trainer and generator route alike, and what does it cost where they do not?

Random mixtures of experts sample completions in the engine, one at a time; the trainer's forward
scores the same tokens at the same weights. Per precision: share of (token, layer) pairs sent to
another set of experts, and |log π_train − log π_gen| where any layer differed and where none did.

    python benchmarks/routing_mismatch.py        prints one JSON object
"""

import json

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams
from scalerl.messages import Request
from scalerl.model.logprobs import token_logprobs
from scalerl.model.routing import routers_of, watched

COMPLETIONS, PROMPT, NEW = 48, 6, 42
SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 2}


def make_model(dtype: torch.dtype):
    config = Qwen3MoeConfig(
        vocab_size=512,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        moe_intermediate_size=64,
        **SIZES,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return model.to(dtype).eval()


def measure(dtype: torch.dtype) -> dict[str, float]:
    model = make_model(dtype)
    routers = routers_of(model)
    rng = torch.Generator().manual_seed(1)
    other, gaps = [], []
    for number in range(COMPLETIONS):
        prompt = tuple(torch.randint(2, 512, (PROMPT,), generator=rng).tolist())
        engine = Engine(
            model,
            slots=1,
            max_length=PROMPT + NEW,
            params=SamplingParams(max_new_tokens=NEW),
            interruption=None,
            end_ids=[],
        )
        engine.submit([Request(group=0, sample=0, prompt_ids=prompt, seed=number)])
        done = []
        with watched(routers) as generator:
            while engine.has_work:
                done += engine.step()
        (completion,) = done
        ids = torch.tensor([prompt + completion.token_ids])
        scored = torch.zeros_like(ids, dtype=torch.bool)
        scored[:, PROMPT:] = True
        with watched(routers) as trainer, torch.no_grad():
            logp, _ = token_logprobs(model, ids, scored)
        gaps.append((logp[0, PROMPT:] - torch.tensor(completion.logp_gen)).abs())
        # The engine's first step has the last prompt token before the body of the prompt.
        layers = []
        for name in routers:
            first, *rest = generator[name]
            decoded = torch.cat([first[:1], *rest])  # inputs at positions PROMPT-1 …
            layers.append((decoded != trainer[name][0][PROMPT - 1 : -1]).any(-1))
        other.append(torch.stack(layers, dim=-1))
    other_NL, gap_N = torch.cat(other), torch.cat(gaps)
    apart = other_NL.any(-1)
    return {
        "tokens": len(gap_N),
        "token_layers_routed_otherwise": float(other_NL.double().mean()),
        "tokens_with_any_layer_otherwise": float(apart.double().mean()),
        "mismatch_mean_same_routing": mean(gap_N[~apart]),
        "mismatch_mean_other_routing": mean(gap_N[apart]),
        "mismatch_max_same_routing": float(gap_N[~apart].max()) if (~apart).any() else None,
        "mismatch_max_other_routing": float(gap_N[apart].max()) if apart.any() else None,
    }


def mean(x: torch.Tensor) -> float | None:
    return float(x.mean()) if len(x) else None


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        json.dumps(
            {
                "model": SIZES,
                "float32": measure(torch.float32),
                "bfloat16": measure(torch.bfloat16),
            },
            indent=2,
        )
    )
