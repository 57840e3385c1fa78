"""Our losses equal TRL's own, called on the same tensors, wherever the definitions coincide."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip(
    "trl", reason="TRL is not installed: `pip install trl==1.16.0` runs the peer comparison"
)

CASES = (
    "cispo, token",
    "cispo, prompt",
    "dapo, token",
    "dapo, prompt",
    "grpo, sample",
    "grpo, token",
    "gspo, sample",
)


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    """The benchmark's module: its way of calling TRL is the one tested."""
    path = Path(__file__).parents[3] / "benchmarks" / "loss_peer_agreement.py"
    spec = importlib.util.spec_from_file_location("loss_peer_agreement", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_trl(peer: ModuleType, name: str) -> None:
    found = peer.agreement(name, torch.float64, seeds=5)
    assert found["value_relative_difference"] < 1e-10
    assert found["gradient_relative_difference"] < 1e-10
    assert found["control_gradient_relative_difference"] > 1e-3
    assert found["tokens_at_a_bound"] > 50
    assert found["trained_tokens"] - found["tokens_at_a_bound"] > 50


def test_every_case_of_the_benchmark_is_tested(peer: ModuleType) -> None:
    assert tuple(peer.CASES) == CASES
