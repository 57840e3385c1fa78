"""One optimiser step: rows with weights in, new weights and what was seen on the way out.

    rows → passes (``batches``) → log-probs → loss terms → −Σ w·objective
         → backward → clip → AdamW → weights for the generators

The weights come from the whole step, so how the rows are cut into passes changes nothing.
Shapes: ``B`` rows of a pass, ``T`` tokens of its longest row, prompt included.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from scalerl.algorithm.effective import Row
from scalerl.algorithm.losses import Loss
from scalerl.errors import RunError
from scalerl.model.attention import trainer_attention
from scalerl.model.load import save_model, without_dropout
from scalerl.model.logprobs import token_logprobs
from scalerl.model.lora import merged_weights
from scalerl.model.routing import expert_counts, routers_of, watched
from scalerl.train.batches import PassLimits, pack, passes
from scalerl.train.shards import OPTIMIZER, SHARDS, read_shards


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with a constant learning rate after a linear warm-up (paper A.3)."""

    lr: float
    warmup_steps: int
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip_norm: float
    skip_budget: int  # non-finite steps in a row that are tolerated


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """What one step saw. Arrays run over the step's trained tokens, in the order of the rows."""

    loss: float
    gradient_norm: float  # before clipping; NaN if the step was skipped as non-finite
    lr: float
    applied: bool  # False: skipped, the weights are as before
    logp_train: np.ndarray  # nats
    logp_gen: np.ndarray
    ratio: np.ndarray
    capped: np.ndarray  # bool
    entropy: np.ndarray  # nats, of the trainer's distributions
    version: np.ndarray  # int, the oldest weights whose keys and values the token saw
    experts: np.ndarray  # [layers, E] int, tokens routed to each expert; [0, 0] in a dense model
    experts_expected: int  # what `experts` sums to if no token was dropped


