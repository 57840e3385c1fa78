"""From raw cells to a curve: what cannot be fitted is dropped with a note or refused by line."""

import math
from typing import Literal

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.readers.columns import Series
from scalerl.scaling.readers.table import Table
from scalerl.scaling.sigmoid import Floats

Scale = Literal["fraction", "percent", "plus-minus-one"]
Restarts = Literal["refuse", "add", "sort"]
SCALES: tuple[Scale, ...] = ("fraction", "percent", "plus-minus-one")
RESTARTS: tuple[Restarts, ...] = ("refuse", "add", "sort")


class _Rows:
    """The rows of a series as they are sorted out; `index` are positions in the table."""

    def __init__(self, table: Table, series: Series) -> None:
        self.table = table
        self.series = series
        self.notes = [*table.notes, *series.notes]
        rows = range(len(table.lines)) if series.rows is None else series.rows
        self.index = list(rows)

    def values(self, column: str) -> Floats:
        """The column's numbers on the rows left, NaN where there is none. Text is an error."""
        out = np.full(len(self.index), np.nan)
        for k, i in enumerate(self.index):
            value = self.table.columns[column][i]
            if isinstance(value, str):
                raise InputError(
                    f"{self.table.where(i)}: column {column!r} has {value!r}, which is not a number"
                )
            if value is not None:
                out[k] = value
        return out

    def optional(self, column: str | None) -> Floats | None:
        """The column's numbers where it exists and has any."""
        if column is None or column not in self.table.columns or not self.table.numeric(column):
            return None
        return self.values(column)

    def keep(self, mask: np.ndarray, why: str) -> None:
        """Leave the rows where mask is false, and note how many and which."""
        if mask.all():
            return
        gone = [self.table.lines[i] for i, ok in zip(self.index, mask, strict=True) if not ok]
        self.index = [i for i, ok in zip(self.index, mask, strict=True) if ok]
        self.notes.append(f"{len(gone)} rows {why}: {self.table.row_word} {shown(gone)}")

    def order(self, order: np.ndarray) -> None:
        """Put the rows in another order."""
        self.index = [self.index[int(k)] for k in order]


def shown(numbers: list[int], most: int = 6) -> str:
    """Numbers for a message: the first few, then how many more."""
    text = ", ".join(str(n) for n in numbers[:most])
    return text if len(numbers) <= most else f"{text} and {len(numbers) - most} more"


def clean(
    table: Table,
    series: Series,
    *,
    scale: Scale | None = None,
    restarts: Restarts = "refuse",
    r0_step: bool = True,
) -> Curve:
    """The curve of one series of a table.

    Rows of superseded attempts, repeated headers and rows without a pass rate are dropped with a
    note; a pass rate without compute takes the last known compute of an earlier step. Refused with
    the line: text where a number belongs, compute below 0, a clock that restarts (`restarts` adds
    the parts up, or sorts), pass rates outside [0, 1] (`scale` converts per cent and ±1). Errors:
    InputError; also when no usable point is left.
    """
    rows = _Rows(table, series)
    _drop_repeated_headers(rows)
    _supersede(rows)
    compute = _join_compute(rows)
    reward = rows.values(series.reward)
    missing = np.array([table.columns[series.reward][i] is None for i in rows.index], bool)
    rows.keep(~missing, f"have no {series.reward!r} and were dropped")
    compute, reward = compute[~missing], reward[~missing]
    bad = ~np.isfinite(reward)
    rows.keep(~bad, "have a NaN or infinite pass rate and were dropped")
    compute, reward = compute[~bad], reward[~bad]
    unplaced = ~np.isfinite(compute)
    rows.keep(~unplaced, f"have no usable {series.compute!r} and were dropped")
    compute, reward = compute[~unplaced], reward[~unplaced]
    if not len(reward):
        raise InputError(
            f"{table.source}: no usable point in columns {series.compute!r} and {series.reward!r}; "
            + "; ".join(rows.notes)
        )
    negative = compute < 0
    if negative.any():
        i = rows.index[int(np.argmax(negative))]
        raise InputError(f"{table.where(i)}: compute {compute[negative][0]:g} is below 0")
    reward = _to_fraction(rows, reward, scale)
    step = rows.optional(series.step)
    compute, order = _in_order(rows, compute, step, restarts)
    rows.order(order)
    return _assemble(rows, compute[order], reward[order], r0_step)


