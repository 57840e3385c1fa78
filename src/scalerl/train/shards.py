"""The sharded part of a checkpoint: written by every rank, read by each of any
number of ranks.

The format is torch.distributed.checkpoint's. Names are those of `Trainer.optimizer_tensors`
(`exp_avg:layer.weight`); nothing in it is unpickled but the format's own table of contents.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

OPTIMIZER = "optimizer.safetensors"  # of a trainer in one process
SHARDS = "optimizer"  # folder, of a sharded one


def write_shards(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Called by every rank with its own shards (DTensors, or equal whole tensors).

    Raises:
        OSError: some rank could not write its own.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(tensors), storage_writer=FileSystemWriter(folder))
    except CheckpointException as error:  # which is no Exception, and tells of every rank
        rank, (fault, _) = min(error.failures.items(), key=lambda failure: failure[0])
        raise OSError(f"{folder}: rank {rank}: {fault}") from error


def read_shards(folder: Path) -> dict[str, Tensor]:
    """Everything in it as whole tensors, without the other ranks.

    Raises:
        OSError: it cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(folder)
    tensors = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in reader.read_metadata().state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    try:
        with warnings.catch_warnings():  # it says that it loads in a single process, as asked
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(tensors, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        raise OSError(f"{folder}: {error}") from error
    return tensors
