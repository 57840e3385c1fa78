"""Simulated runs at the paper's settings, shared by the scaling benchmarks.

Noise: an evaluation of mean@16 on 1,000 prompts has SD .004, and neighbours correlate at .5.
"""

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import numpy as np

from scalerl.scaling import Curve, sigmoid

SD, RHO = 0.004, 0.5
BASELINES = Path(__file__).parent / "baselines"

SCENARIOS: dict[str, dict[str, float]] = {
    # Table 1 ScaleRL, evaluations as in the batch-768 figures
    "batch 768 to 7.7k": {
        "A": 0.610, "B": 1.92, "C_mid": 2542, "R0": 0.40, "low": 1500, "high": 7700, "n": 24,
    },
    # Table 1 ScaleRL-bs2048, the part of the 100k run that was fitted
    "batch 2048 to 50k": {
        "A": 0.645, "B": 1.70, "C_mid": 10909, "R0": 0.40, "low": 1500, "high": 50000, "n": 60,
    },
    # Figure 7 LOO-dapo, a leave-one-out run
    "leave one out to 16k": {
        "A": 0.610, "B": 1.77, "C_mid": 3093, "R0": 0.40, "low": 1500, "high": 16000, "n": 58,
    },
}  # fmt: skip


def ar1(
    rng: np.random.Generator, runs: int, n: int, sd: float = SD, rho: float = RHO
) -> np.ndarray:
    """Stationary AR(1) noise, [runs, n]."""
    noise = rng.standard_normal((runs, n))
    for i in range(1, n):
        noise[:, i] = rho * noise[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
    return sd * noise


def simulate(scenario: dict[str, float], runs: int, rng: np.random.Generator) -> list[Curve]:
    """Runs of one scenario, each with its own step-0 evaluation."""
    n = int(scenario["n"])
    C = np.linspace(scenario["low"], scenario["high"], n)
    truth = sigmoid(C, **{k: scenario[k] for k in ("A", "B", "C_mid", "R0")})
    rates = truth + ar1(rng, runs, n)
    step0 = scenario["R0"] + SD * rng.standard_normal(runs)
    return [
        Curve(
            name=f"run {i}", compute=C, pass_rate=rates[i], unit="gpu_hours", r0_observed=step0[i]
        )
        for i in range(runs)
    ]


def arguments(description: str, file: str) -> argparse.Namespace:
    """`--write` saves the result as the committed baseline."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--write", action="store_true", help=f"write baselines/{file}")
    return parser.parse_args()


def report(result: dict[str, Any], file: str, *, write: bool) -> None:
    """Print the result, and save it beside the others when asked."""
    result["machine"] = {"cores": os.cpu_count(), "python": platform.python_version()}
    text = json.dumps(result, indent=1)
    print(text)
    if write:
        (BASELINES / file).write_text(text + "\n")
