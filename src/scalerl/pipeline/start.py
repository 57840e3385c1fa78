"""The start model of the embedded default: a small Llama supervised on a mistaken teacher.

Made once for its settings and used by every run that has the same ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch

from scalerl.config import Config
from scalerl.model.load import load_model, save_model
from scalerl.model.tiny import ASCII, CHARACTERS, END, tiny_model, tiny_tokenizer
from scalerl.pipeline.demonstrations import demonstrations
from scalerl.pipeline.prompts import run_prompts
from scalerl.train.sft import SupervisedSettings, Trace, supervise

TRACES = 20_000


def start_name(config: Config) -> str:
    """Folder name of the start model: all that decides its weights, as a hash."""
    data = config.data.model_dump(exclude={"train_prompts"})
    decides = [config.model.tiny.model_dump(), config.supervised.model_dump(), data, TRACES]
    if config.model.tiny.characters == "ascii":
        decides.append(ASCII)
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    return f"start-{digest[:12]}"


def make_start(config: Config, folder: Path, on_step: Callable[[int, float], None]) -> Path:
    """The start model of `config` in `folder`, made if it is not there yet.

    Returns:
        The HF folder. It appears whole or not at all.
    """
    path = folder / start_name(config)
    if path.is_dir():
        load_model(path)  # raises InputError if somebody damaged it
        return path
    torch.set_num_threads(config.execution.threads)
    tiny, stage = config.model.tiny, config.supervised
    tokenizer = tiny_tokenizer(ASCII if tiny.characters == "ascii" else CHARACTERS)
    model = tiny_model(
        seed=stage.seed,
        vocabulary=len(tokenizer),
        hidden=tiny.hidden,
        layers=tiny.layers,
        heads=tiny.heads,
        intermediate=tiny.feed_forward,
        positions=tiny.positions,
    )
    end = int(tokenizer.convert_tokens_to_ids(END))  # type: ignore[arg-type]
    traces = [
        Trace(
            prompt_ids=tuple(tokenizer.encode(prompt)),
            answer_ids=(*tokenizer.encode(trace), end),
        )
        for prompt, trace in demonstrations(config, run_prompts(config, tokenizer), TRACES)
    ]
    settings = SupervisedSettings(
        steps=stage.steps, rows=stage.rows, lr=stage.lr, warmup_steps=stage.warmup_steps
    )
    supervise(model, traces, settings, seed=stage.seed, on_step=on_step)
    save_model(model, path, tokenizer)
    return path
