"""Checkpoint folders: HF layout, safetensors only, whole or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from scalerl.errors import InputError

Dtype = Literal["float32", "bfloat16"]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def load_model(
    path: Path,
    dtype: Dtype = "float32",
    device: torch.device | None = None,
    attention: str | None = None,
) -> PreTrainedModel:
    """The causal LM of a checkpoint folder, in evaluation mode, on the CPU or on `device`.

    No code from the folder runs: weights are read from safetensors only, and remote code is off.

    Args:
        attention: by its name in transformers; None: the model's own default.

    Raises:
        InputError: no such folder, no safetensors in it, files that cannot be read, or weights
            that the model has and the files have not.
    """
    _check_folder(path)
    if dtype == "bfloat16":
        # oneDNN keeps 1,024 compiled products by default, one a shape, and a ragged batch has
        # a new shape each step: hundreds of MB for nothing. It reads this before its first one.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        with no_progress_bar():
            model, seen = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
                path,
                output_loading_info=True,
                config=config,
                dtype=_DTYPES[dtype],
                attn_implementation=attention,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
            )
    except (OSError, ValueError, SafetensorError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: not a readable model checkpoint: {error}") from error
    if seen["missing_keys"]:
        raise InputError(f"{path}: weights are missing: {', '.join(sorted(seen['missing_keys']))}")
    return on_device(model.eval(), device)


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """The model with the dropout rates of its modules at 0, in place: the trainer's log-probs are
    to be the generator's, and a resumed run's those of one that was not interrupted."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):  # rates that are applied by function
            if isinstance(value, float) and "dropout" in name:
                setattr(module, name, 0.0)
    return model


def on_device(model: PreTrainedModel, device: torch.device | None) -> PreTrainedModel:
    """The model moved there, in place; None leaves it where it is."""
    return model if device is None else model.to(device)  # type: ignore[arg-type]


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint folder. Raises InputError where it cannot be read."""
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise InputError(f"{path}: no readable tokenizer: {error}") from error


def end_ids(path: Path, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token that ends a completion: the tokenizer's, and those that the folder's generation
    settings name (chat models often have two).

    Raises:
        InputError: there is none, or its files cannot be read.
    """
    named: list[int] = []
    for name in ("generation_config.json", "config.json"):
        file = path / name
        try:
            settings = json.loads(file.read_text("utf-8")) if file.is_file() else {}
            parts = [settings, settings.get("text_config") or {}]
            for found in (part.get("eos_token_id") for part in parts):
                named += found if isinstance(found, list) else [found]
        except (OSError, ValueError, AttributeError) as error:
            raise InputError(f"{file}: cannot be read: {error}") from error
    ids = dict.fromkeys([tokenizer.eos_token_id, *named])
    if not (known := tuple(i for i in ids if isinstance(i, int))):
        raise InputError(f"{path}: neither tokenizer nor model names a token that ends a text")
    return known


def save_model(
    model: PreTrainedModel,
    path: Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint folder (safetensors, config, tokenizer), replacing what is there.

    Args:
        weights: by parameter name; what to write in place of what the model holds (which may be
            shards, or have adapters).

    Everything is written to a folder beside it and renamed, so an interruption at any moment leaves
    the old folder, the new one, or none, never half of one.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    try:
        with no_progress_bar():
            model.save_pretrained(aside, state_dict=_state_dict(model, weights))
        if tokenizer is not None:
            tokenizer.save_pretrained(aside)
        for file in aside.iterdir():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        if path.exists():
            path.rename(old)
        aside.rename(path)
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        for left in (aside, old):
            shutil.rmtree(left, ignore_errors=True)


def _state_dict(
    model: PreTrainedModel, weights: Mapping[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """`weights` under all names of `model`'s state, tied ones included."""
    if weights is None:
        return None
    of_tensor = {id(p): name for name, p in model.named_parameters()}
    buffers = {name: b for name, b in model.named_buffers() if name in model.state_dict()}
    full = buffers | dict(weights)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = of_tensor[id(parameter)]
        if name not in full and first in full:
            full[name] = full[first]
    return full


def _check_folder(path: Path) -> None:
    if not path.is_dir():
        raise InputError(f"{path}: no such model folder")
    if not (path / "config.json").is_file():
        raise InputError(f"{path}: no config.json, so this is not a model checkpoint")
    if any(path.glob("*.safetensors")):
        return
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise InputError(
            f"{path}: weights only as pickle ({', '.join(pickles)}), which can run code when they "
            "are opened; convert them to safetensors first"
        )
    raise InputError(f"{path}: no *.safetensors weights")


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Transformers' own bars would tear the one display that a run draws."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()
