"""What the FP32 head buys: |log π_train − log π_gen| at equal weights, 32k-entry vocabulary.

Two sides compute the same tokens with the same bfloat16 weights, but as two engines do: the trainer
over whole padded rows, the generator token by token over its KV cache. Three precisions: everything
in bfloat16, an FP32 head on both sides over bfloat16 bodies, everything in FP32; and the head in
FP32 on one side only, which is what a half-done fix gives.

    python benchmarks/head_precision.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from scalerl.generate.engine import Engine
from scalerl.generate.sampling import SamplingParams
from scalerl.messages import Completion, Request
from scalerl.model.logprobs import token_logprobs
from scalerl.model.tiny import tiny_model

VOCABULARY, HIDDEN, TOKENS, REQUESTS, SEEDS = 32_768, 64, 48, 24, 3
HEAD_SCALE = 24.0  # standard deviation of the logits: about 4, largest about 20


def make_model(dtype: torch.dtype, seed: int = 0):
    """The embedded architecture with a large vocabulary and logits as large as a trained LLM's."""
    model = tiny_model(seed=seed, vocabulary=VOCABULARY, hidden=HIDDEN)
    with torch.no_grad():
        model.lm_head.weight.mul_(HEAD_SCALE)
    return model.to(dtype)


def sample(model, *, fp32_head: bool) -> list[Completion]:
    engine = Engine(
        model,
        slots=16,
        max_length=TOKENS + 8,
        params=SamplingParams(max_new_tokens=TOKENS),
        interruption=None,
        end_ids=(1,),
        fp32_head=fp32_head,
    )
    engine.submit(
        [
            Request(group=i, sample=0, prompt_ids=(5 + i, 9, 11 + i % 3), seed=1000 + i)
            for i in range(REQUESTS)
        ]
    )
    done: list[Completion] = []
    while engine.has_work:
        done += engine.step()
    return done


def mismatch(dtype: torch.dtype, *, head_train: bool, head_gen: bool) -> dict[str, float]:
    """Mean and largest |log π_train − log π_gen| over all sampled tokens of all seeds, in nats."""
    gap = torch.cat([gaps(make_model(dtype, s), head_train, head_gen) for s in range(SEEDS)])
    return {"mean": float(gap.mean()), "max": float(gap.max()), "tokens": gap.numel()}


def gaps(model, head_train: bool, head_gen: bool) -> torch.Tensor:
    """|log π_train − log π_gen| of every sampled token of one model."""
    found = []
    for completion in sample(model, fp32_head=head_gen):
        i = completion.group
        prompt = (5 + i, 9, 11 + i % 3)
        ids = torch.tensor([[*prompt, *completion.token_ids]])
        scored = torch.zeros_like(ids, dtype=torch.bool)
        scored[:, len(prompt) :] = True
        with torch.no_grad():
            logp, _ = token_logprobs(model, ids, scored, fp32_head=head_train)
        found.append((logp[scored] - torch.tensor(completion.logp_gen)).abs())
    return torch.cat(found)


def measure() -> dict[str, object]:
    low, full = torch.bfloat16, torch.float32
    rows = {
        "bf16 head, both sides": mismatch(low, head_train=False, head_gen=False),
        "fp32 head, both sides": mismatch(low, head_train=True, head_gen=True),
        "fp32 head, trainer only": mismatch(low, head_train=True, head_gen=False),
        "fp32 throughout": mismatch(full, head_train=True, head_gen=True),
    }
    model = make_model(full)
    with torch.no_grad():
        logits = model(torch.randint(2, 500, (8, 32))).logits
    both, none = rows["fp32 head, both sides"]["mean"], rows["bf16 head, both sides"]["mean"]
    return {
        "vocabulary": VOCABULARY,
        "hidden": HIDDEN,
        "logits_std": float(logits.std()),
        "logits_max": float(logits.abs().max()),
        "mismatch_nats": rows,
        "factor_of_the_fp32_head": none / both,
        "factor_of_one_side_only": none / rows["fp32 head, trainer only"]["mean"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure()
    text = json.dumps(figures, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
