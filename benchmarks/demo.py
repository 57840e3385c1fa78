"""The main job against its targets: wall time, memory of all processes together, evaluations, gain,
how greedy the start is, trainer against generator at equal weights, forecast.

    python benchmarks/demo.py [--write FILE.json]

Runs `scalerl demo` as a user does, with its own settings and with examples/short_budget.toml, each
in an empty folder, and reads what it left. Memory is the sum of proportional set sizes, twice a
second. Installation is not in the time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scalerl.pipeline.records import current_rows

SHORT = Path(__file__).parents[1] / "examples" / "short_budget.toml"
SCALERL = [sys.executable, "-m", "scalerl"]
TARGETS = {
    "seconds": "at most 360",
    "peak_mib": "at most 2048",
    "evaluations": "at least 16",
    "start": ".15 to .40",
    "greedy_start": "at most .15 above the start",
    "gain": "at least .40 (short budget: ends below .9)",
    "mismatch_max": "at most 1e-5",
}


def tree(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue  # it ended while we looked
    return found


def memory_kib(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(found.group(1)) if (found := re.search(r"^Pss:\s+(\d+)", text, re.M)) else 0
    return total


def watched(words: list[str]) -> tuple[str, float, float]:
    """What a command prints, its seconds, and the most memory it had, MiB."""
    began, peak = time.monotonic(), 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as out:
        with subprocess.Popen(words, stdout=out, env=environment) as process:
            while process.poll() is None:
                peak = max(peak, memory_kib(tree(process.pid)))
                time.sleep(0.5)
        seconds = time.monotonic() - began
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
        out.seek(0)
        return out.read(), seconds, peak / 1024


def measure(folder: Path, *configs: str) -> dict[str, Any]:
    """One demo in `folder`, and what it left there."""
    words = [*SCALERL, "demo", *configs, "--dir", str(folder), "--plain"]
    said, seconds, peak = watched(words)
    run = folder / "run-1"
    curve, steps = current_rows(run / "curve.jsonl"), current_rows(run / "steps.jsonl")
    (start,) = (p for p in (folder / "starts").iterdir() if p.is_dir())
    evaluate = [*SCALERL, "eval", str(start), str(run / "config.toml"), "--json"]
    greedy = json.loads(subprocess.check_output(evaluate))["greedy_pass_rate"]
    rates = [row["pass_rate"] for row in curve]
    gaps = [row["equal_weights_mismatch_max"] for row in steps]
    inside = re.search(r"(\d+) of (\d+) later evaluations", said)
    return {
        "seconds": round(seconds, 1),
        "peak_mib": round(peak),
        "evaluations": len(curve),
        "start": round(rates[0], 4),
        "greedy_start": round(greedy, 4),
        "end": round(rates[-1], 4),
        "gain": round(rates[-1] - rates[0], 4),
        "mismatch_max": max(gap for gap in gaps if gap is not None),
        "tokens_trained": curve[-1]["tokens_trained"],
        "later_inside_the_band": f"{inside[1]} of {inside[2]}" if inside else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="JSON file for the figures")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"targets": TARGETS, "load_before": round(os.getloadavg()[0], 2)}
    for name, configs in (("demo", ()), ("short budget", (str(SHORT),))):
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = measure(Path(folder), *configs)
        print(name, json.dumps(figures[name], indent=2), flush=True)
    if arguments.write:
        arguments.write.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
