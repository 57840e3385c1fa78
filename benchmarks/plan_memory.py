"""The plan of `scalerl doctor --plan` against measured peaks of a trainer, at several sizes.

Each size trains two steps of two passes in a process of its own; measured is the peak resident
size above that before the model is made, with blocks above 1 MiB mapped one by one.

    python benchmarks/plan_memory.py        prints one JSON object
"""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

SIZES = {
    "6M": {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 768},
    "28M": {"hidden_size": 512, "num_hidden_layers": 8, "intermediate_size": 1536},
    "58M": {
        "hidden_size": 576,
        "num_hidden_layers": 10,
        "intermediate_size": 1536,
        "vocab_size": 32000,
    },
}
VARIANTS = {
    "plain": [],
    "bfloat16": ["--model.weights=bfloat16"],
    "checkpointed": ["--execution.activation_checkpointing=true"],
}
RUNS = [("6M", "plain"), ("28M", "plain"), ("58M", "plain"), ("28M", "checkpointed")]
ROWS, LENGTH = 4, 128


def settings(variant: str):
    from scalerl.config import load_config

    new = LENGTH - 20
    words = [f"--batch.rows_per_pass={ROWS}", f"--sampling.max_new_tokens={new}"]
    return load_config([], overrides=[*words, "--length.type=none", *VARIANTS[variant]])


def model_config(size: str):
    from transformers import LlamaConfig

    base = {"vocab_size": 8192, "num_attention_heads": 8, "num_key_value_heads": 4}
    return LlamaConfig(**base | {"max_position_embeddings": 512} | SIZES[size])


def measure(size: str, variant: str) -> dict[str, float]:
    import random

    import torch
    from transformers import AutoModelForCausalLM

    from scalerl.algorithm.effective import Row
    from scalerl.algorithm.losses import make_loss
    from scalerl.train.batches import PassLimits
    from scalerl.train.step import OptimizerSettings, Trainer

    torch.set_num_threads(1)
    config = settings(variant)
    torch.nn.Linear(8, 8)(torch.zeros(8, 8)).sum().backward()  # what the libraries allocate once
    before = resident()
    dtype = getattr(torch, config.model.weights)
    model = AutoModelForCausalLM.from_config(model_config(size), dtype=dtype)
    trainer = Trainer(
        model,
        make_loss("cispo", ratio_max=5.0),
        OptimizerSettings(
            lr=1e-4,
            warmup_steps=0,
            betas=(0.9, 0.95),
            eps=1e-8,
            weight_decay=0.0,
            clip_norm=1.0,
            skip_budget=0,
        ),
        temperature=1.0,
        fp32_head=True,
        limits=PassLimits(rows=ROWS),
        activation_checkpointing=config.execution.activation_checkpointing,
    )
    rng = random.Random(0)
    rows = [
        Row(
            group=i,
            sample=0,
            prompt_ids=tuple(rng.randrange(8000) for _ in range(20)),
            token_ids=tuple(rng.randrange(8000) for _ in range(LENGTH - 20)),
            logp_gen=(-9.0,) * (LENGTH - 20),
            mask=(1,) * (LENGTH - 20),
            segments=((0, 0),),
            advantage=1.0,
            weight=1e-4,
        )
        for i in range(2 * ROWS)
    ]
    for version in range(2):
        trainer.step(rows, version)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"measured_mib": (peak - before) / 2**20}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def planned(size: str, variant: str) -> dict[str, float]:
    from scalerl.experiments.plan import make_plan

    plan = make_plan(settings(variant), model_config(size))
    assert plan.tokens_per_pass == ROWS * LENGTH, plan.tokens_per_pass
    parts = {part: round(size / 2**20, 1) for part, size in plan.trainer.items()}
    return {"parts_mib": parts, "planned_mib": sum(plan.trainer.values()) / 2**20}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(*sys.argv[1:])))
        return
    found = []
    for size, variant in RUNS:
        out = subprocess.check_output(
            [sys.executable, __file__, size, variant],
            text=True,
            env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "1048576", "OMP_NUM_THREADS": "1"},
        )
        row = {"size": size, "variant": variant, **planned(size, variant), **json.loads(out)}
        row["planned_over_measured"] = row["planned_mib"] / row["measured_mib"]
        found.append(row)
    print(json.dumps({"rows": ROWS, "tokens": LENGTH, "threads": 1, "runs": found}, indent=2))


if __name__ == "__main__":
    main()
