"""The start model of the embedded default: a small Llama supervised on a mistaken teacher.

Made once for its settings and used by every run that has the same ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from scalerl.config import Config
from scalerl.data.chain import Teacher, make_chain_prompts, supervised_pairs
from scalerl.messages import Prompt
from scalerl.model.load import load_model, save_model
from scalerl.model.tiny import END, tiny_model, tiny_tokenizer
from scalerl.train.sft import SupervisedSettings, Trace, supervise

TRACES = 20_000


def start_name(config: Config) -> str:
    """Folder name of the start model: all that decides its weights, as a hash."""
    data = config.data.model_dump(include={"task", "validation_prompts", "seed", "max_operations"})
    decides = [config.model.tiny.model_dump(), config.supervised.model_dump(), data, TRACES]
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
    tokenizer = tiny_tokenizer()
    tiny, stage = config.model.tiny, config.supervised
    model = tiny_model(
        seed=stage.seed,
        hidden=tiny.hidden,
        layers=tiny.layers,
        heads=tiny.heads,
        intermediate=tiny.feed_forward,
    )
    _, heldout = chain_prompts(config, tokenizer.encode)
    pairs = supervised_pairs(
        count=TRACES,
        seed=stage.seed,
        teacher=Teacher.make(stage.seed),
        exclude=heldout,
        operations=(1, config.data.max_operations),
    )
    end = int(tokenizer.convert_tokens_to_ids(END))  # type: ignore[arg-type]
    traces = [
        Trace(
            prompt_ids=tuple(tokenizer.encode(prompt)),
            answer_ids=(*tokenizer.encode(trace), end),
        )
        for prompt, trace in pairs
    ]
    settings = SupervisedSettings(
        steps=stage.steps, rows=stage.rows, lr=stage.lr, warmup_steps=stage.warmup_steps
    )
    supervise(model, traces, settings, seed=stage.seed, on_step=on_step)
    save_model(model, path, tokenizer)
    return path


def chain_prompts(
    config: Config, encode: Callable[[str], list[int]]
) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out prompts of the embedded task; the held-out ones do not depend on how
    many training prompts there are."""
    data = config.data
    return make_chain_prompts(
        train=data.train_prompts,
        heldout=data.validation_prompts,
        seed=data.seed,
        encode=encode,
        operations=(1, data.max_operations),
    )
