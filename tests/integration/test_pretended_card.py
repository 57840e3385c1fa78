"""`execution.device` is all that changes: the whole road on a pretended card (`pretended_card`).

No card was there: this finds tensors on the wrong side, not what CUDA's kernels compute.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("card_road.py")
CASES = ("plain", "bfloat16", "experts", "lora", "offloaded", "checkpointed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a minute on a free core


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("peft")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("card"))],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=850,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_pretended_card_notices_tensors_of_the_cpu(found):
    seen = found["mixing"]
    assert seen["caught"] == seen["all"]
    assert seen["kinds"] == [True, True, False, True]
    assert seen["sum"] == 3.0


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_the_engine_samples_the_same_tokens_and_takes_weights_from_the_cpu(found, kind):
    seen = found["engine"][kind]
    assert seen["same_tokens"]
    assert seen["same_static"]
    assert seen["apart"] < 1e-5
    assert seen["finished"]


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_the_cpu_and_a_checkpoint_goes_on_on_either(found, case):
    seen = found["trainer"][case]
    close = 1e-2 if case == "bfloat16" else 1e-5
    for pair in ("norms", "losses", "crossed"):
        here, there = seen[pair]
        assert there == pytest.approx(here, rel=close)
    assert seen["places"] == ["card:0"]


def test_a_run_its_resume_an_evaluation_and_sft_go_through(found):
    seen = found["road"]
    assert seen["steps"] == [1, 2, 3]
    assert seen["curve"] == [0, 2, 3]
    assert all(gap is None or gap < 1e-4 for gap in seen["mismatch"])
    assert seen["n_prompts"] == 4
    assert seen["sft"]
    assert set(seen["opened"]) == {"cuda", "cuda:0"}  # the trainers, and the generators
