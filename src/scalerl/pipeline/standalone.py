"""An evaluation outside a run: a model folder in, held-out figures out."""

from __future__ import annotations

from pathlib import Path

import torch

from scalerl.config import Config
from scalerl.errors import InputError
from scalerl.evaluate import EvalSummary, summarise
from scalerl.messages import Completion, Scored
from scalerl.model.load import load_model, load_tokenizer
from scalerl.pipeline.devices import trainer_device
from scalerl.pipeline.generator import build_engine
from scalerl.pipeline.prompts import make_scorer, run_prompts
from scalerl.pipeline.run import generator_spec, make_request
from scalerl.pipeline.scoring import Scoring
from scalerl.train import checkpoint


def find_model(path: Path) -> tuple[Path, Path | None]:
    """The model folder that `path` means, and the settings saved beside it, if any.

    Args:
        path: an HF folder, a checkpoint, or a run directory (its newest whole checkpoint).

    Raises:
        InputError: there is no model.
    """
    if (path / "checkpoints").is_dir():
        found = checkpoint.latest(path / "checkpoints", lambda text: None)
        if found is None:
            raise InputError(f"{path}: the run has no whole checkpoint yet")
        path = found
    if (path / "model" / "config.json").is_file():
        saved = path / "config.toml"
        return path / "model", saved if saved.is_file() else None
    if (path / "config.json").is_file():
        return path, None
    raise InputError(f"{path}: no model folder, checkpoint or run directory")


def evaluate_model(config: Config, model_path: Path, *, greedy: bool = False) -> EvalSummary:
    """Held-out figures of a model under the settings of `config`; one completion if `greedy`."""
    torch.set_num_threads(config.execution.threads)
    tokenizer = load_tokenizer(model_path)
    loaded = run_prompts(config, tokenizer)
    heldout = loaded.heldout
    spec = generator_spec(config, model_path, tokenizer, heldout)
    model = load_model(model_path, config.model.weights, trainer_device(config))
    engine = build_engine(spec, model, greedy=greedy)
    samples = 1 if greedy else config.evaluation.completions
    engine.submit(
        [
            make_request(config, "evaluation", 0, prompt, sample, index)
            for index, prompt in enumerate(heldout)
            for sample in range(samples)
        ]
    )
    scored: list[list[Scored]] = [[] for _ in heldout]
    with make_scorer(config, loaded) as scorer:
        completions: list[Completion] = []
        while engine.has_work:
            completions += engine.step()
        scoring = Scoring(scorer, tokenizer.decode)
        for answer in scoring.score_all([(heldout[c.group], c) for c in completions]):
            scored[answer.completion.group].append(answer)
    return summarise(scored)
