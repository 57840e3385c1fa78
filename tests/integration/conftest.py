from __future__ import annotations

from pathlib import Path

import pytest
from training_runs import SETTINGS, Settings, make_start

from scalerl.config import Config, load_config


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The start model of the small runs, made once."""
    import torch

    torch.set_num_threads(1)
    return make_start(tmp_path_factory.mktemp("start") / "model")


@pytest.fixture
def settings(tmp_path: Path, start: Path) -> Settings:
    """Settings of a small interleaved run; later words win."""
    file = tmp_path / "small.toml"
    file.write_text(SETTINGS)

    def make(*words: str) -> Config:
        inline = ["--execution.mode", "interleaved", "--model.path", str(start)]
        return load_config([file], overrides=[*inline, *words])

    return make
