"""One optimiser step: rows with weights in, new weights and what was seen on the way out.

    rows → sort by length → passes of a few rows → log-probs → loss terms → −Σ w·objective
         → backward → clip → AdamW → weights for the generators

The weights come from the whole step, so how the rows are cut into passes changes nothing.
Shapes: ``B`` rows of a pass, ``T`` tokens of its longest row, prompt included.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from scalerl.algorithm.effective import Row
from scalerl.algorithm.losses import Loss
from scalerl.errors import RunError
from scalerl.model.logprobs import token_logprobs


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


class Trainer:
    """The model being trained, its FP32 master weights and its optimiser."""

    def __init__(
        self,
        model: PreTrainedModel,
        loss: Loss,
        settings: OptimizerSettings,
        *,
        temperature: float,
        fp32_head: bool,
        rows_per_pass: int,
    ) -> None:
        self.model = model.train()
        self.settings = settings
        self._loss = loss
        self._temperature = temperature
        self._fp32_head = fp32_head
        self._rows_per_pass = rows_per_pass
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = [p for _, p in model.named_parameters()]
        self._master = [_master_of(p) for p in self._parameters]
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
        return sum(p.numel() for p in self._parameters)

    def weights(self) -> dict[str, Tensor]:
        """What the forward pass uses, by parameter name: what the generators must use too."""
        return dict(zip(self._names, (p.detach() for p in self._parameters), strict=True))

    def step(self, rows: Sequence[Row], version: int) -> StepSeen:
        """Train on the effective batch with the weights of `version`.

        Raises:
            RunError: more than `skip_budget` steps in a row had a non-finite loss or gradient.
        """
        lr = self._set_lr(version)
        seen = [self._backward(passed) for passed in passes(rows, self._rows_per_pass)]
        loss = math.fsum(s.loss for s in seen)
        norm = float(torch.nn.utils.clip_grad_norm_(self._master, self.settings.clip_norm))
        applied = math.isfinite(loss) and math.isfinite(norm)
        if applied:
            self.optimizer.step()
            self._copy_master()
            self.skipped_in_a_row = 0
        self.optimizer.zero_grad(set_to_none=True)
        if not applied:
            self._count_skip(loss, norm, version)
        return StepSeen(
            loss=loss,
            gradient_norm=norm,
            lr=lr,
            applied=applied,
            logp_train=np.concatenate([s.logp_train for s in seen]),
            logp_gen=np.concatenate([s.logp_gen for s in seen]),
            ratio=np.concatenate([s.ratio for s in seen]),
            capped=np.concatenate([s.capped for s in seen]),
            entropy=np.concatenate([s.entropy for s in seen]),
            version=np.concatenate([s.version for s in seen]),
        )

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's state by parameter name, and master weights that the model does not hold."""
        tensors: dict[str, Tensor] = {}
        for name, master, parameter in zip(
            self._names, self._master, self._parameters, strict=True
        ):
            for key, value in self.optimizer.state.get(master, {}).items():
                tensors[f"{key}:{name}"] = value
            if master is not parameter:
                tensors[f"master:{name}"] = master.detach()
        return tensors

    def load_optimizer_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from `optimizer_tensors` of a trainer with the same model."""
        for name, master, parameter in zip(
            self._names, self._master, self._parameters, strict=True
        ):
            state = {
                key: tensors[f"{key}:{name}"].clone()
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}:{name}" in tensors
            }
            if state:
                self.optimizer.state[master] = state
            if master is not parameter:
                with torch.no_grad():
                    master.copy_(tensors[f"master:{name}"])

    def _backward(self, rows: Sequence[Row]) -> _PassSeen:
        """Add the gradient of some rows to the master's."""
        packed = pack(rows, self.model.device)
        logp_BT, entropy_BT = token_logprobs(
            self.model,
            packed.ids_BT,
            packed.mask_BT,
            temperature=self._temperature,
            fp32_head=self._fp32_head,
        )
        terms = self._loss(logp_BT, packed.logp_gen_BT, packed.advantage_B, packed.mask_BT)
        loss = -(terms.objective_BT.sum(dim=1) * packed.weight_B).sum()
        loss.backward()
        for master, parameter in zip(self._master, self._parameters, strict=True):
            if master is not parameter and parameter.grad is not None:
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
                parameter.grad = None
        mask_BT = packed.mask_BT
        return _PassSeen(
            loss=float(loss.detach()),
            logp_train=logp_BT.detach()[mask_BT].numpy(force=True),
            logp_gen=packed.logp_gen_BT[mask_BT].numpy(force=True),
            ratio=terms.ratio_BT[mask_BT].numpy(force=True),
            capped=terms.capped_BT[mask_BT].numpy(force=True),
            entropy=entropy_BT[mask_BT].numpy(force=True),
            version=packed.version_BT[mask_BT.numpy(force=True)],
        )

    def _set_lr(self, version: int) -> float:
        share = min(1.0, (version + 1) / max(1, self.settings.warmup_steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * share
        return self.settings.lr * share

    def _copy_master(self) -> None:
        with torch.no_grad():
            for master, parameter in zip(self._master, self._parameters, strict=True):
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
class _PassSeen:
    loss: float
    logp_train: np.ndarray
    logp_gen: np.ndarray
    ratio: np.ndarray
    capped: np.ndarray
    entropy: np.ndarray
    version: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Rows as tensors, padded on the right."""

    ids_BT: Tensor  # int64, prompt then completion
    mask_BT: Tensor  # bool, the trained tokens
    logp_gen_BT: Tensor  # float32, 0 where not trained
    advantage_B: Tensor  # float32
    weight_B: Tensor  # float32, of each trained token of the row
    version_BT: np.ndarray  # int64, the oldest weights whose keys and values the token saw


def pack(rows: Sequence[Row], device: torch.device) -> Packed:
    lengths = [len(r.prompt_ids) + len(r.token_ids) for r in rows]
    ids_BT = np.zeros((len(rows), max(lengths)), dtype=np.int64)
    mask_BT = np.zeros(ids_BT.shape, dtype=bool)
    logp_gen_BT = np.zeros(ids_BT.shape, dtype=np.float32)
    version_BT = np.zeros(ids_BT.shape, dtype=np.int64)
    for b, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        start = len(row.prompt_ids)
        ids_BT[b, :start] = row.prompt_ids
        ids_BT[b, start:length] = row.token_ids
        mask_BT[b, start:length] = row.mask
        logp_gen_BT[b, start:length] = row.logp_gen
        version_BT[b, start:length] = min(version for _, version in row.segments)
    return Packed(
        ids_BT=torch.from_numpy(ids_BT).to(device),
        mask_BT=torch.from_numpy(mask_BT).to(device),
        logp_gen_BT=torch.from_numpy(logp_gen_BT).to(device),
        advantage_B=torch.tensor([r.advantage for r in rows], dtype=torch.float32, device=device),
        weight_B=torch.tensor([r.weight for r in rows], dtype=torch.float32, device=device),
        version_BT=version_BT,
    )


def passes(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Rows of similar length together, `size` at a time."""
    ordered = sorted(rows, key=lambda r: len(r.prompt_ids) + len(r.token_ids))
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


def _master_of(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """The FP32 weights that the optimiser updates: the parameter itself if it is FP32 already."""
    if parameter.dtype == torch.float32:
        return parameter
    return torch.nn.Parameter(parameter.detach().float())
