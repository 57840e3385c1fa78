"""The paper's own curves: recovered when sampled without noise, and the batch-768 run refitted.

Every published (A, B, C_mid) is sampled at 20 computes without noise and fitted; where a legend
gives no C_mid, 2542 is taken, and legends without B (the power laws) are left out. Then the 24
evaluations read off the batch-768 figures are fitted at fixed ceilings and by the paper's grid.
"""

import csv
from pathlib import Path

import numpy as np
from scaling_simulation import arguments, report

from scalerl.scaling import curve_from_points, fit, sigmoid

FILE = "scaling_published.json"
DATA = Path(__file__).parents[1] / "tests" / "unit" / "scaling" / "data"
R0 = 0.40


def rows(name: str) -> list[dict[str, str]]:
    """A table of the paper."""
    return list(csv.DictReader((DATA / name).read_text().splitlines()))


def recovery() -> dict[str, object]:
    """Largest relative error of any parameter over the curves, for each way to treat R0."""
    worst = {"held": 0.0, "step0": 0.0, "free": 0.0}
    count = 0
    for row in rows("published_fits.csv"):
        if not (row["A"] and row["B"]):
            continue
        count += 1
        truth = {"A": float(row["A"]), "B": float(row["B"]), "R0": R0}
        truth["C_mid"] = float(row["C_mid"] or 2542)
        C = np.geomspace(truth["C_mid"] / 4, truth["C_mid"] * 5, 20)
        curve = curve_from_points(np.r_[0, C], np.r_[R0, sigmoid(C, **truth)])
        for label, r0 in (("held", R0), ("step0", "step0"), ("free", "free")):
            found = fit(curve, r0=r0)
            for key, value in truth.items():
                error = abs(getattr(found, key).estimate / value - 1)
                worst[label] = max(worst[label], error)
    return {"curves": count, "largest relative error": worst}


def batch_768() -> dict[str, object]:
    """B and C_mid at fixed ceilings, the free fit, and the paper's grid on 100 to 4000."""
    points = [(float(r["gpu_hours"]), float(r["pass_rate"])) for r in rows("scalerl_8b_bs768.csv")]
    curve = curve_from_points(*zip(*points, strict=True), unit="gpu_hours", name="batch 768")
    settings = {
        "A fixed at .605": {"fix_ceiling": 0.605},
        "A fixed at .610": {"fix_ceiling": 0.610},
        "A free": {},
        "paper grid linspace(100, 4000, 100)": {
            "method": "paper", "paper_grid": (100.0, 4000.0, 100),
        },
    }  # fmt: skip
    out: dict[str, object] = {}
    for label, extra in settings.items():
        found = fit(curve, r0=R0, min_compute=1000.0, **extra)
        out[label] = {
            "status": found.status,
            **{k: getattr(found, k).estimate for k in ("A", "B", "C_mid")},
            **{f"{k} 90 %": [getattr(found, k).low, getattr(found, k).high] for k in ("A", "B")},
        }
    return out


def main() -> None:
    args = arguments(__doc__ or "", FILE)
    recovered, run = recovery(), batch_768()
    at_605, at_610 = run["A fixed at .605"], run["A fixed at .610"]
    grid = run["paper grid linspace(100, 4000, 100)"]
    met = {
        "recovery to 1e-6": max(recovered["largest relative error"].values()) <= 1e-6,
        "B 2.01 +- .05 at A .605": abs(at_605["B"] - 2.01) <= 0.05,
        "B 1.92 +- .05 at A .610": abs(at_610["B"] - 1.92) <= 0.05,
        "C_mid 2542 +- 60 at A .610": abs(at_610["C_mid"] - 2542) <= 60,
        "paper's C_mid on its grid": bool(
            np.isclose(np.linspace(100, 4000, 100), grid["C_mid"], rtol=1e-12).any()
        ),
    }
    report({"recovery": recovered, "batch 768": run, "met": met}, FILE, write=args.write)


if __name__ == "__main__":
    main()
