"""The precision axis is real: with a large vocabulary the FP32 head changes the mismatch."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import head_precision


@pytest.fixture(scope="module")
def mismatch() -> dict[str, float]:
    torch.set_num_threads(1)
    low, full = torch.bfloat16, torch.float32
    measured = {
        "neither": head_precision.mismatch(low, head_train=False, head_gen=False),
        "both": head_precision.mismatch(low, head_train=True, head_gen=True),
        "trainer only": head_precision.mismatch(low, head_train=True, head_gen=False),
        "fp32": head_precision.mismatch(full, head_train=True, head_gen=True),
    }
    return {name: figures["mean"] for name, figures in measured.items()}


def test_fp32_head_on_both_sides_brings_the_mismatch_down(mismatch):
    assert mismatch["neither"] > 1.1 * mismatch["both"]


def test_fp32_head_on_one_side_alone_is_worse_than_on_neither(mismatch):
    assert mismatch["trainer only"] > mismatch["neither"]


def test_fp32_throughout_agrees_to_1e_5(mismatch):
    assert mismatch["fp32"] <= 1e-5
