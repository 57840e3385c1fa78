"""An engine between two steps, taken down and put up again so that it goes on bit for bit.

Keys and values are kept as they are: those of tokens sampled before an update belong to weights
that no longer exist, so they cannot be computed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from scalerl.generate.engine import Engine
from scalerl.messages import Request


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """All of an engine but its tensors."""

    queue: tuple[Request, ...]
    requests: tuple[Request | None, ...]  # by slot
    started: tuple[int, ...]
    used: int
    free: tuple[int, ...]
    steps: int
    versions: tuple[tuple[int, int], ...]
    tokens_generated: int


def take(engine: Engine) -> tuple[EngineState, dict[str, Tensor]]:
    """State and tensors of `engine`; the tensors are the engine's own until they are written."""
    slots = engine._slots
    state = EngineState(
        queue=tuple(engine._queue),
        requests=tuple(engine._requests),
        started=tuple(engine._started),
        used=engine._used,
        free=tuple(engine._free),
        steps=engine._steps,
        versions=tuple(engine._versions),
        tokens_generated=engine.tokens_generated,
    )
    tensors = {
        "slots": slots._state,
        "tokens": slots.tokens,
        "logp": slots.logp,
        "entropy": slots.entropy,
    }
    for index, (keys, values) in engine._cache.layers.items():
        tensors |= {f"keys.{index}": keys, f"values.{index}": values}
    return state, tensors


def put(
    engine: Engine,
    state: EngineState,
    tensors: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
) -> None:
    """Make a fresh `engine`, built with the same settings, go on where `state` was taken.

    Args:
        weights: what the engine's model is to hold.
    """
    slots = engine._slots
    engine._queue = deque(state.queue)
    engine._requests = list(state.requests)
    engine._started = list(state.started)
    engine._used, engine._free, engine._steps = state.used, list(state.free), state.steps
    engine._versions = list(state.versions)
    engine.tokens_generated = state.tokens_generated
    with torch.no_grad():
        for name, parameter in engine.model.named_parameters():
            parameter.copy_(weights[name])
        for name, own in (
            ("slots", slots._state),
            ("tokens", slots.tokens),
            ("logp", slots.logp),
            ("entropy", slots.entropy),
        ):
            own.copy_(tensors[name])
        for name, keys in tensors.items():
            kind, _, index = name.partition(".")
            if kind == "keys":
                values = tensors[f"values.{index}"]
                engine._cache.layers[int(index)] = (
                    keys.to(engine.model.device).clone(),
                    values.to(engine.model.device).clone(),
                )
