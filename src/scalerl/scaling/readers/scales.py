"""Pass rates on a scale of 0 to 1, converted where the user says so and refused where unclear."""

import re
from typing import Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.readers.rows import Rows
from scalerl.scaling.sigmoid import Floats

Scale = Literal["fraction", "percent", "plus-minus-one"]
SCALES: tuple[Scale, ...] = ("fraction", "percent", "plus-minus-one")
ROUNDING = 1e-9
"""How far beyond 0 or 1 a rate may lie by rounding alone."""
FRACTION_NAME = re.compile(
    r"(^|[^a-z])(frac|fraction|share|ratio|prob|probability)([^a-z]|$)", re.I
)
"""Names that say that a column holds no per cent."""
TIME_NAME = re.compile(r"time([^a-z]|$)|timestamp|(^|[^a-z])(wall|date|unix|ts)([^a-z]|$)", re.I)
"""Names that say that a column may hold a time of day."""
UNIX_TIMES = ((1e9, 4.2e9), (1e12, 4.2e12), (1e15, 4.2e15), (1e18, 4.2e18))
"""Seconds, milli-, micro- and nanoseconds since 1970, from 2001 to 2103."""
UNIX_SPAN = 0.1
"""A clock that spans less than this share of its value has not been started by the run."""


def to_fraction(rows: Rows, reward: Floats, scale: Scale | None) -> Floats:
    """Pass rates in [0, 1]. Errors: InputError naming the first row that is not, and its advice."""
    low, high = float(reward.min()), float(reward.max())
    if scale == "percent":
        name = rows.series.reward
        if high <= 1 and FRACTION_NAME.search(name):
            raise InputError(
                f"{rows.table.where(rows.index[int(np.argmax(reward))])}: {name!r} is at most "
                f"{high:g}: these are no per cent but fractions; leave out --reward-scale percent"
            )
        reward = reward / 100
        small = "" if high > 1 else f"; none is above 1: {name!r} is at most {high:g} %, as you say"
        rows.notes.append(
            f"{len(reward)} pass rates converted from per cent, from {rows.line(0)}{small}"
        )
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
    """A column of shares where there is one; left out with a note if one is outside [0, 1]."""
    values = rows.optional(column)
    if values is None:
        return None
    outside = (values < -ROUNDING) | (values > 1 + ROUNDING)
    if outside.any():
        what = _outside(rows, column, values, outside)
        rows.notes.append(f"{what}; the column was left out: it is to hold shares, not per cent")
        return None
    return np.clip(values, 0, 1)


def _outside(rows: Rows, column: str, values: Floats, outside: np.ndarray) -> str:
    k = int(np.argmax(outside))
    return (
        f"{rows.table.where(rows.index[k])}: {column!r} is {values[k]:g}, outside [0, 1] "
        f"({int(outside.sum())} such rows: {rows.named(outside)})"
    )


def check_clock(rows: Rows, compute: Floats) -> None:
    """Refuse a time of day taken for compute. Errors: InputError naming the first row.

    A column that the user named is judged only where its name says that it holds a time.
    """
    name = rows.series.compute
    timed = TIME_NAME.search(name) is not None
    low, high = float(compute.min()), float(compute.max())
    if len(compute) < 2 or high - low > UNIX_SPAN * high:
        return
    if rows.series.compute_given and not timed:
        return
    if any(first <= low and high <= last for first, last in UNIX_TIMES):
        own = "" if timed else f", or, if it is, name it with --compute {name!r}"
        raise InputError(
            f"{rows.table.where(rows.index[0])}: {name!r} is {compute[0]:.10g} and spans "
            f"{high - low:.6g} in {len(compute)} rows: that is Unix time, not compute; "
            "choose another column with --compute, or subtract the time at which the run began"
            + own
        )
