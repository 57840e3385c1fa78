"""Pass rates on a scale of 0 to 1, converted where the user says so and refused where unclear."""

from typing import Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.readers.rows import Rows
from scalerl.scaling.sigmoid import Floats

Scale = Literal["fraction", "percent", "plus-minus-one"]
SCALES: tuple[Scale, ...] = ("fraction", "percent", "plus-minus-one")
ROUNDING = 1e-9
"""How far beyond 0 or 1 a rate may lie by rounding alone."""
UNIX_TIMES = ((1e9, 4.2e9), (1e12, 4.2e12), (1e15, 4.2e15), (1e18, 4.2e18))
"""Seconds, milli-, micro- and nanoseconds since 1970, from 2001 to 2103."""
UNIX_SPAN = 0.1
"""A clock that spans less than this share of its value has not been started by the run."""


def to_fraction(rows: Rows, reward: Floats, scale: Scale | None) -> Floats:
    """Pass rates in [0, 1]. Errors: InputError naming the first row that is not, and its advice."""
    low, high = float(reward.min()), float(reward.max())
    if scale == "percent":
        if high <= 1:
            raise InputError(
                f"{rows.table.where(rows.index[int(np.argmax(reward))])}: {rows.series.reward!r} "
                f"is at most {high:g}: these are no per cent but fractions; leave out "
                "--reward-scale percent"
            )
        reward = reward / 100
        rows.notes.append(f"{len(reward)} pass rates converted from per cent, from {rows.line(0)}")
    elif scale == "plus-minus-one":
        reward = (reward + 1) / 2
        rows.notes.append(
            f"{len(reward)} rewards converted from -1...1 to pass rates, from {rows.line(0)}"
        )
    outside = (reward < -ROUNDING) | (reward > 1 + ROUNDING)
    if not outside.any():
        return np.clip(reward, 0, 1)
    if scale in ("percent", "plus-minus-one"):
        advice = f"it does not fit --reward-scale {scale}"
    elif low < 0 and low >= -1 and high <= 1:
        advice = "rewards in -1...1 need --reward-scale plus-minus-one"
    elif low >= 0 and 1 < high <= 100:
        advice = "pass rates in per cent need --reward-scale percent"
    else:
        advice = "pass rates must lie in [0, 1]"
    raise InputError(_outside(rows, rows.series.reward, reward, outside) + f"; {advice}")


def share(rows: Rows, column: str) -> Floats | None:
    """A column of shares where there is one. Errors: InputError by row for one outside [0, 1]."""
    values = rows.optional(column)
    if values is None:
        return None
    outside = (values < -ROUNDING) | (values > 1 + ROUNDING)
    if outside.any():
        raise InputError(_outside(rows, column, values, outside) + "; it is a share, not per cent")
    return np.clip(values, 0, 1)


def _outside(rows: Rows, column: str, values: Floats, outside: np.ndarray) -> str:
    k = int(np.argmax(outside))
    return (
        f"{rows.table.where(rows.index[k])}: {column!r} is {values[k]:g}, outside [0, 1] "
        f"({int(outside.sum())} such rows: {rows.named(outside)})"
    )


def check_clock(rows: Rows, compute: Floats) -> None:
    """Refuse a time of day taken for compute. Errors: InputError naming the first row."""
    low, high = float(compute.min()), float(compute.max())
    if len(compute) < 2 or high - low > UNIX_SPAN * high:
        return
    if any(first <= low and high <= last for first, last in UNIX_TIMES):
        raise InputError(
            f"{rows.table.where(rows.index[0])}: {rows.series.compute!r} is {compute[0]:.10g} and "
            f"spans {high - low:.6g} in {len(compute)} rows: that is Unix time, not compute; "
            "choose another column with --compute, or subtract the time at which the run began"
        )
