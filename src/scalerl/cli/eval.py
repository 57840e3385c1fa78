"""`scalerl eval`: mean@k and pass@k of a model on held-out prompts."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scalerl.cli.settings import SETTINGS_HELP, parse_with_settings

HELP = (
    "Evaluate a model folder, a checkpoint or a whole run on the held-out prompts of its settings: "
    "mean@k, unbiased pass@k, greedy pass rate.\n" + SETTINGS_HELP
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        metavar="CHECKPOINT",
        help="HF folder, checkpoint folder or run directory",
    )
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="TOML files, later ones win")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")


def parse(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    return parse_with_settings(parser, words)


def run(arguments: argparse.Namespace) -> int:
    import json

    import msgspec

    from scalerl.config import load_config
    from scalerl.pipeline.standalone import evaluate_model, find_model

    model_path, saved = find_model(arguments.path)
    files = [*([saved] if saved else []), *(Path(f) for f in arguments.configs)]
    config = load_config(files, overrides=arguments.settings)
    sampled = evaluate_model(config, model_path)
    greedy = evaluate_model(config, model_path, greedy=True)
    figures = {**msgspec.to_builtins(sampled), "greedy_pass_rate": greedy.pass_rate}
    if arguments.json:
        print(json.dumps({"model": str(model_path), **figures}))
        return 0
    print(f"{model_path}: {sampled.n_prompts} held-out prompts × {sampled.n_samples} completions")
    print(f"  mean@{sampled.n_samples:<6} {sampled.pass_rate:.4f} ± {sampled.pass_rate_se:.4f}")
    for k, value in sampled.pass_at_k.items():
        print(f"  pass@{k:<6} {value:.4f}")
    print(f"  greedy      {greedy.pass_rate:.4f}")
    print(
        f"  truncated {sampled.truncation_rate:.1%}, interrupted {sampled.interruption_rate:.1%}, "
        f"mean length {sampled.mean_length:.1f} tokens, entropy {sampled.entropy:.4f} nats"
    )
    return 0
