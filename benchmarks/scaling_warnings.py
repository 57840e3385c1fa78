"""The drawdown alarm as it sounds during a run: false red alarms, and delay in seeing a decline.

2,000 runs a scenario, AR(1) noise .004/.5, the noise estimated from the evaluations so far. The
decline of .004 an evaluation starts at 60 % of the run. Targets: at most .02 false red alarms a
run; 95 % of declines seen within 8 evaluations. A few seconds.
"""

import numpy as np
from scaling_simulation import SCENARIOS, ar1, arguments, report

from scalerl.scaling import sigmoid
from scalerl.scaling.warn import DRAWDOWN_AMBER, DRAWDOWN_RED, drawdown_score

RUNS = 2000
DECLINE = 0.004
FILE = "scaling_warnings.json"


def trial(name: str) -> dict[str, float]:
    """Alarm rates and delays of one scenario."""
    scenario = SCENARIOS[name]
    n = int(scenario["n"])
    rng = np.random.default_rng(sorted(SCENARIOS).index(name))
    C = np.linspace(scenario["low"], scenario["high"], n)
    truth = sigmoid(C, **{k: scenario[k] for k in ("A", "B", "C_mid", "R0")})
    start = int(0.6 * n)
    broken = truth.copy()
    broken[start:] = truth[start] - DECLINE * np.arange(n - start)
    calm = drawdown_score(truth + ar1(rng, RUNS, n))
    score = drawdown_score(broken + ar1(rng, RUNS, n))
    red = score[:, start:] > DRAWDOWN_RED
    delay = np.where(red.any(1), red.argmax(1), 10**6)
    return {
        "evaluations": n,
        "false amber a run": round(float((calm > DRAWDOWN_AMBER).any(1).mean()), 4),
        "false red a run": round(float((calm > DRAWDOWN_RED).any(1).mean()), 4),
        "seen within 8": round(float((delay <= 8).mean()), 4),
        "median delay": float(np.median(delay)),
    }


def main() -> None:
    args = arguments(__doc__ or "", FILE)
    cells = {name: trial(name) for name in SCENARIOS}
    false_red = max(c["false red a run"] for c in cells.values())
    seen = min(c["seen within 8"] for c in cells.values())
    result = {
        "targets": {"false red a run": 0.02, "seen within 8": 0.95},
        "runs a scenario": RUNS,
        "scenarios": cells,
        "met": false_red <= 0.02 and seen >= 0.95,
    }
    report(result, FILE, write=args.write)


if __name__ == "__main__":
    main()
