"""Rows into passes, and passes into tensors.

    rows → sort by length → passes of a few rows, or of a budget of tokens → padded tensors

Shapes: ``B`` rows of a pass, ``T`` tokens of its longest row, prompt included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from scalerl.algorithm.effective import Row


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """How large a forward-backward pass may be. It changes memory and speed, not the gradient."""

    rows: int
    tokens: int | None = None  # padding included; a longer row has a pass of its own

    def __post_init__(self) -> None:
        if self.rows < 1 or (self.tokens is not None and self.tokens < 1):
            raise ValueError(f"a pass needs at least one row and one token: {self}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Rows as tensors, padded on the right."""

    ids_BT: Tensor  # int64, prompt then completion
    real_BT: Tensor  # bool, no padding
    mask_BT: Tensor  # bool, the trained tokens
    logp_gen_BT: Tensor  # float32, 0 where not trained
    advantage_B: Tensor  # float32
    weight_B: Tensor  # float32, of each trained token of the row
    version_BT: np.ndarray  # int64, the oldest weights whose keys and values the token saw


def pack(rows: Sequence[Row], device: torch.device) -> Packed:
    lengths = [length_of(r) for r in rows]
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
        real_BT=torch.from_numpy(np.arange(max(lengths)) < np.array(lengths)[:, None]).to(device),
        mask_BT=torch.from_numpy(mask_BT).to(device),
        logp_gen_BT=torch.from_numpy(logp_gen_BT).to(device),
        advantage_B=torch.tensor([r.advantage for r in rows], dtype=torch.float32, device=device),
        weight_B=torch.tensor([r.weight for r in rows], dtype=torch.float32, device=device),
        version_BT=version_BT,
    )


def length_of(row: Row) -> int:
    return len(row.prompt_ids) + len(row.token_ids)


def passes(rows: Sequence[Row], limits: PassLimits) -> Iterator[Sequence[Row]]:
    """Rows of similar length together, as many as the limits let in."""
    ordered = sorted(rows, key=length_of)
    lengths = [length_of(row) for row in ordered]
    for start, end in cut(lengths, limits):
        yield ordered[start:end]


def cut(lengths: Sequence[int], limits: PassLimits) -> Iterator[tuple[int, int]]:
    """Where to cut an ascending list of lengths: (start, end) of each pass."""
    start = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or not _fits(end + 1 - start, lengths[end], limits):
            yield start, end
            start = end


def _fits(rows: int, longest: int, limits: PassLimits) -> bool:
    return rows <= limits.rows and (limits.tokens is None or rows * longest <= limits.tokens)


def shares(rows: Sequence[Row], limits: PassLimits, ranks: int) -> list[list[Sequence[Row]]]:
    """The passes of each rank: the same number for all, and at each turn passes of about the same
    number of tokens, because the ranks wait for one another.

    Where there are too few passes the largest are halved; an empty one is a pass of no row.
    """
    todo = list(passes(rows, limits))
    while len(todo) % ranks or not todo:
        largest = max(todo, key=lambda p: (len(p) > 1, _cost(p)), default=())
        if len(largest) < 2:
            todo.append(())
            continue
        todo = [p for p in todo if p is not largest]
        middle = len(largest) // 2
        todo += [largest[:middle], largest[middle:]]
    todo.sort(key=_cost, reverse=True)
    turns = [todo[i : i + ranks] for i in range(0, len(todo), ranks)]
    mine: list[list[Sequence[Row]]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for turn in turns:  # the largest pass of a turn goes to the rank that has had least
        for rank, passed in zip(sorted(range(ranks), key=load.__getitem__), turn, strict=True):
            mine[rank].append(passed)
            load[rank] += _cost(passed)
    return mine


def _cost(passed: Sequence[Row]) -> int:
    return len(passed) * max(map(length_of, passed), default=0)
