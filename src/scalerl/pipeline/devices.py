"""Which device each process of a run opens.

`execution.device = cuda` on a machine of n cards, with r trainer ranks on it:

    cuda:0 … cuda:r−1    trainer ranks, by local rank
    cuda:r … cuda:n−1    generator processes in turn; all cards where none is left

Any other device is everybody's.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from scalerl.config import Config
from scalerl.errors import InputError
from scalerl.model.device import card_count, open_device


def trainer_device(config: Config) -> torch.device:
    """The device of this trainer rank, opened; of a process without ranks, the first.

    Raises:
        InputError: there is no such card, or not one for each rank.
    """
    name, ranks = config.execution.device, config.execution.trainer_ranks
    if name != "cuda":
        return open_device(name)
    launched = os.environ.get("LOCAL_RANK")  # by torchrun, which has a number of ranks of its own
    if launched is None and ranks > 1 and ranks > (cards := card_count()):
        raise InputError(
            f"execution.trainer_ranks = {ranks}: each needs a card, and torch sees {cards}"
        )
    own = dist.get_rank() if dist.is_initialized() else 0
    return open_device(name, card=int(launched or own))


def generator_device(config: Config, generator: int) -> str:
    """The device that a generator beside rank 0 is to open."""
    name = config.execution.device
    if name != "cuda":
        return name
    if config.execution.mode == "interleaved":
        return "cuda:0"  # in the trainer's own process
    cards = card_count()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", config.execution.trainer_ranks))
    places = range(ranks, cards) or range(max(cards, 1))
    return f"cuda:{places[generator % len(places)]}"
