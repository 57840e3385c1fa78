"""The order of a series' rows: a clock that began again is not a file whose rows are out of order.

Compute and step are both looked at along the file, for both may begin again at a resume; sorted by
one of them, two parts of a run would lie on top of each other and be averaged.
"""

from typing import Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.readers.rows import Rows
from scalerl.scaling.sigmoid import Floats

Restarts = Literal["refuse", "add", "sort"]
RESTARTS: tuple[Restarts, ...] = ("refuse", "add", "sort")


def falls(along: Floats) -> np.ndarray:
    """Positions at which values in file order are lower than the one before."""
    return np.flatnonzero(np.diff(along) < 0) + 1


def shuffled(along: Floats) -> bool:
    """Whether rows are plainly in no order: a third of them fall, from and to anywhere.

    A clock that restarts has fewer falls, or every part of it begins near the lowest value.
    """
    down = falls(along)
    if 3 * len(down) < len(along) - 1:
        return False
    starts = along[np.r_[0, down]]
    low, high = float(along.min()), float(along.max())
    return bool((starts > low + (high - low) / 3).any())


def in_order(
    rows: Rows, compute: Floats, step: Floats | None, restarts: Restarts
) -> tuple[Floats, Floats | None, np.ndarray]:
    """(compute, step, part) of the rows in file order; `part` counts how often a clock restarted.

    Compute that falls is refused with both lines, unless rows are shuffled and the steps agree, or
    every row has a step and a compute of its own and both give one order: a restart repeats some.
    A step that falls where compute goes on is refused too. `add` adds the parts of both up; `sort`
    takes the rows for what they say. Errors: InputError.
    """
    down = falls(compute)
    stepped = step if step is not None and bool(np.isfinite(step).all()) else None
    back = np.zeros(0, int) if stepped is None else falls(stepped)
    name, none = rows.series.compute, np.zeros(len(compute), int)
    if not len(down) and not len(back):
        return compute, step, none
    if restarts != "add" and len(down):
        said = None
        if shuffled(compute) and _agree(compute, stepped):
            said = f"rows are in no order and were sorted by {name!r}"
        elif stepped is not None and _one_order(compute, stepped):
            said = (
                f"rows out of order were sorted by {name!r}, with which {rows.series.step!r} agrees"
            )
        if said is not None:
            rows.notes.append(
                f"{said}; it falls {len(down)} times, first at {rows.line(int(down[0]))}"
            )
            return compute, step, none
    if restarts == "refuse":
        raise InputError(_refusal(rows, compute, stepped, down, back))
    part = np.cumsum(np.isin(np.arange(len(compute)), down))
    if restarts == "sort":
        count, first = (len(down), down) if len(down) else (len(back), back)
        what = name if len(down) else rows.series.step
        rows.notes.append(
            f"rows sorted by {name!r}; {what!r} falls {count} times, first at "
            f"{rows.line(int(first[0]))}"
        )
        return compute, step, part
    for what, where in ((name, down), (rows.series.step, back)):
        if len(where):
            mask = np.isin(np.arange(len(compute)), where)
            rows.notes.append(f"{what!r} restarts at {rows.named(mask)}; parts added up")
    return _added(compute, down), step if stepped is None else _added(stepped, back), part


def _added(along: Floats, down: np.ndarray) -> Floats:
    """Each part moved up by where the parts before it ended."""
    offset = np.zeros(len(along))
    for k in down:
        offset[k:] += along[k - 1]
    return along + offset


def _agree(compute: Floats, step: Floats | None) -> bool:
    """Whether the steps, where there are any, put the rows in the same order as compute."""
    if step is None:
        return True
    order = np.lexsort((compute, step))
    steps, along = step[order], compute[order]
    again = (np.diff(steps) == 0) & (np.diff(along) != 0)
    return not len(falls(along)) and not again.any()


def _one_order(compute: Floats, step: Floats) -> bool:
    """Whether no step and no compute occurs twice, and both put the rows in the same order."""
    order = np.argsort(step)
    return bool((np.diff(step[order]) > 0).all() and (np.diff(compute[order]) > 0).all())


def _refusal(
    rows: Rows, compute: Floats, step: Floats | None, down: np.ndarray, back: np.ndarray
) -> str:
    """Which clock falls, on which lines, and what the user may say to it."""
    name = rows.series.compute
    if not len(down) and step is not None:
        k = int(back[0])
        return (
            f"{rows.table.where(rows.index[k])}: {rows.series.step!r} falls from {step[k - 1]:g} "
            f"({rows.line(k - 1)}) to {step[k]:g} while {name!r} goes on ({len(back)} such rows); "
            f"if {rows.series.step!r} restarted after a resume, --restarts add adds it up; "
            f"--restarts sort takes the rows by {name!r} as they are"
        )
    k = int(down[0])
    both = ""
    if len(back):
        both = f", and {rows.series.step!r} falls too, first at {rows.line(int(back[0]))}"
    return (
        f"{rows.table.where(rows.index[k])}: {name!r} falls from {compute[k - 1]:g} "
        f"({rows.line(k - 1)}) to {compute[k]:g} ({len(down)} such rows{both}); if the clock "
        "restarted after a resume, --restarts add adds the parts up; if rows are merely out of "
        "order, --restarts sort sorts them"
    )
