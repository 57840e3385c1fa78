"""What the sandbox costs a program, and that 2,000 programs in a row leave nothing behind.

    python benchmarks/sandbox_overhead.py [--rounds 200] [--realtime] [--write FILE.json]

Overhead: wall time from the call to the verdict's raw material for a program that prints one line,
through a warm worker, against three things in the same rounds: a bare fork and exit of this process
(the floor), a new interpreter without any sandbox (``python -S -c``), and a sandbox made for one
program (cold). Rounds alternate, and figures are quantiles over rounds: the lower ones are what the
sandbox costs, the upper ones what other work on the machine adds. `--realtime` (root) times with
the cores to itself on a machine that is busy otherwise. "pause" rounds leave the worker 20 ms to
make the next process ready, as checks between samples do; "at once" rounds do not.

Leaks: one worker runs the programs; one in ten is hostile (endless, or it floods its output). The
files, processes and memory of this process and its worker are counted after the first hundred and
at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalerl.rewards.sandbox import Kind, Limits, Sandbox
from scalerl.rewards.sandbox_launch import interpreter
from scalerl.rewards.sandbox_probe import try_kind

PROGRAM = "print(sum(map(int, input().split())))"
FUNCTION = "def total(v): return sum(v)"
HOSTILE = (
    "while True: pass",
    "while True: print('x' * 1000)",
    "import signal\nsignal.signal(15, signal.SIG_IGN)\nwhile True: pass",
    "l = [0]\nwhile True: l += l",
)


def milliseconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3


def bare_fork() -> None:
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def new_interpreter() -> None:
    done = subprocess.run(
        [interpreter(), "-S", "-c", PROGRAM], input=b"1 2 3\n", capture_output=True, check=True
    )
    assert done.stdout == b"6\n"


def run_once(sandbox: Sandbox) -> None:
    run = sandbox.run_script(PROGRAM, b"1 2 3\n", expected_bytes=2)
    assert (run.end, run.stdout) == ("exit", b"6\n"), run


def call_once(sandbox: Sandbox) -> None:
    run = sandbox.run_calls(FUNCTION, "total", [[[1, 2, 3]]], expected_bytes=9)
    assert run.values == (6,), run


def cold(kind: Kind) -> None:
    with Sandbox(kind=kind, limits=Limits()) as sandbox:
        run_once(sandbox)


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    shares = {"p10_ms": 0.1, "median_ms": 0.5, "p90_ms": 0.9}
    return {name: round(ordered[int(q * (len(ordered) - 1))], 2) for name, q in shares.items()}


def overhead(kind: Kind, rounds: int) -> dict[str, Any]:
    with Sandbox(kind=kind, limits=Limits()) as sandbox:
        run_once(sandbox)
        actions: dict[str, Callable[[], Any]] = {
            "warm_program_after_a_pause": lambda: run_once(sandbox),
            "warm_program_at_once": lambda: run_once(sandbox),
            "warm_call_at_once": lambda: call_once(sandbox),
            "bare_fork": bare_fork,
            "new_interpreter": new_interpreter,
        }
        times: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(rounds):
            time.sleep(0.02)
            for name, action in actions.items():
                times[name].append(milliseconds(action))
    result: dict[str, Any] = {name: quantiles(values) for name, values in times.items()}
    result["cold_sandbox"] = quantiles([milliseconds(lambda: cold(kind)) for _ in range(20)])
    return result


def below(pid: int) -> list[Path]:
    """Folders in /proc of every process below `pid`."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
                continue
            parents[int(folder.name)] = int(fields[1])
    found: list[int] = []
    grown = {pid}
    while grown:
        grown = {p for p, parent in parents.items() if parent in grown}
        found += grown
    return [Path(f"/proc/{p}") for p in sorted(found)]


def kib(status: Path) -> int:
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def census() -> dict[str, int]:
    """What this process and its worker hold, once the worker is at rest."""
    time.sleep(1.0)
    processes = below(os.getpid())
    states = [(p / "stat").read_text().rpartition(")")[2].split()[0] for p in processes]
    return {
        "own_descriptors": len(os.listdir("/proc/self/fd")),
        "worker_descriptors": sum(len(os.listdir(p / "fd")) for p in processes),
        "processes": len(processes),
        "zombies": states.count("Z"),
        "temporary_files": len(os.listdir(tempfile.gettempdir())),
        "own_memory_kib": kib(Path("/proc/self/status")),
        "worker_memory_kib": sum(kib(p / "status") for p in processes),
    }


def leaks(kind: Kind, programs: int) -> dict[str, Any]:
    limits = Limits(time_s=0.1, memory_bytes=256 << 20)
    ends: dict[str, int] = {}
    first: dict[str, int] = {}
    started = time.perf_counter()
    with Sandbox(kind=kind, limits=limits) as sandbox:
        for i in range(programs):
            hostile = i % 10 == 9
            source = HOSTILE[i // 10 % len(HOSTILE)] if hostile else PROGRAM
            run = sandbox.run_script(source, b"1 2 3\n", expected_bytes=2)
            end = f"{'hostile' if hostile else 'honest'} {run.end} {run.status}"
            ends[end] = ends.get(end, 0) + 1
            if i == 99:
                first = census()
        last = census()
    return {
        "programs": programs,
        "seconds": round(time.perf_counter() - started, 1),
        "ends": ends,
        "after_100": first,
        "at_the_end": last,
        "processes_after_close": len(below(os.getpid())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "what": "cost of a program in the warm sandbox, and what many leave behind",
        "rounds": arguments.rounds,
        "realtime": arguments.realtime,
        "cores": os.cpu_count(),
        "load_average_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "kernel": platform.release().partition("-")[0],
    }
    kinds: tuple[Kind, ...] = ("bubblewrap", "landlock")
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp()  # others' files are not counted
    for kind in kinds:
        trial = try_kind(kind)
        if not trial.works:
            result[kind] = trial.detail
            continue
        if arguments.realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
        cost = overhead(kind, arguments.rounds)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        result[kind] = {"overhead": cost, "leaks": leaks(kind, arguments.programs)}
    os.rmdir(tempfile.tempdir)  # fails where anything was left in it
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.write:
        arguments.write.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
