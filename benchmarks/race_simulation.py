"""What a race saves against the full grid, and how often it picks the same winner, by simulation.

    python benchmarks/race_simulation.py [--write]

Scenarios are sets of variants with the published A, B and C_mid (arXiv 2510.13786; R0 = .40), runs
that differ by SD .0075 in A and .05 in log C_mid, evaluations with AR(1) noise .004/.5. Figure 2 of
the paper gives no C_mid: there all take ScaleRL's. Each trial runs the full grid; the race sees the
first part of the same curves at each of its rounds. `halving` stops the lower half by pass rate at
each round instead: what one would do without a fit.

Picked is the variant with the largest P(best ceiling); regret is the best true ceiling less that of
the picked one. Fits are the posterior of `scaling.fit` on a 28 × 28 grid without its rolling
origins, to keep a trial short.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scaling_simulation import SD, ar1, arguments, report

from scalerl import scaling
from scalerl.experiments import race
from scalerl.scaling.fit import interval, observed
from scalerl.scaling.posterior import draw
from scalerl.scaling.verdict import judge

FILE = "race_simulation.json"
R0, RUN_SD, RUN_SPEED_SD = 0.40, 0.0075, 0.05
ROUNDS, BOUND = (0.4, 0.6, 0.8, 1.0), 0.05

Truth = tuple[float, float, float]
"""A, B, C_mid."""

SCENARIOS: dict[str, dict[str, Any]] = {
    "leave one out (Fig. 7), 16k": {
        "end": 16000, "n": 58, "trials": {1: 60, 3: 25},
        "variants": {
            "ScaleRL": (0.610, 1.92, 2542), "prompt-lvl-adv": (0.590, 2.09, 2463),
            "length-penalty": (0.610, 1.68, 2660), "batch": (0.595, 1.84, 2503),
            "PPO-off-policy-8": (0.605, 1.89, 3409), "no-fp32": (0.610, 1.88, 2857),
            "sample-avg": (0.600, 1.93, 2621), "uniform": (0.605, 1.62, 2621),
            "dapo": (0.610, 1.77, 3093),
        },
    },
    "recipes (Fig. 2), 16k": {
        "end": 16000, "n": 58, "trials": {1: 60, 3: 25},
        "variants": {
            "ScaleRL": (0.610, 1.97, 2542), "MiniMax": (0.610, 1.77, 2542),
            "Magistral": (0.535, 1.44, 2542), "DAPO": (0.515, 1.85, 2542),
            "GRPO": (0.490, 1.17, 2542),
        },
    },
    "batch and completions (Table 1), 50k": {
        "end": 50000, "n": 60, "trials": {1: 60, 3: 25},
        "variants": {
            "ScaleRL": (0.610, 1.92, 2542), "bs512": (0.605, 1.77, 2818),
            "bs2048": (0.645, 1.70, 10909), "8gen": (0.585, 2.44, 2542),
            "24gen": (0.590, 2.22, 3054), "32gen": (0.595, 2.07, 2936),
        },
    },
}  # fmt: skip


def runs_of(
    truth: Truth, end: float, n: int, seeds: int, rng: np.random.Generator
) -> list[scaling.Curve]:
    """The runs of one variant, each with a ceiling and midpoint of its own."""
    A, B, C_mid = truth
    C = np.linspace(1500, end, n)
    noise = ar1(rng, seeds, n)
    curves: list[scaling.Curve] = []
    for i in range(seeds):
        own = A + RUN_SD * rng.standard_normal()
        mid = C_mid * float(np.exp(RUN_SPEED_SD * rng.standard_normal()))
        rates = scaling.sigmoid(C, A=own, B=B, C_mid=mid, R0=R0) + noise[i]
        step0 = R0 + SD * rng.standard_normal()
        curves.append(
            scaling.Curve(
                name=str(i), compute=C, pass_rate=rates, unit="gpu_hours", r0_observed=float(step0)
            )
        )
    return curves


def light_fit(curve: scaling.Curve, template: scaling.Fit) -> scaling.Fit:
    """The fit that a race asks for: draws of the posterior and the verdict that follows."""
    d = draw(observed(curve, template.settings), draws=1024, shape=(28, 28))
    A, B = interval(d, d.A), interval(d, d.B)
    reached = float(d.quantiles(d.fraction(curve.compute[-1:]))[1, 0])
    status, _ = judge(A, B, reached, fixed=False, at_ceiling=False, origins=())
    if status == "not_identified":
        A = replace(A, estimate=None)
    return replace(template, draws=d, A=A, status=status, data=curve, n_points=len(curve))


def pick(chances: Mapping[str, float | None]) -> str:
    return max(chances, key=lambda name: chances[name] or 0.0)


def race_once(
    curves: Mapping[str, Sequence[scaling.Curve]], end: float, template: scaling.Fit
) -> dict[str, Any]:
    """One trial: race, full grid and halving on the same curves."""
    alive, halved = list(curves), list(curves)
    spent = dict.fromkeys(curves, 1.0)
    spent_halving = dict.fromkeys(curves, 1.0)
    fits: dict[str, list[scaling.Fit]] = {}
    for share in ROUNDS:
        cut = {n: [c.window(max_compute=share * end) for c in curves[n]] for n in curves}
        if share == ROUNDS[-1]:
            break
        fits = {n: [light_fit(c, template) for c in cut[n]] for n in alive}
        decisions = race.decide(race.p_best(fits), BOUND)
        for name, (_, goes_on) in decisions.items():
            if not goes_on:
                alive.remove(name)
                spent[name] = share
        level = {n: np.mean([c.pass_rate[-3:].mean() for c in cut[n]]) for n in halved}
        keep = sorted(halved, key=lambda n: -level[n])[: max(1, (len(halved) + 1) // 2)]
        for name in set(halved) - set(keep):
            halved.remove(name)
            spent_halving[name] = share
    full = {n: [light_fit(c, template) for c in curves[n]] for n in curves}
    level = {n: np.mean([c.pass_rate[-3:].mean() for c in curves[n]]) for n in halved}
    return {
        "grid": pick(race.p_best(full)),
        "race": pick(race.p_best({n: full[n] for n in alive})),
        "halving": max(level, key=lambda n: level[n]),
        "spent": float(np.mean(list(spent.values()))),
        "spent_halving": float(np.mean(list(spent_halving.values()))),
        "alive": alive,
    }


def simulate(scenario: Mapping[str, Any], seeds: int, trials: int) -> dict[str, Any]:
    """Many trials of a scenario, summed up."""
    variants: dict[str, Truth] = scenario["variants"]
    best = max(A for A, _, _ in variants.values())
    rng = np.random.default_rng(11)
    template = scaling.fit(runs_of(variants["ScaleRL"], 16000, 58, 1, rng)[0])
    outcomes: list[dict[str, Any]] = []
    began = time.perf_counter()
    for _ in range(trials):
        curves = {
            n: runs_of(t, scenario["end"], scenario["n"], seeds, rng) for n, t in variants.items()
        }
        outcomes.append(race_once(curves, scenario["end"], template))

    def regret(kind: str) -> float:
        return float(np.mean([best - variants[o[kind]][0] for o in outcomes]))

    def right(kind: str) -> float:
        return float(np.mean([variants[o[kind]][0] == best for o in outcomes]))

    return {
        "variants": len(variants),
        "seeds": seeds,
        "trials": trials,
        "saved_compute": round(1 - float(np.mean([o["spent"] for o in outcomes])), 3),
        "same_winner_as_grid": round(float(np.mean([o["race"] == o["grid"] for o in outcomes])), 3),
        "picks_a_best_ceiling": {k: round(right(k), 3) for k in ("race", "grid", "halving")},
        "regret": {k: round(regret(k), 5) for k in ("race", "grid", "halving")},
        "saved_by_halving": round(1 - float(np.mean([o["spent_halving"] for o in outcomes])), 3),
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    args = arguments(__doc__ or "", FILE)
    result: dict[str, Any] = {
        "rounds": ROUNDS,
        "bound": BOUND,
        "noise": {"sd": SD, "rho": 0.5, "run_sd": RUN_SD, "run_speed_sd": RUN_SPEED_SD},
    }
    for name, scenario in SCENARIOS.items():
        for seeds, trials in scenario["trials"].items():
            key = f"{name}, {seeds} seed{'s' if seeds > 1 else ''}"
            result[key] = simulate(scenario, seeds, trials)
            print(key, result[key], flush=True)
    report(result, FILE, write=args.write)


if __name__ == "__main__":
    main()
