"""A trainer over several ranks: FSDP2, layer by layer.

    rank 0   pipeline loop ─ step(rows) ─┬─▶ its share of the passes ─┐
                    │ Command            │      collectives between them: parameters gathered,
                    ▼                    │      gradients summed and scattered, norm, loss
    rank r   follow(): take a command ───┴─▶ its share of the passes ─┘─▶ what it saw, to rank 0

Only rank 0 talks to generators, logs and evaluates; it hands out rows by tokens, with equally many
passes to each rank. The other ranks do what they are told, in the order they are told it, and every
command runs the same collectives on all of them. The loss weights are those of the whole step, so
gradients are summed over ranks, never averaged.

Commands are MessagePack over the CPU group (gloo); the collectives of a CUDA model go over NCCL.
With bfloat16 weights the shards are FP32 masters and each layer is cast as it is gathered.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedTokenizerBase

from scalerl.algorithm.effective import Row
from scalerl.errors import RunError
from scalerl.model.device import card_count
from scalerl.model.load import save_model
from scalerl.model.lora import merged_weights
from scalerl.train.batches import shares
from scalerl.train.shards import SHARDS, write_shards
from scalerl.train.step import ARRAYS, StepSeen, Trainer

PATIENCE = datetime.timedelta(minutes=15)  # of rank 0, for the others to come or to do their part
WAIT = datetime.timedelta(days=7)  # of the others for a command; the end of rank 0 ends it
GLOO = re.compile(r"\bgloo/|Connection (closed|reset) by peer")  # in what gloo says of its failures


class RanksApart(RunError):
    """The ranks do not reach each other: one is gone, or did not come or answer in time."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Build the trainer of these settings on this start model."""

    config: str  # TOML
    model_path: str


class Step(msgspec.Struct, frozen=True, tag=True):
    """Take part in an optimiser step with these passes."""

    version: int
    passes: tuple[tuple[Row, ...], ...]


class Gather(msgspec.Struct, frozen=True, tag=True):
    """Take part in gathering the whole weights on rank 0."""


class Save(msgspec.Struct, frozen=True, tag=True):
    """Write this rank's shards of the optimiser's state."""

    folder: str


class Load(msgspec.Struct, frozen=True, tag=True):
    """Go on from a checkpoint."""

    folder: str
    skipped_in_a_row: int


class End(msgspec.Struct, frozen=True, tag=True):
    """Nothing more is to be done."""


Command = Begin | Step | Gather | Save | Load | End
_decoder = msgspec.msgpack.Decoder(Command)


def join(rank: int, ranks: int, *, init: str) -> None:
    """Become one of `ranks`; waits for all of them. Each opens its device when it has settings.

    Args:
        init: where they meet: `env://` (torchrun) or `file://…`.

    Raises:
        RanksApart: some rank did not come.
    """
    backend = "cpu:gloo,cuda:nccl" if card_count() and dist.is_nccl_available() else "gloo"
    timeout = PATIENCE if rank == 0 else WAIT
    try:
        dist.init_process_group(
            backend, init_method=init, rank=rank, world_size=ranks, timeout=timeout
        )
    except RuntimeError as error:  # torch raises no narrower type
        raise RanksApart(f"trainer rank {rank} did not meet all {ranks} ranks: {error}") from error


def send(rank: int, command: Command) -> None:
    """Tell one follower."""
    _send_bytes(rank, msgspec.msgpack.encode(command))


def follow(build: Callable[[Begin], ShardedTrainer]) -> None:
    """The life of every rank but 0.

    consumes:      commands of rank 0
    produces:      its part of each command's collectives; after a step, what it saw
    waits for:     the next command
    unblocked by:  a command; the end of rank 0, which ends it with an error
    """
    trainer: ShardedTrainer | None = None
    while True:
        command = _decoder.decode(_receive_bytes(0))
        if isinstance(command, End):
            return
        if isinstance(command, Begin):
            trainer = build(command)
        elif trainer is None:
            raise RunError(f"rank {dist.get_rank()} was told {command} before Begin")
        else:
            trainer.obey(command)


