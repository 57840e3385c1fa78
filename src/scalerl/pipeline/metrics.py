"""What a step and an evaluation write down. Pure: counters in, log rows out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from scalerl.algorithm.effective import Effective, Rules
from scalerl.algorithm.statistics import (
    advantage_statistics,
    batch_statistics,
    staleness,
    token_statistics,
)
from scalerl.evaluate import EvalSummary
from scalerl.messages import Counters, Group
from scalerl.train.step import StepSeen


@dataclasses.dataclass(slots=True, kw_only=True)
class Compute:
    """Compute of the run up to a moment, all attempts together. Part of every checkpoint.

    Device seconds are of the machine that a side occupies, working or waiting; evaluation, start
    and checkpoints are kept apart and not counted.
    """

    generator_busy_s: float = 0.0
    generator_idle_s: float = 0.0
    trainer_busy_s: float = 0.0
    trainer_idle_s: float = 0.0
    evaluation_s: float = 0.0
    tokens_generated: int = 0
    tokens_trained: int = 0
    prompt_tokens: int = 0  # of groups admitted, each prompt once
    trainer_flops: float = 0.0  # estimate: 6·N a token of a trained row

    def with_generators(self, counters: Sequence[Counters]) -> Compute:
        """This account with the living generators' clocks and counts added."""
        return dataclasses.replace(
            self,
            generator_busy_s=self.generator_busy_s + sum(c.busy_s for c in counters),
            generator_idle_s=self.generator_idle_s + sum(c.idle_s for c in counters),
            tokens_generated=self.tokens_generated + sum(c.tokens_generated for c in counters),
        )

    def row(self, parameters: int) -> dict[str, Any]:
        generator_s = self.generator_busy_s + self.generator_idle_s
        trainer_s = self.trainer_busy_s + self.trainer_idle_s
        forward = 2.0 * parameters * (self.tokens_generated + self.prompt_tokens)
        return {
            "device_hours": (generator_s + trainer_s) / 3600,
            "generator_device_hours": generator_s / 3600,
            "trainer_device_hours": trainer_s / 3600,
            "generator_idle_share": self.generator_idle_s / generator_s if generator_s else 0.0,
            "trainer_idle_share": self.trainer_idle_s / trainer_s if trainer_s else 0.0,
            "evaluation_hours": self.evaluation_s / 3600,
            "tokens_generated": self.tokens_generated,
            "tokens_trained": self.tokens_trained,
            "flops": self.trainer_flops + forward,  # 2·N a token run through a generator
        }


def curve_row(
    summary: EvalSummary, compute: Compute, *, step: int, version: int, parameters: int, epoch: int
) -> dict[str, Any]:
    """One line of curve.jsonl; DESIGN of the file: held-out figures, then compute so far."""
    figures = msgspec.to_builtins(summary)
    return {
        "step": step,
        "weights_version": version,
        **figures,
        **compute.row(parameters),
        "epoch": epoch,
    }


def step_row(
    groups: Sequence[Group],
    effective: Effective,
    seen: StepSeen | None,
    rules: Rules,
    *,
    version: int,
) -> dict[str, Any]:
    """What one optimiser step saw; lengths and rates before any filter or mask."""
    row: dict[str, Any] = {"step": version + 1, "weights_version": version}
    row |= _fields(batch_statistics(groups, rules))
    row |= _fields(effective.counts)
    row["skip_reason"] = effective.skip_reason
    row |= {f"staleness_{k}": v for k, v in _fields(staleness(groups, version)).items()}
    row |= {f"advantage_{k}": v for k, v in _fields(advantage_statistics(effective)).items()}
    if seen is None:
        return row
    row |= {
        "loss": seen.loss,
        "gradient_norm": seen.gradient_norm,
        "lr": seen.lr,
        "applied": seen.applied,
        "trainer_entropy": float(seen.entropy.mean()),
    }
    row |= _fields(
        token_statistics(
            ratio_N=seen.ratio,
            capped_N=seen.capped,
            logp_train_N=seen.logp_train,
            logp_gen_N=seen.logp_gen,
        )
    )
    return row | _equal_weights(seen, version) | _experts(seen)


def _experts(seen: StepSeen) -> dict[str, Any]:
    """Of a mixture of experts: each expert's share of the tokens as a multiple of an even share,
    over all layers; the extremes over layers; and tokens that no expert took."""
    layers, experts = seen.experts.shape
    if not layers:
        return {}
    share = seen.experts / np.maximum(1, seen.experts.sum(axis=1, keepdims=True)) * experts
    return {
        "expert_load": [round(float(x), 4) for x in share.mean(axis=0)],
        "expert_load_max": float(share.max()),
        "expert_load_min": float(share.min()),
        "expert_tokens_dropped": seen.experts_expected - int(seen.experts.sum()),
    }


def _equal_weights(seen: StepSeen, version: int) -> dict[str, Any]:
    """|log π_train − log π_gen| over tokens sampled by the very weights that are being trained:
    the error between the two engines, without the policy's own movement."""
    fresh = seen.version == version
    gap = np.abs(seen.logp_train[fresh] - seen.logp_gen[fresh])
    return {
        "equal_weights_tokens": int(fresh.sum()),
        "equal_weights_mismatch_mean": float(gap.mean()) if gap.size else None,
        "equal_weights_mismatch_max": float(gap.max()) if gap.size else None,
    }


def _fields(struct: msgspec.Struct | None) -> dict[str, Any]:
    return {} if struct is None else msgspec.to_builtins(struct)
