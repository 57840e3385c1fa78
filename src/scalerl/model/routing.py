"""Where tokens went in a mixture of experts: load per expert, and two routings compared.

HF's experts take every token that is routed to them (no capacity), so none is ever dropped: the
loads of a layer add up to tokens × experts a token. Padding is routed, too, and left out here.

Shapes: ``N`` tokens, ``k`` experts a token, ``E`` experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def routers_of(model: PreTrainedModel) -> dict[str, nn.Module]:
    """The routers by module name; none in a dense model."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "top_k") and hasattr(module, "num_experts") and not _has_router(module)
    }


def _has_router(module: nn.Module) -> bool:
    """Whether this is the block around a router."""
    return any(hasattr(child, "top_k") for child in module.children())


@contextmanager
def watched(routers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Tensor]]]:
    """Record the routing of every forward inside: layer → calls, each ``[N, k]``, ids ascending."""
    seen: dict[str, list[Tensor]] = {name: [] for name in routers}

    def record(name: str, k: int) -> Any:
        def hook(module: nn.Module, inputs: object, outputs: tuple[Tensor, ...]) -> None:
            indices = outputs[-1]
            if indices.is_floating_point():  # Llama 4 returns scores and logits
                indices = indices.topk(k, dim=-1).indices
            seen[name].append(indices.detach().sort(dim=-1).values)

        return hook

    handles = [r.register_forward_hook(record(n, int(r.top_k))) for n, r in routers.items()]  # type: ignore
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def expert_counts(
    routers: Mapping[str, nn.Module], seen: Mapping[str, list[Tensor]], kept_N: Tensor
) -> Tensor:
    """Tokens that each expert of each layer got in the first forward seen, ``[layers, E]``.

    Args:
        kept_N: bool, the tokens that count.
    """
    counts = [
        torch.bincount(seen[name][0][kept_N].flatten(), minlength=int(router.num_experts))  # type: ignore
        for name, router in routers.items()
    ]
    return torch.stack(counts) if counts else torch.zeros(0, 0, dtype=torch.int64)


def disagreement(one_Nk: Tensor, two_Nk: Tensor) -> float:
    """Share of tokens that two routings of the same tokens sent to another set of experts."""
    return float((one_Nk != two_Nk).any(-1).double().mean())