class Scorer(nn.Module):
    """Log-probs and entropies of given tokens, as one module, so that a wrapper of modules (FSDP)
    has the model's own parameters in place for the body and for the head."""

    def __init__(self, model: PreTrainedModel, *, temperature: float, fp32_head: bool) -> None:
        super().__init__()
        self.model = model
        self._how = {"temperature": temperature, "fp32_head": fp32_head}

    def forward(self, ids_BT: Tensor, scored_BT: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(self.model, ids_BT, scored_BT, **self._how)


class Trainer:
    """The model being trained, its FP32 master weights and its optimiser.

    Args:
        activation_checkpointing: keep only the layers' inputs and compute the rest again in the
            backward: less memory, about a third more time.
        offload_optimizer: master weights and moments live on the CPU, and the update runs there.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        loss: Loss,
        settings: OptimizerSettings,
        *,
        temperature: float,
        fp32_head: bool,
        limits: PassLimits,
        activation_checkpointing: bool = False,
        offload_optimizer: bool = False,
    ) -> None:
        self.model = without_dropout(model).train()
        self.settings = settings
        self._loss = loss
        self._limits = limits
        self._offload = offload_optimizer
        if activation_checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        self._scorer = Scorer(model, temperature=temperature, fp32_head=fp32_head)
        self._routers = routers_of(model)
        self._wrap()
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names = [name for name, _ in named]
        self._parameters = [p for _, p in named]
        self._master = [self._master_of(p) for p in self._parameters]
        self.optimizer = torch.optim.AdamW(
            self._master,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self.skipped_in_a_row = 0

    @property
    def parameter_count(self) -> int:
        """Of the whole model, trained or frozen."""
        return sum(p.numel() for p in self.model.parameters())

    def weights(self) -> dict[str, Tensor]:
        """What the forward pass uses, by parameter name: what the generators must use too."""
        return merged_weights(self.model)

    def step(self, rows: Sequence[Row], version: int) -> StepSeen:
        """Train on the effective batch with the weights of `version`.

        Raises:
            RunError: more than `skip_budget` steps in a row had a non-finite loss or gradient.
        """
        lr = self._set_lr(version)
        seen = [self._backward(passed) for passed in passes(rows, self._limits)]
        return self._update(seen, lr, version)

    def save_model(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Write the model as an HF folder that any tool loads."""
        save_model(self.model, folder, tokenizer, weights=self.weights())

    def save_state(self, folder: Path) -> None:
        """Write what training needs beside the model."""
        safetensors.torch.save_file(self.optimizer_tensors(), folder / OPTIMIZER)

    def load_state(self, folder: Path) -> None:
        """Go on from `save_state` of a trainer with the same model, sharded or not.

        Raises:
            OSError, SafetensorError: it cannot be read.
        """
        if (folder / SHARDS).is_dir():
            self.load_optimizer_tensors(read_shards(folder / SHARDS))
        else:
            self.load_optimizer_tensors(safetensors.torch.load_file(folder / OPTIMIZER))

    def close(self) -> None:
        """Let go of what training held beside this process: nothing here."""

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's state by parameter name, and master weights that the exported model lacks."""
        tensors: dict[str, Tensor] = {}
        for name, master, parameter in self._triples():
            for key, value in self.optimizer.state.get(master, {}).items():
                tensors[f"{key}:{name}"] = value
            if master is not parameter or ".lora_" in name:
                tensors[f"master:{name}"] = master.detach()
        return tensors

    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from `optimizer_tensors` of a trainer with the same model."""
        with torch.no_grad():
            for name, master, parameter in self._triples():
                state = {
                    key: self._as_master(key, master, tensors[f"{key}:{name}"])
                    for key in ("step", "exp_avg", "exp_avg_sq")
                    if f"{key}:{name}" in tensors
                }
                if state:
                    self.optimizer.state[master] = state
                if f"master:{name}" in tensors:
                    master.copy_(self._as_master("master", master, tensors[f"master:{name}"]))
                    if master is not parameter:
                        parameter.copy_(master)

    # What a sharded trainer does otherwise.

    def _wrap(self) -> None:
        """Shard the modules, before the optimiser sees their parameters."""

    def _master_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """The FP32 weights that the optimiser updates: the parameter itself if it is FP32."""
        if self._offload:
            return nn.Parameter(parameter.detach().to("cpu", torch.float32, copy=True))
        if parameter.dtype == torch.float32:
            return parameter
        return nn.Parameter(parameter.detach().float())

    def _as_master(self, key: str, master: Tensor, whole: Tensor) -> Tensor:
        """A tensor of the optimiser's state in the place and type of the master weights."""
        return whole.clone() if key == "step" else whole.to(master.device, copy=True)

    def _over_ranks(self, value: float) -> float:
        """The sum over all ranks."""
        return value

    def _triples(self) -> Iterator[tuple[str, nn.Parameter, nn.Parameter]]:
        return zip(self._names, self._master, self._parameters, strict=True)

    def _update(self, seen: Sequence[PassSeen], lr: float, version: int) -> StepSeen:
        """Clip and take the optimiser step, or skip it where something is not finite."""
        loss = self._over_ranks(math.fsum(s.loss for s in seen))
        norm = clip_by_global_norm(self._master, self.settings.clip_norm)
        applied = math.isfinite(loss) and math.isfinite(norm)
        if applied:
            self.optimizer.step()
            self._copy_master()
            self.skipped_in_a_row = 0
        self.optimizer.zero_grad(set_to_none=True)
        if not applied:
            self._count_skip(loss, norm, version)
        return step_seen(seen, loss=loss, norm=norm, lr=lr, applied=applied)

    def _backward(self, rows: Sequence[Row]) -> PassSeen:
        """Add the gradient of some rows to the master's; of no row, nothing, at the same calls."""
        packed = pack(rows or (NOTHING,), self.model.device)
        # The backward of checkpointed layers runs their forward again: with the same attention.
        with trainer_attention(self.model, packed.ids_BT.shape[1]):
            with watched(self._routers) as routing:
                logp_BT, entropy_BT = self._scorer(packed.ids_BT, packed.mask_BT)
            terms = self._loss(logp_BT, packed.logp_gen_BT, packed.advantage_B, packed.mask_BT)
            loss = -(terms.objective_BT.sum(dim=1) * packed.weight_B).sum()
            loss.backward()
        self._collect_gradients()
        mask_BT = packed.mask_BT if rows else torch.zeros_like(packed.mask_BT)
        real_N = packed.real_BT.flatten() & bool(rows)
        experts = expert_counts(self._routers, routing, real_N)
        return PassSeen(
            loss=float(loss.detach()) if rows else 0.0,
            logp_train=logp_BT.detach()[mask_BT].numpy(force=True),
            logp_gen=packed.logp_gen_BT[mask_BT].numpy(force=True),
            ratio=terms.ratio_BT[mask_BT].numpy(force=True),
            capped=terms.capped_BT[mask_BT].numpy(force=True),
            entropy=entropy_BT[mask_BT].numpy(force=True),
            version=packed.version_BT[mask_BT.numpy(force=True)],
            experts=experts.numpy(force=True),
            experts_expected=int(real_N.sum()) * sum(int(r.top_k) for r in self._routers.values()),  # type: ignore
        )

    def _collect_gradients(self) -> None:
        """Add what a backward left at the parameters to the masters' gradients."""
        for _, master, parameter in self._triples():
            if master is not parameter and parameter.grad is not None:
                gradient = parameter.grad.to(master.device, torch.float32)
                master.grad = gradient if master.grad is None else master.grad + gradient
                parameter.grad = None

    def _set_lr(self, version: int) -> float:
        share = min(1.0, (version + 1) / max(1, self.settings.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * share
        return self.settings.lr * share

    def _copy_master(self) -> None:
        with torch.no_grad():
            for _, master, parameter in self._triples():
                if master is not parameter:
                    parameter.copy_(master)

    def _count_skip(self, loss: float, norm: float, version: int) -> None:
        self.skipped_in_a_row += 1
        if self.skipped_in_a_row > self.settings.skip_budget:
            raise RunError(
                f"step {version + 1}: loss {loss} and gradient norm {norm} are not finite, for the "
                f"{self.skipped_in_a_row}th step in a row (optimizer.skip_budget = "
                f"{self.settings.skip_budget}); lower optimizer.lr"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PassSeen:
    """What one pass saw: the loss's share, and the fields of `StepSeen` over its tokens."""

    loss: float
    logp_train: np.ndarray
    logp_gen: np.ndarray
    ratio: np.ndarray
    capped: np.ndarray
    entropy: np.ndarray
    version: np.ndarray
    experts: np.ndarray
    experts_expected: int


ARRAYS = ("logp_train", "logp_gen", "ratio", "capped", "entropy", "version")

NOTHING = Row(
    group=0,
    sample=0,
    prompt_ids=(0,),
    token_ids=(0,),
    logp_gen=(0.0,),
    mask=(1,),
    segments=((0, 0),),
    advantage=0.0,
    weight=0.0,
)
"""A row without weight, for a rank that has none while others do."""


def step_seen(
    seen: Sequence[PassSeen], *, loss: float, norm: float, lr: float, applied: bool
) -> StepSeen:
    """The passes of a step as one."""
    arrays = {name: np.concatenate([getattr(s, name) for s in seen]) for name in ARRAYS}
    return StepSeen(
        loss=loss,
        gradient_norm=norm,
        lr=lr,
        applied=applied,
        experts=np.sum([s.experts for s in seen], axis=0),
        experts_expected=sum(s.experts_expected for s in seen),
        **arrays,
    )


def clip_by_global_norm(parameters: Sequence[Tensor], limit: float) -> float:
    """Scale the gradients down to a norm of `limit`; their norm before that, over all shards."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
