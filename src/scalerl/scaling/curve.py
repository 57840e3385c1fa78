"""A compute curve as read: pass rate against compute, with its unit and what was done to get it."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from scalerl.errors import InputError
from scalerl.scaling.sigmoid import Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One run's held-out pass rate against compute, n evaluations in order of compute.

    Arrays are read-only. The evaluation before training (step 0, C = 0) is not among them: it is
    `r0_observed`, because log C has no place for it. Errors: InputError when compute is not above 0
    and rising, or a pass rate is not in [0, 1].
    """

    name: str
    compute: Floats
    """[n], above 0, strictly rising, in `unit`."""
    pass_rate: Floats
    """[n], in [0, 1]."""
    unit: str
    """Name of the compute column, such as `device_hours`."""
    weight: Floats | None = None
    """[n], relative precision: how many evaluations the point averages. None: all equal."""
    pass_rate_se: Floats | None = None
    """[n], standard error of each pass rate, where the log has it (NaN where it has not)."""
    step: Floats | None = None
    """[n], optimiser step of each evaluation."""
    truncation_rate: Floats | None = None
    """[n], share of completions cut at the length limit (NaN where not logged)."""
    r0_observed: float | None = None
    """Pass rate at step 0, before any training."""
    first_epoch: float | None = None
    """Compute at the end of the first epoch, where the log has it."""
    source: str = ""
    notes: tuple[str, ...] = ()
    """What the reader detected, converted or dropped, by row."""

    def __post_init__(self) -> None:
        n = len(self.compute)
        for field in ("compute", "pass_rate", "weight", "pass_rate_se", "step", "truncation_rate"):
            values = getattr(self, field)
            if values is None:
                continue
            frozen = np.array(values, dtype=np.float64)
            if frozen.shape != (n,):
                raise InputError(
                    f"curve {self.name!r}: {field} has shape {frozen.shape}, not ({n},)"
                )
            frozen.setflags(write=False)
            object.__setattr__(self, field, frozen)
        rising = np.all(np.diff(self.compute) > 0) and np.all(self.compute > 0)
        if not (rising and np.all(np.isfinite(self.compute))):
            raise InputError(
                f"curve {self.name!r}: compute must be finite, above 0 and rising; "
                "use scaling.curve_from_points for unsorted points"
            )
        outside = ~((self.pass_rate >= 0) & (self.pass_rate <= 1))
        if outside.any():
            i = int(np.argmax(outside))
            raise InputError(
                f"curve {self.name!r}: pass rate {self.pass_rate[i]:g} at {self.unit} "
                f"{self.compute[i]:g} is not in [0, 1]"
            )
        if self.r0_observed is not None and not 0 <= self.r0_observed <= 1:
            raise InputError(f"curve {self.name!r}: step-0 pass rate {self.r0_observed:g}")

    def __len__(self) -> int:
        return len(self.compute)

    def select(self, keep: np.ndarray, *, note: str | None = None) -> "Curve":
        """The same curve with only the evaluations where `keep` [n] is true."""

        def cut(values: Floats | None) -> Floats | None:
            return None if values is None else values[keep]

        return replace(
            self,
            compute=self.compute[keep],
            pass_rate=self.pass_rate[keep],
            weight=cut(self.weight),
            pass_rate_se=cut(self.pass_rate_se),
            step=cut(self.step),
            truncation_rate=cut(self.truncation_rate),
            notes=self.notes if note is None else (*self.notes, note),
        )

    def window(self, min_compute: float | None = None, max_compute: float | None = None) -> "Curve":
        """Only the evaluations with min_compute <= compute <= max_compute."""
        low = -np.inf if min_compute is None else min_compute
        high = np.inf if max_compute is None else max_compute
        return self.select((self.compute >= low) & (self.compute <= high))


def curve_from_points(
    compute: ArrayLike,
    pass_rate: ArrayLike,
    *,
    unit: str = "compute",
    name: str = "curve",
    weight: ArrayLike | None = None,
) -> Curve:
    """A curve from plain numbers, in any order; C = 0 is the step-0 evaluation.

    `compute` and `pass_rate` [n]. Evaluations at the same compute are averaged with their weights.
    Errors: InputError for unequal lengths, values that are not finite, or compute below 0.
    """
    x, y = np.asarray(compute, float).ravel(), np.asarray(pass_rate, float).ravel()
    w = np.ones_like(x) if weight is None else np.asarray(weight, float).ravel()
    if not len(x) == len(y) == len(w):
        raise InputError(f"{len(x)} computes, {len(y)} pass rates, {len(w)} weights")
    for values, what in ((x, "compute"), (y, "pass rate"), (w, "weight")):
        if not np.isfinite(values).all():
            i = int(np.argmin(np.isfinite(values)))
            raise InputError(f"curve {name!r}: {what} of point {i + 1} is {values[i]}")
    if (x < 0).any():
        raise InputError(f"curve {name!r}: compute of point {int(np.argmax(x < 0)) + 1} is below 0")
    at_zero = x == 0
    r0 = float(np.average(y[at_zero], weights=w[at_zero])) if at_zero.any() else None
    unique, index = np.unique(x[~at_zero], return_inverse=True)
    total = np.bincount(index, weights=w[~at_zero], minlength=len(unique))
    mean = np.bincount(index, weights=(w * y)[~at_zero], minlength=len(unique))
    return Curve(
        name=name,
        compute=unique,
        pass_rate=mean / np.where(total > 0, total, 1),
        unit=unit,
        weight=None if np.allclose(total, 1) else np.asarray(total, float),
        r0_observed=r0,
    )
