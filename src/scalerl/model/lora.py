"""LoRA: train small factors beside frozen weights, and hand out the sum of both.

The adapters sit inside the model (package `peft`, extra `lora`); what leaves it, for generators
and for checkpoints, are ordinary weights W + s·B·A under the names the model had before, so nothing
else knows of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from scalerl.errors import InputError

_BASE = ".base_layer."


def add_lora(
    model: PreTrainedModel, *, rank: int, alpha: int, targets: Sequence[str], seed: int
) -> None:
    """Freeze `model` and put adapters on the linear layers named in `targets`, in place.

    Args:
        targets: last parts of module names (`q_proj`); empty: every linear layer but the head.

    Raises:
        InputError: peft is not installed, or no module has such a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise InputError("model.lora needs peft: pip install 'scalerl[lora]'") from error
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=list(targets) or "all-linear", lora_dropout=0.0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model)
        except ValueError as error:
            raise InputError(f"model.lora: {error}") from error


def merged_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights that `model` computes with, by the names it has without adapters."""
    weights: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        weight = parameter.detach()
        if _BASE in name:
            module, _, kind = name.rpartition(_BASE)
            if kind == "weight":
                layer = model.get_submodule(module)
                delta = sum(layer.get_delta_weight(a) for a in layer.active_adapters)  # type: ignore
                weight = weight + delta.detach().to(weight.dtype)  # type: ignore[union-attr]
            name = f"{module}.{kind}"
        weights[name] = weight
    return weights
