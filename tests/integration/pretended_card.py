"""A card that is not there: tensors on the device `card:0` that are computed on the CPU.

An operation that mixes them with tensors of the CPU raises, as on a CUDA device, and nothing leaves
the card but by a copy. Values are real, so whole runs go through; bits are not a card's, and
streams, graphs and NCCL are not pretended. (FakeTensorMode, which can claim `cuda`, cannot index
without a CUDA build and has no values to branch on.)

Importing this changes torch for the whole process: use it in a process of its own, and before
`scalerl`, because inference mode and tensor subclasses do not go together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("card")
torch.card.get_amp_supported_dtype = lambda: []  # type: ignore[attr-defined]  # of checkpointing
torch.inference_mode = torch.no_grad  # type: ignore[misc,assignment]

CARD = torch.device("card", 0)
CROSSING = {"aten::copy_", "aten::_to_copy", "aten::set_"}
INDEXING = {"aten::index", "aten::index_put_", "aten::_index_put_impl_"}  # by indices on the CPU


class Mixed(RuntimeError):
    """Tensors of the CPU and of the card in one operation."""


class OnCard(torch.Tensor):
    """A tensor that says it is on the card; `held` is what it is computed with."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnCard:
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=CARD,
        )
        self.held = held
        return self

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} outside of `Card`")

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise Mixed("a tensor of the card becomes no array without force")
        return self.held.numpy(force=True)

    def untyped_storage(self) -> Any:  # whose identity tells tied weights
        return self.held.untyped_storage()


class Card(TorchDispatchMode):
    """Inside, `card:0` is a device."""

    def __enter__(self) -> Card:
        self._before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=card) comes through here
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._before)
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, named = func._schema.name, dict(kwargs or {})
        leaves = tree_leaves((args, named))
        there = [x for x in leaves if isinstance(x, OnCard)]
        if name == "prim::device":
            return args[0].device
        if there and name not in CROSSING:
            _check(func, name, args, leaves)
        target = named.get("device")
        if target is not None:
            named["device"] = torch.device("cpu")
        lands = bool(there) if target is None else torch.device(target).type == CARD.type
        held = tree_map(_held, args)
        if name == "aten::histc":  # of integers only a card counts
            held = (held[0].float(), *held[1:])
        out = func(*held, **tree_map(_held, named))
        if name == "aten::copy_":
            return args[0]
        known = {id(x.held): x for x in there}

        def as_seen(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            if id(x) in known:
                return known[id(x)]
            return OnCard(x) if lands else x

        return tree_map(as_seen, out)


def _held(x: Any) -> Any:
    return x.held if isinstance(x, OnCard) else x


def _check(func: Any, name: str, args: Any, leaves: list[Any]) -> None:
    """Raise `Mixed` where a CUDA device would: numbers of no dimension may come from the CPU."""
    for x in leaves:
        if not isinstance(x, torch.Tensor) or isinstance(x, OnCard) or x.ndim == 0:
            continue
        if name in INDEXING and x is not args[0] and x.dtype in (torch.int64, torch.bool):
            continue
        raise Mixed(f"{func}: a tensor {tuple(x.shape)} of the CPU among those of the card")
