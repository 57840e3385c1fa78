"""Memory of a run on paper: per process, part by part, before anything is started.

settings, config of the model ─▶ trainer rank   weights gradients optimiser activations head
                              ─▶ generator      weights KV head
                              ─▶ shared         versions of the weights on their way
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedConfig

from scalerl.config import Config
from scalerl.data.chain import LABELS
from scalerl.model.footprint import Shape, activation_bytes, head_bytes, shape_of
from scalerl.model.source import resolve_model
from scalerl.model.tiny import tiny_model
from scalerl.pipeline.run import WEIGHT_BUFFERS

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bytes by part. Every process but the shared memory needs that of its libraries, too."""

    trainer: Mapping[str, int]  # of one rank
    generator: Mapping[str, int]  # of one generator
    shared: int  # all versions of the weights between trainer and generators, once a machine
    ranks: int
    generators: int
    tokens_per_pass: int  # of the largest pass: rows × longest row

    @property
    def machine(self) -> int:
        """All processes on one machine with one memory."""
        trainers = self.ranks * sum(self.trainer.values())
        return trainers + self.generators * sum(self.generator.values()) + self.shared


def make_plan(config: Config, model: PreTrainedConfig) -> Plan:
    """The plan of `config` on a model with the configuration `model`."""
    shape = shape_of(model)
    weights = torch.bfloat16 if config.model.weights == "bfloat16" else torch.float32
    longest = longest_prompt(config) + config.sampling.max_new_tokens
    rows = config.batch.rows_per_pass
    if config.batch.tokens_per_pass:
        rows = max(1, min(rows, config.batch.tokens_per_pass // longest))
    return Plan(
        trainer=trainer_bytes(config, model, shape, rows=rows, tokens=longest, weights=weights),
        generator=generator_bytes(config, shape, length=longest, weights=weights),
        shared=WEIGHT_BUFFERS * shape.parameters * weights.itemsize,
        ranks=config.execution.trainer_ranks,
        generators=config.execution.generators,
        tokens_per_pass=rows * longest,
    )


def model_config(config: Config) -> PreTrainedConfig:
    """The configuration of the model that a run would train: of the embedded one, of a folder, or
    of a hub name; no weights are read.

    Raises:
        InputError: there is none to be had.
    """
    if not config.model.path:
        tiny = config.model.tiny
        return tiny_model(
            seed=0,
            hidden=tiny.hidden,
            layers=tiny.layers,
            heads=tiny.heads,
            intermediate=tiny.feed_forward,
        ).config
    path = Path(config.model.path)
    if not path.is_dir():
        path = resolve_model(config.model.path, Path("runs/starts"))
    return AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)


def longest_prompt(config: Config) -> int:
    """Tokens, chat template included; the limit where it is not known before the data is read."""
    if config.data.sources:
        return config.data.max_prompt_tokens
    return 3 * min(config.data.max_operations, len(LABELS)) + 2


def trainer_bytes(
    config: Config,
    model: PreTrainedConfig,
    shape: Shape,
    *,
    rows: int,
    tokens: int,
    weights: torch.dtype,
) -> dict[str, int]:
    """One rank at its peak, the start of the backward of a pass that is not the first."""
    ranks, n = config.execution.trainer_ranks, shape.parameters
    masters = 4 * n if weights != torch.float32 or config.execution.offload_optimizer else 0
    body = activation_bytes(
        model,
        rows=rows,
        tokens=tokens,
        dtype=weights,
        checkpointing=config.execution.activation_checkpointing,
        same_bits=weights == torch.float32,
    )
    head = head_bytes(
        shape, tokens=rows * tokens, weights=weights, fp32_head=config.model.fp32_head
    )
    own = n * weights.itemsize
    if ranks > 1:  # FP32 shards; the root and one layer whole, in the type of the forward pass
        whole = shape.parameters - shape.layers * shape.layer + 2 * shape.layer
        own = 4 * n // ranks + max(0, whole) * weights.itemsize
        masters = 0
    return {
        "weights": own,
        "gradients": 4 * n // ranks,
        "optimiser": 8 * n // ranks + masters,
        "activations": body,
        "head": head,
    }


def generator_bytes(
    config: Config, shape: Shape, *, length: int, weights: torch.dtype
) -> dict[str, int]:
    """One generator with all slots taken, and an evaluation beside it."""
    slots = config.sampling.slots
    cast = 4 * shape.vocabulary * shape.hidden
    return {
        "weights": shape.parameters * weights.itemsize,
        "KV": 2 * slots * length * shape.kv_width * weights.itemsize,
        "head": 4 * 4 * slots * shape.vocabulary
        + (cast if config.model.fp32_head and weights != torch.float32 else 0),
    }


def lines_of(plan: Plan, available: int | None) -> list[str]:
    """The plan in words; GiB.

    Args:
        available: bytes of memory that one machine has for all of it; None: unknown.
    """
    lines = [f"largest pass: {plan.tokens_per_pass:,} tokens, padding included"]
    for name, count, parts in (
        ("trainer rank", plan.ranks, plan.trainer),
        ("generator", plan.generators, plan.generator),
    ):
        total = sum(parts.values())
        detail = ", ".join(f"{part} {size / GIB:.3f}" for part, size in parts.items())
        lines.append(f"{name} × {count}: {total / GIB:.3f} GiB each ({detail})")
    lines.append(f"weights between them: {plan.shared / GIB:.3f} GiB, shared")
    lines.append(f"together: {plan.machine / GIB:.3f} GiB, beside the libraries of each process")
    if available is not None:
        fits = "fits" if plan.machine <= available else "DOES NOT FIT"
        lines.append(f"{fits}: this machine has {available / GIB:.1f} GiB available")
    return lines


def available_memory() -> int | None:
    """Bytes that this machine can give without swapping; None where it does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):  # not Linux, or a /proc without it
        return None
