"""The device that settings name, made a torch device or refused."""

from __future__ import annotations

import torch

from scalerl.errors import InputError

KEY = "execution.device"


def open_device(name: str, card: int = 0) -> torch.device:
    """The device called `name` (`cpu`, `cuda`, `cuda:N`); a card becomes this process's own.

    Args:
        card: which one `cuda` without a number is.

    Raises:
        InputError: there is no such card.
    """
    device = torch.device(name)
    if device.type != "cuda":
        return device
    cards = card_count()
    if not cards:
        raise InputError(
            f"{KEY} = {name!r}: torch {torch.__version__} sees no CUDA device here; set {KEY} = "
            "'cpu', or see `scalerl doctor`"
        )
    index = card if device.index is None else device.index
    if index >= cards:
        raise InputError(f"{KEY} = {name!r}: no cuda:{index}, torch sees {cards} CUDA device(s)")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def card_count() -> int:
    """CUDA devices that torch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
