"""The ranks of a sharded trainer, however they were started.

    spawned    execution.trainer_ranks = n: this process is rank 0 and starts the others
    torchrun   torchrun … -m scalerl train …: every rank runs the command; all but 0 follow

The start model and the settings come to the followers with `Begin`, so that on other machines only
the folder of the start model has to be there under the same path. Spawned ranks are watched
(`rank_watch`); those of torchrun are watched by its agent, and waited for with a limit.
"""

from __future__ import annotations

import os
import signal
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from scalerl.config import Config, dump_toml
from scalerl.config.load import validated
from scalerl.pipeline.rank_watch import BUSY_S, RankWatch, show_life
from scalerl.placement.local import SIGNALS
from scalerl.train.sharded import Begin, End, ShardedTrainer, follow, join, lost_ranks, send
from scalerl.train.step import Trainer

LOOPBACK = "lo"

Make = Callable[[Config, Path, type[Trainer]], Trainer]


class SpawnedTrainer(ShardedTrainer):
    """Rank 0 with the processes that it started."""

    watch: RankWatch

    def save_state(self, folder: Path) -> None:
        with self.watch.unfinished(folder):
            super().save_state(folder)

    def close(self) -> None:
        super().close()
        self.watch.close(grace_s=0.0 if self._torn else 5.0)
        dist.destroy_process_group()

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        with self.watch.waited_for(BUSY_S), super()._under_way():
            yield


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
    with ExitStack() as unless_ready:
        watch = _spawn(config, make)
        unless_ready.callback(dist.destroy_process_group)
        unless_ready.callback(watch.close, 0.0)
        with watch.waited_for(), lost_ranks():
            _begin(config, model_path)
        trainer = make(config, model_path, SpawnedTrainer)
        assert isinstance(trainer, SpawnedTrainer)
        trainer.watch = watch
        unless_ready.pop_all()
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
            with suppress(RuntimeError):  # it is lost, and needs no word
                send(rank, End())
        dist.destroy_process_group()


class _TorchrunTrainer(ShardedTrainer):
    """Rank 0 under torchrun: its followers stay for the next trainer, after a rollback."""

    def close(self) -> None:
        if self._torn:  # nothing can follow, nor be told
            dist.destroy_process_group()


def _with_torchrun(config: Config, model_path: Path, make: Make) -> Trainer:
    if not dist.is_initialized():
        join(0, int(os.environ["WORLD_SIZE"]), init="env://")
    with lost_ranks():
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


def _spawn(config: Config, make: Make) -> RankWatch:
    """Start ranks 1 to n−1 and meet them."""
    ranks = config.execution.trainer_ranks
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    with ExitStack() as unless_met:
        folder = tempfile.TemporaryDirectory()  # they look there again for each new group
        unless_met.callback(folder.cleanup)
        meeting = f"file://{folder.name}/meeting"
        watch = RankWatch(
            _rank_main,
            [(rank, ranks, meeting, make) for rank in range(1, ranks)],
            silence_s=config.execution.stall_s,
            at_end=folder.cleanup,
        )
        unless_met.callback(watch.close, 0.0)
        with watch.waited_for():
            watch.meet()  # dead or silent ranks are noticed here; then it takes milliseconds
            join(0, ranks, init=meeting)
        unless_met.pop_all()
    return watch


def _rank_main(connection: Connection, rank: int, ranks: int, meeting: str, make: Make) -> None:
    """Entry point of a spawned rank; it ends when it is told to, or with rank 0."""
    show_life(connection)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    join(rank, ranks, init=meeting)
    _follow(make)
    dist.destroy_process_group()
