"""Our losses against TRL's, on the same tensors: value, gradient, and where the two differ.

    python benchmarks/loss_peer_agreement.py > benchmarks/baselines/loss_peer_agreement.json

Needs TRL beside this package (made with trl 1.16.0). TRL's losses live in one method of its
trainer, ``GRPOTrainer._compute_loss``. That very method is called here, on a trainer object made
without its constructor: the settings it reads are set, and the model's forward pass, which it
calls for log-probs, is replaced by log-probs given. Nothing of the loss is written anew.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scalerl.algorithm.aggregation import Aggregation, weights
from scalerl.algorithm.losses import LossType, make_loss, weighted_loss

PROMPTS, SAMPLES, TOKENS = 4, 4, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One of our losses with the TRL settings that mean the same."""

    loss: LossType
    bounds: dict[str, float]
    aggregation: Aggregation
    trl: dict[str, Any]
    per_prompt: bool = False  # TRL's loss taken prompt by prompt and averaged


CASES = {
    "cispo, token": Case(
        loss="cispo",
        bounds={"ratio_max": 5.0},
        aggregation="token",
        trl={"loss_type": "cispo", "epsilon_high": 5.0},
    ),
    "cispo, prompt": Case(
        loss="cispo",
        bounds={"ratio_max": 5.0},
        aggregation="prompt",
        trl={"loss_type": "cispo", "epsilon_high": 5.0},
        per_prompt=True,
    ),
    "dapo, token": Case(
        loss="dapo",
        bounds={"clip_low": 0.2, "clip_high": 0.26},
        aggregation="token",
        trl={"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.26},
    ),
    "dapo, prompt": Case(
        loss="dapo",
        bounds={"clip_low": 0.2, "clip_high": 0.26},
        aggregation="prompt",
        trl={"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.26},
        per_prompt=True,
    ),
    "grpo, sample": Case(
        loss="grpo",
        bounds={"clip": 0.2},
        aggregation="sample",
        trl={"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    ),
    "grpo, token": Case(
        loss="grpo",
        bounds={"clip": 0.2},
        aggregation="token",
        trl={"loss_type": "bnpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    ),
    "gspo, sample": Case(
        loss="gspo",
        bounds={"clip_low": 4e-3, "clip_high": 5e-3},
        aggregation="sample",
        trl={
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 4e-3,
            "epsilon_high": 5e-3,
        },
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of PROMPTS × SAMPLES completions, prompt by prompt."""

    logp_train_BT: Tensor
    logp_gen_BT: Tensor
    advantage_B: Tensor
    mask_BT: Tensor  # int64

    def rows(self, which: slice) -> Batch:
        return Batch(
            logp_train_BT=self.logp_train_BT[which],
            logp_gen_BT=self.logp_gen_BT[which],
            advantage_B=self.advantage_B[which],
            mask_BT=self.mask_BT[which],
        )


def batch_of(seed: int, spread: float, dtype: torch.dtype) -> Batch:
    """Uneven lengths, holes for forced tokens, log-ratios N(0, spread²)."""
    rng = np.random.default_rng(seed)
    shape = (PROMPTS * SAMPLES, TOKENS)
    logp_gen = -rng.exponential(1.0, shape)
    logp_train = logp_gen + spread * rng.standard_normal(shape)
    mask = np.arange(TOKENS) < rng.integers(3, TOKENS + 1, shape[0])[:, None]
    mask[:, 2:] &= rng.random((shape[0], TOKENS - 2)) > 0.1
    advantage = rng.standard_normal(shape[0])
    return Batch(
        logp_train_BT=torch.tensor(logp_train, dtype=dtype),
        logp_gen_BT=torch.tensor(logp_gen, dtype=dtype),
        advantage_B=torch.tensor(advantage, dtype=dtype),
        mask_BT=torch.tensor(mask.astype(np.int64)),
    )


def ours(case: Case, batch: Batch) -> tuple[float, Tensor]:
    """Our loss and its gradient with respect to the training log-probs."""
    logp = batch.logp_train_BT.clone().requires_grad_()
    lengths = batch.mask_BT.sum(dim=1).reshape(-1, SAMPLES).tolist()
    weight_B = torch.from_numpy(np.concatenate(weights(lengths, case.aggregation)))
    loss = make_loss(case.loss, **case.bounds)
    terms = loss(logp, batch.logp_gen_BT, batch.advantage_B, batch.mask_BT)
    value = weighted_loss(terms, weight_B)
    value.backward()
    assert logp.grad is not None
    return value.item(), logp.grad


def theirs(case: Case, batch: Batch) -> tuple[float, Tensor]:
    """TRL's loss and its gradient, of the same log-probs."""
    logp = batch.logp_train_BT.clone().requires_grad_()
    whole = Batch(
        logp_train_BT=logp,
        logp_gen_BT=batch.logp_gen_BT,
        advantage_B=batch.advantage_B,
        mask_BT=batch.mask_BT,
    )
    if case.per_prompt:
        parts = [whole.rows(slice(i, i + SAMPLES)) for i in range(0, len(logp), SAMPLES)]
    else:
        parts = [whole]
    value = torch.stack([_trl_loss(case.trl, part) for part in parts]).mean()
    value.backward()
    assert logp.grad is not None
    return value.item(), logp.grad


def _trl_loss(settings: dict[str, Any], batch: Batch) -> Tensor:
    from accelerate import Accelerator
    from trl import GRPOTrainer

    class GivenLogProbs(GRPOTrainer):
        """TRL's trainer without a model: its forward pass returns what was given."""

        def __init__(self) -> None:
            pass

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            return batch.logp_train_BT, torch.zeros_like(batch.logp_train_BT), None

    trainer = GivenLogProbs()
    defaults = {
        "importance_sampling_level": "token",
        "epsilon_low": 0.2,
        "beta": 0.0,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "aux_loss_enabled": False,
        "use_adaptive_entropy": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "model": SimpleNamespace(training=True),
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "accelerator": Accelerator(cpu=True),
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
    }
    for name, value in (defaults | settings).items():
        setattr(trainer, name, value)
    inputs = {
        "prompt_ids": torch.zeros(len(batch.mask_BT), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(batch.mask_BT), 1, dtype=torch.int64),
        "completion_ids": torch.zeros_like(batch.mask_BT),
        "completion_mask": batch.mask_BT,
        "advantages": batch.advantage_B,
        "old_per_token_logps": batch.logp_gen_BT,
        "num_items_in_batch": batch.mask_BT.sum(),
    }
    return trainer._compute_loss(trainer.model, inputs)


def agreement(name: str, dtype: torch.dtype, seeds: int = 20) -> dict[str, float | int]:
    """Worst relative difference over random batches, with how many tokens a bound touched.

    ``control`` is the same comparison with TRL's upper bound doubled: that it is not zero shows
    that the comparison can fail.
    """
    case = CASES[name]
    wrong = replace(case, trl=case.trl | {"epsilon_high": 2.0 * case.trl["epsilon_high"]})
    spread = 0.02 if case.loss == "gspo" else 1.5 if case.loss == "cispo" else 0.3
    value, gradient, control = [], [], []
    capped = trained = 0
    for seed in range(seeds):
        batch = batch_of(seed, spread, dtype)
        our_value, our_gradient = ours(case, batch)
        their_value, their_gradient = theirs(case, batch)
        value.append(abs(our_value - their_value) / abs(their_value))
        gradient.append(_relative(our_gradient, their_gradient))
        control.append(_relative(our_gradient, theirs(wrong, batch)[1]))
        terms = make_loss(case.loss, **case.bounds)(
            batch.logp_train_BT, batch.logp_gen_BT, batch.advantage_B, batch.mask_BT
        )
        capped += int(terms.capped_BT.sum())
        trained += int(batch.mask_BT.sum())
    return {
        "batches": seeds,
        "trained_tokens": trained,
        "tokens_at_a_bound": capped,
        "value_relative_difference": float(np.max(value)),
        "gradient_relative_difference": float(np.max(gradient)),
        "control_gradient_relative_difference": float(np.max(control)),
    }


def _relative(ours: Tensor, theirs: Tensor) -> float:
    """NaN on either side stays NaN, and np.max keeps it."""
    return float((ours - theirs).abs().max() / theirs.abs().max())


def differences() -> dict[str, dict[str, Any]]:
    """What each side says where the definitions part."""

    def both(name: str, batch: Batch) -> dict[str, Any]:
        our_value, our_gradient = ours(CASES[name], batch)
        their_value, their_gradient = theirs(CASES[name], batch)
        return {
            "scalerl": _readable(our_value, our_gradient),
            "trl": _readable(their_value, their_gradient),
        }

    clean = batch_of(0, 0.3, torch.float64)
    far = batch_of(0, 0.3, torch.float32)
    far.logp_gen_BT[0, 0] = far.logp_train_BT[0, 0] - 100.0
    far.advantage_B[0] = -1.0
    garbage = batch_of(0, 0.3, torch.float64)
    garbage.logp_gen_BT[garbage.mask_BT == 0] = math.nan
    emptied = batch_of(0, 0.3, torch.float64)
    emptied.mask_BT[:SAMPLES] = 0
    return {
        "one token at log-ratio +100, negative advantage, float32 (dapo, token)": both(
            "dapo, token", far
        ),
        "NaN behind the mask (dapo, token)": both("dapo, token", garbage),
        "clean batch (grpo, sample)": both("grpo, sample", clean),
        "the same with one prompt of four all masked (grpo, sample)": both("grpo, sample", emptied),
    }


def _readable(value: float, gradient: Tensor) -> dict[str, Any]:
    return {
        "loss": value if math.isfinite(value) else str(value),
        "gradient_finite": bool(torch.isfinite(gradient).all()),
    }


def main() -> None:
    import trl

    torch.set_num_threads(1)
    report = {
        "what": "scalerl.algorithm losses against trl.GRPOTrainer._compute_loss, same tensors",
        "versions": {"trl": trl.__version__, "torch": torch.__version__.split("+")[0]},
        "shape": {"prompts": PROMPTS, "completions": SAMPLES, "tokens": TOKENS},
        "float64": {name: agreement(name, torch.float64) for name in CASES},
        "float32": {name: agreement(name, torch.float32) for name in CASES},
        "differences": differences(),
    }
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
