"""Two ranks over gloo against one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sharded_ranks
import torch

from scalerl.model.load import load_model
from scalerl.train.sharded import send  # noqa: F401  (importable without a process group)

EXACT = [case for case in sharded_ranks.CASES if case != "bfloat16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, dict]:
    pytest.importorskip("peft")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, sharded_ranks.__file__]
    words = ["2", str(folder / "meeting"), str(folder), *sharded_ranks.CASES]
    follower = subprocess.Popen([*command, "1", *words], env=environment)
    try:
        out = subprocess.run(
            [*command, "0", *words], env=environment, stdout=subprocess.PIPE, check=True
        )
        assert follower.wait(60) == 0
    finally:
        follower.kill()
        follower.wait()
    return json.loads(out.stdout)


@pytest.mark.parametrize("case", EXACT)
def test_gradients_equal_those_of_one_process(found, case):
    assert found[case]["gradient"] <= 1e-6


@pytest.mark.parametrize("case", EXACT)
def test_steps_clip_and_publish_as_one_process_does(found, case):
    for a, b in [*found[case]["norms"], *found[case]["losses"]]:
        assert b == pytest.approx(a, rel=1e-5)
    for alone, sharded in found[case]["tokens"]:
        assert sharded == pytest.approx(alone, abs=2e-5)  # every trained token came back
    assert found[case]["names_equal"]
    assert found[case]["dtypes_equal"]
    assert found[case]["weights"] <= 1e-3  # learning rates


def test_bfloat16_weights_over_fp32_shards_agree_as_far_as_bfloat16_goes(found):
    seen = found["bfloat16"]
    assert seen["names_equal"]
    assert seen["dtypes_equal"]
    assert 1e-4 < seen["gradient"] < 3e-2
    for a, b in seen["norms"]:
        assert b == pytest.approx(a, rel=2e-3)


@pytest.mark.parametrize("case", sharded_ranks.CASES)
def test_a_checkpoint_goes_on_bit_for_bit_and_on_another_number_of_ranks(found, case):
    seen = found[case]
    assert seen["again"] == seen["after"]
    assert seen["weights_again"] == seen["weights_after"]
    assert seen["alone"] == pytest.approx(seen["after"], rel=2e-3 if case == "bfloat16" else 1e-5)
    alone, sharded = seen["from_one"]
    assert sharded == pytest.approx(alone, rel=2e-3 if case == "bfloat16" else 1e-5)


@pytest.mark.parametrize("case", ["plain", "tied", "bfloat16", "experts", "lora"])
def test_the_export_is_a_folder_that_transformers_loads(found, folder, case):
    dtype = "bfloat16" if case == "bfloat16" else "float32"
    model = load_model(folder / case / "model", dtype)
    with torch.no_grad():
        logits = model(torch.tensor([[2, 3, 4]])).logits
    assert torch.isfinite(logits).all()
    assert not any("lora" in name for name, _ in model.named_parameters())
    if case == "tied":
        assert model.lm_head.weight is model.model.embed_tokens.weight
