"""`scalerl doctor` says what is there and what to do, and imports nothing heavy."""

import subprocess
import sys
from pathlib import Path

from scalerl.cli import doctor


def test_reports_every_line_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from scalerl.cli.main import main; status = main(['doctor'])\n"
        "heavy = {'torch','transformers','numpy','scipy','vllm','ray','pydantic'}\n"
        "print(sorted(heavy & set(sys.modules))); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines.pop() == "[]"
    names = [line[:14].strip() for line in lines]
    for name in (
        "python",
        "torch",
        "GPUs",
        "transformers",
        "vllm",
        "ray",
        "[train]",
        "bubblewrap",
        "landlock",
        "memory",
        "disk here",
        "shared memory",
    ):
        assert names.count(name) == 1
    assert {line[14:19].strip() for line in lines} <= {"yes", "no", "NO"}


def test_torch() -> None:
    assert doctor.torch_finding(None, False).good is False
    assert doctor.torch_finding("2.13.0+cpu", False) == doctor.Finding(
        name="torch", good=True, found="2.13.0+cpu (cpu build)"
    )
    wrong_build = doctor.torch_finding("2.13.0+cpu", True)
    assert wrong_build.good is False
    assert "CUDA build" in wrong_build.advice
    assert doctor.torch_finding("2.13.0+cu130", True).good is True


def test_extras_name_what_is_missing() -> None:
    requires = [
        "numpy>=2.0",
        "torch>=2.9; extra == 'train'",
        'rich>=14; extra == "train"',
        "tensorboard>=2.18; extra == 'logs'",
    ]
    there = {"torch": "2.13", "tensorboard": "2.18"}
    train, logs = doctor.extras(requires, there.get)
    assert (train.good, train.found) == (None, "without rich")
    assert train.advice == "pip install 'scalerl[train]'"
    assert (logs.good, logs.found, logs.advice) == (True, "complete", "")


def test_memory_and_space(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:        4194304 kB\nMemAvailable:    1048576 kB\n")
    low = doctor.memory(meminfo)
    assert (low.good, low.found) == (False, "1.0 of 4.0 GiB free")
    assert doctor.memory(tmp_path / "none").good is None
    assert doctor.space("x", tmp_path, 0, "advice").advice == ""
    assert doctor.space("x", tmp_path, 1 << 60, "advice").advice == "advice"
    assert doctor.space("x", tmp_path / "none", 0, "advice").good is None


def test_gpus_without_a_driver(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.gpu_names() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA X, 81559 MiB, 80000 MiB'\n")
    tool.chmod(0o755)
    assert doctor.gpu_names() == ["NVIDIA X, 81559 MiB (80000 MiB free)"]
    tool.write_text("#!/bin/sh\necho 'no driver'; exit 9\n")
    assert doctor.gpu_names() == []