class ShardedTrainer(Trainer):
    """`Trainer` over the ranks of the default process group; every rank builds one alike. Rank 0
    calls the methods of `Trainer`, the others only `obey`."""

    _weights: torch.dtype = torch.float32
    _torn = False  # a command was left half-way, so that the ranks wait for different things

    def _wrap(self) -> None:
        """Shard each repeated layer, then the rest (embeddings, final norm, head) with the root."""
        self.ranks = dist.get_world_size()
        self._weights = next(self.model.parameters()).dtype
        self.model.float()
        device = self.model.device.type
        mesh = init_device_mesh(device, (self.ranks,))
        policy = MixedPrecisionPolicy(
            param_dtype=self._weights, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        offload = OffloadPolicy()
        if self._offload:
            offload = CPUOffloadPolicy(pin_memory=device == "cuda")
        kinds = set(getattr(self.model, "_no_split_modules", None) or ())
        layers = [m for m in self.model.modules() if type(m).__name__ in kinds]
        for module in [*layers, self._scorer]:
            fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload)
        for module in self._scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # a factor of 1 is none

    @property
    def leads(self) -> bool:
        return dist.get_rank() == 0

    def step(self, rows: Sequence[Row], version: int) -> StepSeen:
        mine, *others = shares(rows, self._limits, self.ranks)
        with self._under_way():
            for rank, passes in enumerate(others, start=1):
                send(rank, Step(version, tuple(tuple(p) for p in passes)))
            return self._step(mine, version)

    def weights(self) -> dict[str, Tensor]:
        """Gathered on rank 0, layer by layer; in the type of the forward pass."""
        with self._under_way():
            self._tell(Gather())
            return self._gather()

    def save_model(self, folder: Path, tokenizer: PreTrainedTokenizerBase | None) -> None:
        save_model(self.model, folder, tokenizer, weights=self.weights())

    def save_state(self, folder: Path) -> None:
        with self._under_way():
            self._tell(Save(str(folder.absolute())))
            self._save(folder)

    def load_state(self, folder: Path) -> None:
        with self._under_way():
            self._tell(Load(str(folder.absolute()), self.skipped_in_a_row))
            super().load_state(folder)

    def close(self) -> None:
        """Send the other ranks home. What cannot be told any more is told by the end of rank 0."""
        if self._torn:
            return
        with suppress(RunError), self._under_way():  # a rank is gone already
            self._tell(End())

    def obey(self, command: Command) -> None:
        """A follower's part of a command."""
        match command:
            case Step(version=version, passes=passes):
                self._step(passes, version)
            case Gather():
                self._gather()
            case Save(folder=folder):
                self._save(Path(folder))
            case Load(folder=folder, skipped_in_a_row=skipped):
                self.skipped_in_a_row = skipped
                super().load_state(Path(folder))
            case _:
                raise RunError(f"a trainer does not obey {command}")

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """This rank's shards, the FP32 weights among them."""
        tensors = super().optimizer_tensors()
        return tensors | {f"master:{n}": p.detach() for n, p, _ in self._triples()}

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """A command that all ranks take part in; torn until all of it is done."""
        self._torn = True
        with lost_ranks():
            yield
        self._torn = False

    def _tell(self, command: Command) -> None:
        for rank in range(1, self.ranks):
            send(rank, command)

    def _step(self, passes: Sequence[Sequence[Row]], version: int) -> StepSeen:
        lr = self._set_lr(version)
        seen = [self._backward(passed) for passed in passes]
        update = self._update(seen, lr, version)
        if not self.leads:
            _send_bytes(0, safetensors.numpy.save(_as_arrays(update)))
            return update
        parts = [_as_arrays(update)]
        parts += [safetensors.numpy.load(_receive_bytes(rank)) for rank in range(1, self.ranks)]
        whole = {name: np.concatenate([p[name] for p in parts]) for name in ARRAYS}
        return dataclasses.replace(
            update,
            **whole,
            experts=np.sum([p["experts"] for p in parts], axis=0),
            experts_expected=sum(int(p["experts_expected"][0]) for p in parts),
        )

    def _gather(self) -> dict[str, Tensor]:
        weights: dict[str, Tensor] = {}
        for name, weight in merged_weights(self.model).items():
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
            if self.leads:
                weights[name] = whole.to(self._weights)
        return weights

    def _save(self, folder: Path) -> None:
        write_shards(self.optimizer_tensors(), folder / SHARDS)

    def _master_of(self, parameter: nn.Parameter) -> nn.Parameter:
        return parameter  # the shards are FP32, and offloaded by FSDP itself

    def _as_master(self, key: str, master: Tensor, whole: Tensor) -> Tensor:
        if key == "step" or not isinstance(master, DTensor):
            return super()._as_master(key, master, whole)
        return distribute_tensor(
            whole.to(master.device), master.device_mesh, master.placements, src_data_rank=None
        )  # every rank has read the whole

    def _over_ranks(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)


def _as_arrays(seen: StepSeen) -> dict[str, np.ndarray]:
    arrays = {name: np.ascontiguousarray(getattr(seen, name)) for name in (*ARRAYS, "experts")}
    return arrays | {"experts_expected": np.array([seen.experts_expected])}


@contextmanager
def lost_ranks() -> Iterator[None]:
    """A collective that fails, or lasts beyond `PATIENCE`, says so as `RanksApart`. What fails on
    this rank alone (memory, a shape) keeps its own words."""
    try:
        yield
    except RuntimeError as error:  # gloo raises no narrower type
        if not isinstance(error, dist.DistError) and not GLOO.search(str(error)):
            raise
        raise RanksApart(
            f"trainer ranks could not exchange data, one may be lost: {error}"
        ) from error


def _send_bytes(rank: int, data: bytes) -> None:
    dist.send(torch.tensor([len(data)]), rank)
    dist.send(torch.frombuffer(bytearray(data), dtype=torch.uint8), rank)


def _receive_bytes(rank: int) -> bytes:
    length = torch.zeros(1, dtype=torch.int64)
    dist.recv(length, rank)
    data = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(data, rank)
    return data.numpy().tobytes()
