"""Decode steps of a few fixed sizes, captured as CUDA graphs and replayed.

    n slots, longest completion L ─▶ sizes (rows ≥ n, columns ≥ L) ─▶ captured? ─▶ replay ─▶ [:n]
                                                        └ no: run once, capture ┘

A step without new prompts depends on nothing but these two sizes. What it reads never moves: the
columns of `Slots`, the KV cache, and the weights, which new versions are copied into. So a graph
needs no inputs of its own; its results lie in its own memory until the next replay. Rows beyond n
are idle slots: they compute, and write keys at their old positions, which the next prompt
overwrites.

On a CPU the same steps run uncaptured, which is how they are tested; on a card this has never run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from scalerl.model.attention import LANES, ROWS, padded
from scalerl.model.routing import routers_of

COLUMNS = 4 * LANES


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What one forward gives each of n slots."""

    sampled_n: Tensor  # int64
    logp_n: Tensor  # float32, nats
    entropy_n: Tensor  # float32, nats


def capturable(model: PreTrainedModel) -> bool:
    """Whether a decode step of `model` launches the same work whatever the values: not where tokens
    are routed to experts, nor where rotary frequencies follow the longest sequence."""
    rotary = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    kinds = {rotary.get("rope_type")}
    kinds |= {each.get("rope_type") for each in rotary.values() if isinstance(each, dict)}
    return not routers_of(model) and "dynamic" not in kinds


def size_of(count: int, least: int, most: int) -> int:
    """The least size that holds `count`: four sizes an octave, multiples of `least`, at most
    `most`; so at most a quarter is idle, and a few dozen graphs are all there are."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return min(padded(count, padded(step, least)), most)


class StaticDecode:
    """A decode step at fixed sizes.

    Args:
        decode: (rows, columns) → what the first `rows` slots get, looking at `columns` positions;
            the same call at any time must launch the same work on the same memory.
        slots, length: the largest sizes.
    """

    def __init__(
        self,
        decode: Callable[[int, int], Decoded],
        *,
        slots: int,
        length: int,
        device: torch.device,
    ) -> None:
        self._decode = decode
        self._slots, self._length = slots, length
        self._captures = device.type == "cuda"
        self._pool: Any = None  # memory that the graphs share
        self._steps: dict[tuple[int, int], Callable[[], Decoded]] = {}

    def __call__(self, n: int, longest: int) -> Decoded:
        """One token for each of the first n slots; valid until the next call."""
        sizes = size_of(n, ROWS, self._slots), size_of(longest, COLUMNS, self._length)
        if sizes not in self._steps:
            step = partial(self._decode, *sizes)
            self._steps[sizes] = self._captured(step) if self._captures else step
        seen = self._steps[sizes]()
        return Decoded(
            sampled_n=seen.sampled_n[:n], logp_n=seen.logp_n[:n], entropy_n=seen.entropy_n[:n]
        )

    def _captured(self, step: Callable[[], Decoded]) -> Callable[[], Decoded]:
        """`step` as a graph. It runs once before, on the side, so that libraries are initialised
        and the cache is allocated outside of the graph; running it again changes nothing."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            seen = step()
        self._pool = self._pool or graph.pool()

        def replay() -> Decoded:
            graph.replay()
            return seen

        return replay