def _drop_repeated_headers(rows: _Rows) -> None:
    columns = (rows.series.compute, rows.series.reward)
    mask = np.array(
        [all(rows.table.columns[c][i] != c for c in columns) for i in rows.index], dtype=bool
    )
    rows.keep(mask, "repeat the header and were skipped")


def _supersede(rows: _Rows) -> None:
    """Leave out what a later attempt did again: each (attempt, step) log is read once."""
    table = rows.table
    if "attempt" not in table.columns or "step" not in table.columns:
        return
    attempt, step = rows.values("attempt"), rows.values("step")
    if not np.isfinite(attempt).any():
        return
    keep = np.ones(len(attempt), bool)
    for later in np.unique(attempt[np.isfinite(attempt)])[1:]:
        first = np.nanmin(step[attempt == later])
        keep &= ~((attempt < later) & (step >= first))
    rows.keep(keep, "were superseded by a later attempt")
    attempt, step = attempt[keep], step[keep]
    last = {(a, s): k for k, (a, s) in enumerate(zip(attempt, step, strict=True))}
    again = np.array(
        [last[a, s] == k for k, (a, s) in enumerate(zip(attempt, step, strict=True))], bool
    )
    rows.keep(again, "were written again for the same attempt and step")


def _join_compute(rows: _Rows) -> Floats:
    """Compute of each row: its own, or the last known one at an earlier step (or line)."""
    compute = rows.values(rows.series.compute)
    if rows.series.compute == rows.series.reward:
        return compute
    reward_cells = [rows.table.columns[rows.series.reward][i] for i in rows.index]
    needs = np.isnan(compute) & np.array([isinstance(c, float) for c in reward_cells], bool)
    if not needs.any():
        return compute
    step = rows.optional(rows.series.step)
    if step is not None and np.isfinite(step).all():
        order = np.argsort(step, kind="stable")
        # a compute logged at the very same step counts, on whichever line it stands
        order = order[np.lexsort((np.isnan(compute[order]), step[order]))]
    else:
        order = np.arange(len(compute))
    known = math.nan
    filled = compute.copy()
    for k in order:
        if np.isfinite(compute[k]):
            known = float(compute[k])
        elif needs[k]:
            filled[k] = known
    count = int(np.count_nonzero(needs & np.isfinite(filled)))
    if count:
        rows.notes.append(
            f"{count} pass rates took the last known {rows.series.compute!r} before them"
        )
    return filled


def _to_fraction(rows: _Rows, reward: Floats, scale: Scale | None) -> Floats:
    low, high = float(reward.min()), float(reward.max())
    if scale == "percent":
        reward = reward / 100
        rows.notes.append("pass rates converted from per cent")
    elif scale == "plus-minus-one":
        reward = (reward + 1) / 2
        rows.notes.append("rewards converted from -1...1 to pass rates")
    outside = (reward < 0) | (reward > 1)
    if not outside.any():
        return reward
    k = int(np.argmax(outside))
    if scale in ("percent", "plus-minus-one"):
        advice = f"it does not fit --reward-scale {scale}"
    elif low < 0 and low >= -1 and high <= 1:
        advice = "rewards in -1...1 need --reward-scale plus-minus-one"
    elif low >= 0 and 1 < high <= 100:
        advice = "pass rates in per cent need --reward-scale percent"
    else:
        advice = "pass rates must lie in [0, 1]"
    lines = [rows.table.lines[rows.index[int(j)]] for j in np.flatnonzero(outside)]
    raise InputError(
        f"{rows.table.where(rows.index[k])}: {rows.series.reward!r} is {reward[k]:g}, outside "
        f"[0, 1] ({len(lines)} such rows: {rows.table.row_word} {shown(lines)}); {advice}"
    )


