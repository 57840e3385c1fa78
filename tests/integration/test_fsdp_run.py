"""Whole runs with a sharded trainer: spawned ranks, torchrun, and a resume on fewer."""

import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from test_learning import Quiet

from scalerl.config import dump_toml, load_config
from scalerl.pipeline.records import current_rows
from scalerl.pipeline.session import run_new, run_on

MODEL = "checkpoints/step-000003/model/model.safetensors"


def close(a, b) -> None:
    """Equal but for the order of sums: three steps of lr 5e-4 apart by a hundredth of one."""
    one, two = load_file(a / MODEL), load_file(b / MODEL)
    assert one.keys() == two.keys()
    for name, weight in one.items():
        assert (weight - two[name]).abs().max() <= 5e-6, name


@pytest.fixture
def alone(tmp_path, starts, small_config):
    run_new(small_config("--regime.type=synchronous"), tmp_path / "alone", Quiet(), starts=starts)
    return tmp_path / "alone"


def test_two_spawned_ranks_train_as_one_process_and_a_run_goes_on_with_one(
    alone, tmp_path, starts, small_config
):
    how = ("--regime.type=synchronous", "--execution.trainer_ranks=2")
    two = small_config(*how)
    assert run_new(two, tmp_path / "two", Quiet(), starts=starts) == "done"
    close(alone, tmp_path / "two")
    longer = small_config("--regime.type=synchronous", "--steps=4")
    assert run_on(tmp_path / "two", Quiet(), starts=starts, config=longer) == "done"
    rows = current_rows(tmp_path / "two" / "steps.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


def test_torchrun_gives_the_same_run(alone, tmp_path, starts, small_config):
    file = tmp_path / "run.toml"
    file.write_text(dump_toml(small_config("--regime.type=synchronous")))
    assert load_config([file]) == small_config("--regime.type=synchronous")
    launch = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    train = ["-m", "scalerl", "train", str(file), "--plain", "--run-dir", str(tmp_path / "two")]
    done = subprocess.run(
        [sys.executable, *launch, *train, "--starts", str(starts)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    close(alone, tmp_path / "two")


def test_lora_trains_adapters_only_and_resumes(tmp_path, starts, small_config):
    pytest.importorskip("peft")
    how = ("--regime.type=synchronous", "--model.lora.rank=4", "--checkpoint.every=3")
    path = tmp_path / "run"
    assert run_new(small_config(*how), path, Quiet(), starts=starts) == "done"
    rows = [row for row in current_rows(path / "steps.jsonl") if row["skip_reason"] is None]
    assert rows
    for row in rows:  # generators had the merged weights
        assert row["equal_weights_mismatch_max"] <= 1e-4
    start = load_file(next(starts.glob("start-*")) / "model.safetensors")
    trained = load_file(path / MODEL)
    assert start.keys() == trained.keys()
    moved = {n for n, w in trained.items() if not w.equal(start[n])}
    assert moved
    assert all(n.endswith("proj.weight") for n in moved)
    assert run_on(path, Quiet(), starts=starts, config=small_config(*how, "--steps=6")) == "done"
    straight = tmp_path / "straight"
    run_new(small_config(*how, "--steps=6"), straight, Quiet(), starts=starts)
    model = "checkpoints/step-000006/model/model.safetensors"
    assert (path / model).read_bytes() == (straight / model).read_bytes()
