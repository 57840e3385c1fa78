"""What a comparison returns: frozen, printable, and the same again after JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from scalerl.errors import InputError
from scalerl.scaling.result import Fit, Interval, rebuilt


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRule:
    """The paper's own decision (A.5): ceilings .02 apart, else B refitted at the mean ceiling."""

    winner: str
    by: Literal["ceiling", "B at a common ceiling", "nothing"]
    delta_A: float | None
    common_A: float | None
    B_a: float | None
    B_b: float | None
    false_positive: float | None = None
    """How often the margin calls two identical recipes different, at the precision of this pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Recipe `a` against recipe `b`."""

    a: str
    b: str
    delta_A: Interval
    """Ceiling of a minus that of b, run-to-run differences included; None where one is unknown."""
    p_higher: float | None
    """P(ceiling of a > ceiling of b); None where the ceiling of one is not identified."""
    crossing: Interval
    """Compute at which the curves cross, where they do."""
    p_crossing: float | None
    target: float | None
    """Pass rate at which the speeds are compared."""
    compute_ratio: Interval
    """Compute of a to the target over that of b, run-to-run differences included."""
    higher_ceiling: str
    faster: str
    paper: PaperRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One recipe: its runs' fits, and the ceiling they give it."""

    name: str
    fits: tuple[Fit, ...]
    A: Interval
    """Ceiling of the recipe, run-to-run differences included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Recipes ranked by ceiling, then speed, with every pair's evidence."""

    recipes: tuple[Recipe, ...]
    """Best first."""
    verdicts: tuple[str, ...]
    """What separates each recipe from the next, in words."""
    pairs: tuple[Pair, ...]
    run_sd: Interval
    run_sd_from: int
    """Degrees of freedom the run-to-run SD was estimated from; 0: taken from the paper's runs."""
    unit: str

    def summary(self) -> str:
        """Ranking and pairs for a person."""
        from scalerl.scaling.describe import comparison_summary

        return comparison_summary(self)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: the ranking, every pair and every fit."""
        return {
            "ranking": [r.name for r in self.recipes],
            "verdicts": list(self.verdicts),
            "unit": self.unit,
            "run_sd": {**asdict(self.run_sd), "estimated_from": self.run_sd_from},
            "pairs": [asdict(p) for p in self.pairs],
            "recipes": [
                {"name": r.name, "A": asdict(r.A), "fits": [f.to_dict() for f in r.fits]}
                for r in self.recipes
            ],
        }

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """The comparison again. Errors: InputError naming the key that is missing or unknown."""
        try:
            run_sd = {**saved["run_sd"]}
            degrees = run_sd.pop("estimated_from")
            return cls(
                recipes=tuple(
                    Recipe(
                        name=r["name"],
                        fits=tuple(Fit.from_dict(f) for f in r["fits"]),
                        A=rebuilt(Interval, r["A"]),
                    )
                    for r in saved["recipes"]
                ),
                verdicts=tuple(saved["verdicts"]),
                pairs=tuple(_pair(p) for p in saved["pairs"]),
                run_sd=rebuilt(Interval, run_sd),
                run_sd_from=degrees,
                unit=saved["unit"],
            )
        except KeyError as missing:
            raise InputError(f"saved comparison: key {missing} is missing") from missing


def _pair(saved: dict[str, Any]) -> Pair:
    again: dict[str, Any] = {**saved, "paper": rebuilt(PaperRule, saved["paper"])}
    for name in ("delta_A", "crossing", "compute_ratio"):
        again[name] = rebuilt(Interval, saved[name])
    return rebuilt(Pair, again)