def _in_order(
    rows: _Rows, compute: Floats, step: Floats | None, restarts: Restarts
) -> tuple[Floats, np.ndarray]:
    """Compute and the order of rows by it; a restarted clock is refused, added up or sorted."""
    by_step = (
        step is not None
        and bool(np.isfinite(step).all())
        and rows.series.step != rows.series.compute
    )
    order = (
        np.argsort(step, kind="stable") if by_step and step is not None else np.arange(len(compute))
    )
    along = compute[order]
    falls = np.flatnonzero(np.diff(along) < 0) + 1
    if not len(falls):
        return compute, order
    restarted = by_step or _looks_restarted(along, falls)
    if restarted and restarts == "refuse":
        at = rows.index[int(order[falls[0]])]
        before = rows.index[int(order[falls[0] - 1])]
        raise InputError(
            f"{rows.table.where(at)}: {rows.series.compute!r} falls from {along[falls[0] - 1]:g} "
            f"({rows.table.row_word} {rows.table.lines[before]}) to {along[falls[0]]:g}; if the "
            "clock restarted after a resume, --restarts add adds the parts up; if rows are merely "
            "out of order, --restarts sort sorts them"
        )
    if restarts == "add" and restarted:
        offset = np.zeros(len(along))
        for k in falls:
            offset[k:] += along[k - 1]
        compute = compute.copy()
        compute[order] = along + offset
        rows.notes.append(
            f"{rows.series.compute!r} restarts at {rows.table.row_word} "
            f"{shown([rows.table.lines[rows.index[int(order[k])]] for k in falls])}; parts added up"
        )
        return compute, order
    rows.notes.append(f"rows sorted by {rows.series.compute!r}")
    return compute, np.argsort(compute, kind="stable")


def _looks_restarted(along: Floats, falls: np.ndarray) -> bool:
    """Few long rising stretches that overlap, each starting low: a clock that began again."""
    if len(falls) > max(3, len(along) // 6):
        return False
    starts = along[falls]
    before = along[falls - 1]
    rising = [len(part) >= 2 for part in np.split(along, falls)]
    return bool(all(rising) and np.all(starts < 0.9 * before))


def _assemble(rows: _Rows, compute: Floats, reward: Floats, r0_step: bool) -> Curve:
    """Split off step 0, average duplicates with their weights, and build the curve."""
    series, table = rows.series, rows.table
    step = rows.optional(series.step)
    at_zero = compute == 0
    if r0_step and step is not None and series.step != series.compute:
        at_zero |= step == 0
    r0 = float(reward[at_zero].mean()) if at_zero.any() else None
    rest = ~at_zero
    if not rest.any():
        raise InputError(f"{table.source}: the only usable points are at compute 0")
    unique, group = np.unique(compute[rest], return_inverse=True)
    weight = _weights(rows)[rest]
    total = np.bincount(group, weights=weight)

    def mean(values: Floats) -> Floats:
        return np.asarray(np.bincount(group, weights=weight * values[rest]) / total)

    count = np.bincount(group)
    if (count > 1).any():
        many = int((count > 1).sum())
        rows.notes.append(f"evaluations at the same compute were averaged, {many} times")
    se, truncation = rows.optional("pass_rate_se"), rows.optional("truncation_rate")
    _note_sampling(rows, step)
    return Curve(
        name=series.name,
        compute=unique,
        pass_rate=np.clip(mean(reward), 0, 1),
        unit=series.unit,
        weight=None if np.allclose(total, 1) else np.asarray(total, float),
        pass_rate_se=None if se is None or (count > 1).any() else se[rest],
        step=None if step is None else mean(step),
        truncation_rate=None if truncation is None else mean(truncation),
        r0_observed=r0,
        first_epoch=_first_epoch(rows, compute),
        source=table.source,
        notes=tuple(rows.notes),
    )


def _weights(rows: _Rows) -> Floats:
    """Relative precision of each row: its number of samples where the log has it, else 1."""
    samples = rows.optional("n_samples")
    prompts = rows.optional("n_prompts")
    ones = np.ones(len(rows.index))
    if samples is None or not (np.isfinite(samples).all() and (samples > 0).all()):
        return ones
    size = samples if prompts is None or not np.isfinite(prompts).all() else samples * prompts
    return ones if size.min() <= 0 else size / np.median(size)


def _first_epoch(rows: _Rows, compute: Floats) -> float | None:
    """Compute at which the epoch column first reaches 1."""
    epoch = rows.optional("epoch")
    if epoch is None or rows.series.compute == "epoch":
        return None
    past = (epoch >= 1) & (compute > 0)
    return float(compute[past].min()) if past.any() and not past.all() else None


def _note_sampling(rows: _Rows, step: Floats | None) -> None:
    if step is None or len(step) < 10 or not np.isfinite(step).all():
        return
    gaps = np.diff(np.unique(step))
    if len(gaps) > 8 and np.mean(gaps != np.median(gaps)) > 0.5 and gaps.max() > 1:
        rows.notes.append(
            "steps are unevenly spaced, as in a sampled history; export all of it if so"
        )
