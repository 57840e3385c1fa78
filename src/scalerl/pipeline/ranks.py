"""The ranks of a sharded trainer, however they were started.

    spawned    execution.trainer_ranks = n: this process is rank 0 and starts the others
    torchrun   torchrun … -m scalerl train …: every rank runs the command; all but 0 follow

The start model and the settings come to the followers with `Begin`, so that on other machines only
the folder of the start model has to be there under the same path.
"""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import tomllib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from scalerl.config import Config, dump_toml
from scalerl.config.load import validated
from scalerl.placement.local import SIGNALS, Arrival, Worker
from scalerl.train.sharded import Begin, End, ShardedTrainer, follow, join, send
from scalerl.train.step import Trainer

LOOPBACK = "lo"

Make = Callable[[Config, Path, type[Trainer]], Trainer]


class SpawnedTrainer(ShardedTrainer):
    """Rank 0 with the processes that it started."""

    workers: list[Worker]

    def close(self) -> None:
        super().close()
        for worker in self.workers:
            worker.stop(grace_s=5.0)
        dist.destroy_process_group()


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def follows() -> bool:
    return launched() and int(os.environ["RANK"]) > 0


def open_trainer(config: Config, model_path: Path, make: Make) -> Trainer:
    """A trainer as the settings and the launcher say; on rank 0 or in the only process."""
    if launched():
        return _with_torchrun(config, model_path, make)
    if config.execution.trainer_ranks == 1:
        return make(config, model_path, Trainer)
    workers = _spawn(config, make)
    _begin(config, model_path)
    trainer = make(config, model_path, SpawnedTrainer)
    assert isinstance(trainer, SpawnedTrainer)
    trainer.workers = workers
    return trainer


def run_follower(make: Make) -> None:
    """The whole life of a rank other than 0 under torchrun."""
    for number in SIGNALS:  # torchrun passes them on to every rank; rank 0 acts
        signal.signal(number, signal.SIG_IGN)
    join(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), init="env://")
    _follow(make)
    dist.destroy_process_group()


def leave() -> None:
    """The end of rank 0 under torchrun: the followers go home."""
    if launched() and dist.is_initialized():
        for rank in range(1, dist.get_world_size()):
            send(rank, End())
        dist.destroy_process_group()


class _TorchrunTrainer(ShardedTrainer):
    """Rank 0 under torchrun: its followers stay for the next trainer, after a rollback."""

    def close(self) -> None:
        pass


def _with_torchrun(config: Config, model_path: Path, make: Make) -> Trainer:
    if not dist.is_initialized():
        join(0, int(os.environ["WORLD_SIZE"]), init="env://")
    _begin(config, model_path)
    return make(config, model_path, _TorchrunTrainer)


def _begin(config: Config, model_path: Path) -> None:
    for rank in range(1, dist.get_world_size()):
        send(rank, Begin(dump_toml(config), str(model_path.absolute())))


def _follow(make: Make) -> None:
    def build(begin: Begin) -> ShardedTrainer:
        config = validated(tomllib.loads(begin.config), {})
        torch.set_num_threads(config.execution.threads)
        trainer = make(config, Path(begin.model_path), ShardedTrainer)
        assert isinstance(trainer, ShardedTrainer)
        return trainer

    follow(build)


def _spawn(config: Config, make: Make) -> list[Worker]:
    """Start ranks 1 to n−1 and meet them."""
    ranks = config.execution.trainer_ranks
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    inbox: queue.Queue[Arrival] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        workers = [
            Worker(rank, f"trainer rank {rank}", _rank_main, (rank, ranks, meeting, make), inbox)
            for rank in range(1, ranks)
        ]
        join(0, ranks, init=meeting)
    return workers


def _rank_main(connection: Connection, rank: int, ranks: int, meeting: str, make: Make) -> None:
    """Entry point of a spawned rank; it ends when it is told to, or with rank 0."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    join(rank, ranks, init=meeting)
    _follow(make)
    dist.destroy_process_group()
