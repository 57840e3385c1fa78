"""Errors of comparisons: identical recipes called different, different ones told apart.

Two runs of the same recipe differ by a run-to-run SD of .0075 in A (and .03 in log C_mid) besides
evaluation noise. 400 pairs a case, fitted with R0 from step 0; the paper's rule (.02, then B at a
common ceiling) stands beside the posterior of the difference. 4,800 fits: some five minutes
on an idle core.
"""

import numpy as np
from scaling_simulation import SCENARIOS, arguments, report, simulate

from scalerl.scaling import compare

PAIRS = 400
RUN_SD, RUN_SPEED = 0.0075, 0.03
FILE = "scaling_compare.json"
CASES = {
    "identical": (0.0, 1.0, 1),
    "b higher by .03": (0.03, 1.0, 2),
    "b faster by 1.3": (0.0, 1 / 1.3, 3),
}


def pairs(name: str, delta_A: float, speed: float, seed: int) -> dict[str, float]:
    """Decisions on pairs whose second recipe has a ceiling delta_A higher and C_mid times speed."""
    rng = np.random.default_rng(seed)
    base = SCENARIOS[name]
    paper, paper_ceiling, ours, faster, held, expected = [], [], [], [], [], []
    for _ in range(PAIRS):
        runs = []
        for k in (0, 1):
            own = {
                **base,
                "A": base["A"] + k * delta_A + RUN_SD * rng.standard_normal(),
                "C_mid": base["C_mid"]
                * (speed if k else 1.0)
                * np.exp(RUN_SPEED * rng.standard_normal()),
            }
            runs.append(simulate(own, 1, rng))
        pair = compare({"a": runs[0], "b": runs[1]}).pairs[0]
        paper.append(pair.paper.winner)
        paper_ceiling.append(pair.paper.by == "ceiling")
        expected.append(pair.paper.false_positive)
        ours.append(pair.higher_ceiling)
        faster.append(pair.faster)
        held.append(pair.delta_A.low <= -delta_A <= pair.delta_A.high)
    return {
        "paper's margin calls the ceilings different": float(np.mean(paper_ceiling)),
        "paper's margin, rate we print for identical pairs": float(np.mean(expected)),
        "paper's rule picks b": paper.count("b") / PAIRS,
        "posterior calls b's ceiling higher": ours.count("b") / PAIRS,
        "posterior calls a's ceiling higher": ours.count("a") / PAIRS,
        "speed calls b faster": faster.count("b") / PAIRS,
        "speed calls a faster": faster.count("a") / PAIRS,
        "coverage of the difference": float(np.mean(held)),
    }


def main() -> None:
    args = arguments(__doc__ or "", FILE)
    result = {
        "pairs a case": PAIRS,
        "run-to-run SD of A": RUN_SD,
        "run-to-run SD of log C_mid": RUN_SPEED,
        **{
            f"{name}: {case}": {k: round(v, 4) for k, v in pairs(name, *settings).items()}
            for name in ("batch 768 to 7.7k", "leave one out to 16k")
            for case, settings in CASES.items()
        },
    }
    report(result, FILE, write=args.write)


if __name__ == "__main__":
    main()
