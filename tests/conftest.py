"""A start model that several tests train from: made once a session, small and quick."""

from collections.abc import Callable
from pathlib import Path

import pytest

import scalerl  # noqa: F401  before torch: it tells MKL how to round

import torch  # isort: skip

from scalerl.config import Config, load_config
from scalerl.pipeline.start import make_start

torch.set_num_threads(1)

# The laptop experiment in seconds: short chains, few prompts, one process.
SMALL = """
steps = 3
[execution]
mode = "interleaved"
[data]
train_prompts = 120
validation_prompts = 24
max_operations = 3
[supervised]
steps = 250
[batch]
prompts = 4
completions = 8
rows_per_pass = 16
[sampling]
slots = 32
max_new_tokens = 28
[length]
low = 20
high = 22
[evaluation]
completions = 4
every = 100
[checkpoint]
every = 100
"""


@pytest.fixture(scope="session")
def small_config(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Config]:
    """`small_config("--key=value", ..., recipe=None)`: the small experiment, changed."""
    file = tmp_path_factory.mktemp("config") / "small.toml"
    file.write_text(SMALL)

    def load(*overrides: str, recipe: str | None = None) -> Config:
        return load_config([file], recipe=recipe, overrides=overrides)

    return load


@pytest.fixture(scope="session")
def starts(small_config: Callable[..., Config], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that holds the start model of every `small_config`."""
    folder = tmp_path_factory.mktemp("starts")
    make_start(small_config(), folder, lambda step, loss: None)
    return folder
