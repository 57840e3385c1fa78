"""`scalerl doctor`: what this machine can run, one line a thing: yes or no, and what to do.

Packages are looked up by their metadata; GPUs are asked of the driver's own tool, and of torch
where that has any.
The sandbox is tried with a real program.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

HELP = "Say what this machine can run: packages, GPUs, sandbox for code answers, memory and disk."

_GIB = 1 << 30
_SHM_NEEDED = 1 * _GIB  # container engines give 64 MiB unless asked; weights go through it
_DISK_NEEDED = 5 * _GIB
_MEMORY_NEEDED = 2 * _GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    name: str
    good: bool | None  # None: optional, and not there
    found: str
    advice: str = ""  # what to do, where it is not good


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plan", metavar="CONFIG", help="memory of a run with these settings, part by part"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.plan:
        return _plan(Path(arguments.plan))
    for finding in findings():
        mark = {True: "yes", False: "NO", None: "no"}[finding.good]
        advice = f": {finding.advice}" if finding.advice else ""
        print(f"{finding.name:<14}{mark:<5}{finding.found}{advice}", flush=True)
    return 0


def _plan(file: Path) -> int:
    """The memory of a run on paper; exit code 1 where it does not fit this machine."""
    from scalerl.config import load_config
    from scalerl.experiments.plan import available_memory, lines_of, make_plan, model_config

    config = load_config([file])
    plan, available = make_plan(config, model_config(config)), available_memory()
    print("\n".join(lines_of(plan, available)))
    return 0 if available is None or plan.machine <= available else 1


def findings() -> Iterator[Finding]:
    """All lines, each looked up when its turn comes."""
    gpus = gpu_names()
    yield Finding(
        name="python",
        good=True,
        found=f"{platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores",
    )
    torch = torch_finding(version_of("torch"), bool(gpus))
    yield torch
    yield Finding(
        name="GPUs",
        good=True if gpus else None,
        found="; ".join(gpus) or "none; everything also runs on the CPU",
    )
    if gpus and torch.good:
        yield cards_of_torch()
    yield package("transformers", "pip install 'scalerl[train]'", needed=True)
    yield package("vllm", "for generation on GPUs: pip install vllm")
    yield package("ray", "for several machines: pip install ray")
    yield from extras(importlib.metadata.requires("scalerl") or [], version_of)
    yield from sandboxes()
    yield memory(Path("/proc/meminfo"))
    yield space("disk here", Path.cwd(), _DISK_NEEDED, "checkpoints and logs need room")
    yield space(
        "shared memory",
        Path("/dev/shm"),
        _SHM_NEEDED,
        "in a container: --shm-size=8g or --ipc=host",
    )


def version_of(name: str) -> str | None:
    """Version of an installed package, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:  # not installed: that is an answer
        return None


def torch_finding(version: str | None, gpu_there: bool) -> Finding:
    if version is None:
        advice = "training needs it: pip install 'scalerl[train]'; fit, compare and report do not"
        return Finding(name="torch", good=False, found="not installed", advice=advice)
    _, _, build = version.partition("+")
    if gpu_there and build == "cpu":
        advice = "this build cannot use the GPUs: install a CUDA build of torch"
        return Finding(name="torch", good=False, found=version, advice=advice)
    return Finding(name="torch", good=True, found=f"{version} ({build or 'default'} build)")


def cards_of_torch() -> Finding:
    """The CUDA devices that a run can name; asked only where the driver has some, because torch
    takes seconds to import."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count)]
    advice = "" if names else "torch sees none of the GPUs: driver and CUDA build do not match"
    return Finding(
        name="CUDA", good=bool(names), found="; ".join(names) or "no device", advice=advice
    )


def gpu_names() -> list[str]:
    """Name and memory of every NVIDIA GPU, as its driver's tool says; empty without one."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):  # a tool that cannot answer: no GPU to use
        return []
    if done.returncode != 0:
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(", ") == 2]
    return [f"{name}, {total} ({free} free)" for name, total, free in rows]


def package(name: str, advice: str, *, needed: bool = False) -> Finding:
    version = version_of(name)
    if version is not None:
        return Finding(name=name, good=True, found=version)
    return Finding(name=name, good=False if needed else None, found="not installed", advice=advice)


def extras(requires: list[str], version: Callable[[str], str | None]) -> Iterator[Finding]:
    """Whether each extra of this package is there whole; `requires` as in its metadata."""
    wanted: dict[str, list[str]] = {}
    for line in requires:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if name and extra:
            wanted.setdefault(extra[1], []).append(name[0])
    for extra, names in wanted.items():
        missing = [name for name in names if version(name) is None]
        advice = f"pip install 'scalerl[{extra}]'" if missing else ""
        found = f"without {', '.join(missing)}" if missing else "complete"
        yield Finding(name=f"[{extra}]", good=None if missing else True, found=found, advice=advice)


def sandboxes() -> Iterator[Finding]:
    """Where model-written code can run, by a real try of each kind."""
    from scalerl.rewards.sandbox_probe import try_kind

    trials = [try_kind("bubblewrap"), try_kind("landlock")]
    best = next((t.kind for t in trials if t.works), None)
    advice = {
        "bubblewrap": "install bubblewrap, and allow user namespaces where they are off",
        "landlock": "needs Linux 6.2 or later with Landlock on",
    }
    for trial in trials:
        used = ", used for code answers" if trial.kind == best else ""
        good = True if trial.works else (None if best else False)
        yield Finding(
            name=trial.kind,
            good=good,
            found=trial.detail + used,
            advice="" if trial.works else advice[trial.kind],
        )


def memory(meminfo: Path) -> Finding:
    try:
        text = meminfo.read_text()
    except OSError:  # not Linux
        return Finding(name="memory", good=None, found="not known on this system")
    sizes = {name: int(kib) << 10 for name, kib in re.findall(r"(\w+):\s+(\d+) kB", text)}
    free, total = sizes.get("MemAvailable", 0), sizes.get("MemTotal", 0)
    enough = free >= _MEMORY_NEEDED
    return Finding(
        name="memory",
        good=enough,
        found=f"{free / _GIB:.1f} of {total / _GIB:.1f} GiB free",
        advice="" if enough else "the default run needs about 2 GiB",
    )


def space(name: str, folder: Path, needed: int, advice: str) -> Finding:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # no such folder on this system
        return Finding(name=name, good=None, found=f"{folder} is not there")
    enough = usage.free >= needed
    return Finding(
        name=name,
        good=enough,
        found=f"{usage.free / _GIB:.1f} of {usage.total / _GIB:.1f} GiB free",
        advice="" if enough else advice,
    )
