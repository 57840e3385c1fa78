"""The device that a setting names, and which one each process opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scalerl.config import Config
from scalerl.errors import InputError
from scalerl.model import attention
from scalerl.model.attention import training_attention
from scalerl.model.device import open_device
from scalerl.model.load import load_model, save_model
from scalerl.model.tiny import tiny_model
from scalerl.pipeline.devices import generator_device, trainer_device


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """`cards(n)`: torch believes in n cards; the list says which were opened."""
    opened: list[int] = []

    def believe(count: int) -> list[int]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", opened.append)
        return opened

    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    return believe


def config_of(device: str, **execution: object) -> Config:
    return Config.model_validate({"execution": {"device": device, **execution}})


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cpu:0", "mps", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not cpu, cuda or cuda:N"):
        config_of(name)


def test_a_card_where_torch_has_none_is_refused_with_the_key(cards) -> None:
    cards(0)
    assert open_device("cpu") == torch.device("cpu")
    for name in ("cuda", "cuda:0"):
        with pytest.raises(InputError, match=rf"execution\.device = '{name}': torch .* no CUDA"):
            open_device(name)
    with pytest.raises(InputError, match=r"execution\.device = 'cuda': torch"):
        trainer_device(config_of("cuda"))


def test_a_card_becomes_the_process_s_own(cards) -> None:
    opened = cards(2)
    assert open_device("cuda:1") == torch.device("cuda", 1)
    assert open_device("cuda") == torch.device("cuda", 0)
    assert opened == [1, 0]
    with pytest.raises(InputError, match=r"'cuda:2': no cuda:2, torch sees 2 CUDA"):
        open_device("cuda:2")


def test_ranks_take_the_first_cards_and_generators_those_left(cards, monkeypatch) -> None:
    cards(4)
    config = config_of("cuda", trainer_ranks=2, generators=3)
    assert trainer_device(config) == torch.device("cuda", 0)
    assert [generator_device(config, i) for i in range(3)] == ["cuda:2", "cuda:3", "cuda:2"]
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert trainer_device(config) == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert generator_device(config, 1) == "cuda:3"


def test_where_no_card_is_left_they_share(cards) -> None:
    cards(2)
    config = config_of("cuda", trainer_ranks=2, generators=2)
    assert [generator_device(config, i) for i in range(2)] == ["cuda:0", "cuda:1"]
    assert generator_device(config_of("cuda", mode="interleaved"), 1) == "cuda:0"
    assert generator_device(config_of("cuda:1"), 5) == "cuda:1"
    assert generator_device(config_of("cpu"), 5) == "cpu"


@pytest.mark.parametrize(
    ("name", "device", "weights", "reason"),
    [
        ("flash_attention_2", "cpu", "bfloat16", "needs a card"),
        ("flex_attention", "cpu", "float32", "needs a card"),
        ("flash_attention_2", "cuda:0", "bfloat16", "needs the package flash-attn"),
    ],
)
def test_an_attention_that_cannot_run_here_is_refused_with_the_reason(
    name: str, device: str, weights: str, reason: str
) -> None:
    with pytest.raises(InputError, match=rf"model\.attention = '{name}' {reason}"):
        training_attention(name, torch.device(device), weights)


def test_flash_attention_is_for_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "is_flash_attn_2_available", lambda: True)
    card = torch.device("cuda", 0)
    assert training_attention("flash_attention_2", card, "bfloat16") == "flash_attention_2"
    with pytest.raises(InputError, match=r"no kernels for float32"):
        training_attention("flash_attention_2", card, "float32")
    assert training_attention("flex_attention", card, "float32") == "flex_attention"
    assert training_attention("sdpa", torch.device("cpu"), "float32") is None


def test_the_attention_of_a_setting_is_the_loaded_model_s(tmp_path: Path) -> None:
    save_model(tiny_model(seed=0), tmp_path / "model")
    for name in ("sdpa", "flex_attention"):
        model = load_model(tmp_path / "model", attention=name)
        assert model.config._attn_implementation == name


def test_ranks_need_a_card_each(cards) -> None:
    cards(2)
    with pytest.raises(InputError, match=r"trainer_ranks = 3: each needs a card.* sees 2"):
        trainer_device(config_of("cuda", trainer_ranks=3))
    with pytest.raises(ValueError, match=r"one card, and trainer_ranks = 2"):
        config_of("cuda:1", trainer_ranks=2)
