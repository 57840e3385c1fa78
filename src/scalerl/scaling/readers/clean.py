"""From raw cells to a curve: what cannot be fitted is dropped with a note or refused by line."""

import math

import numpy as np

from scalerl.errors import InputError
from scalerl.scaling.curve import Curve
from scalerl.scaling.readers.clock import Restarts, falls, in_order, shuffled
from scalerl.scaling.readers.columns import Series
from scalerl.scaling.readers.rows import Rows
from scalerl.scaling.readers.scales import Scale, check_clock, share, to_fraction
from scalerl.scaling.readers.table import Table
from scalerl.scaling.sigmoid import Floats


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
    note, and so is a truncation rate that goes outside [0, 1]; a pass rate without compute takes
    the last known compute of an earlier step. Refused with the line: text where a number belongs,
    compute below 0 or in Unix time, a clock that restarts (`restarts` adds the parts up, or sorts),
    pass rates outside [0, 1] (`scale` converts per cent and ±1). Errors: InputError; also when no
    point is left.
    """
    rows = Rows(table, series)
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
    check_clock(rows, compute)
    reward = to_fraction(rows, reward, scale)
    step = None if series.step == series.compute else rows.optional(series.step)
    compute, step, part = in_order(rows, compute, step, restarts)
    at_zero = _step_0(compute, step if r0_step else None, part)
    again = (compute == 0) & ~at_zero
    rows.keep(~again, f"stand at {series.compute!r} 0 after a restart and were dropped")
    order = np.argsort(compute[~again], kind="stable")
    rows.order(order)
    compute, reward, at_zero = (v[~again][order] for v in (compute, reward, at_zero))
    if step is not None:
        step = step[~again][order]
    elif series.step is not None:
        step = rows.optional(series.step)
    return _assemble(rows, compute, reward, step, at_zero)


def _step_0(compute: Floats, step: Floats | None, part: np.ndarray) -> np.ndarray:
    """Which rows observe R0: compute 0, or step 0 at the lowest compute, before any restart."""
    at_zero = compute == 0
    if step is not None:
        at_zero = at_zero | ((step == 0) & (compute == compute.min()))
    if at_zero.any():
        at_zero &= part == part[np.argmax(at_zero)]
    return at_zero


def _drop_repeated_headers(rows: Rows) -> None:
    columns = (rows.series.compute, rows.series.reward)
    mask = np.array(
        [all(rows.table.columns[c][i] != c for c in columns) for i in rows.index], dtype=bool
    )
    rows.keep(mask, "repeat the header and were skipped")


def _supersede(rows: Rows) -> None:
    """Leave out what a later attempt did again: each (attempt, step) log is read once."""
    table = rows.table
    if "attempt" not in table.columns or "step" not in table.columns:
        return
    attempt, step = rows.values("attempt"), rows.values("step")
    if not np.isfinite(attempt).any():
        return
    nowhere = np.full(len(attempt), np.nan)
    began = rows.values("from_step") if "from_step" in table.columns else nowhere
    keep = np.ones(len(attempt), bool)
    for later in np.unique(attempt[np.isfinite(attempt)])[1:]:
        first, last = _least(step[attempt == later]), _least(began[attempt == later])
        keep &= ~((attempt < later) & ((step >= first) | (step > last)))
    rows.keep(keep, "were superseded by a later attempt")
    attempt, step = attempt[keep], step[keep]
    last = {(a, s): k for k, (a, s) in enumerate(zip(attempt, step, strict=True))}
    again = np.array(
        [last[a, s] == k for k, (a, s) in enumerate(zip(attempt, step, strict=True))], bool
    )
    rows.keep(again, "were written again for the same attempt and step")


def _least(values: Floats) -> float:
    """The least of those that are numbers; infinite where none is."""
    return float(np.min(values[np.isfinite(values)], initial=np.inf))


def _join_compute(rows: Rows) -> Floats:
    """Compute of each row: its own, or the last known one at an earlier step (or line)."""
    compute = rows.values(rows.series.compute)
    if rows.series.compute == rows.series.reward:
        return compute
    reward_cells = [rows.table.columns[rows.series.reward][i] for i in rows.index]
    needs = np.isnan(compute) & np.array([isinstance(c, float) for c in reward_cells], bool)
    if not needs.any():
        return compute
    step = rows.optional(rows.series.step)
    if step is not None and np.isfinite(step).all() and _one_pass(step[np.isfinite(compute)]):
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
    took = needs & np.isfinite(filled)
    if took.any():
        rows.notes.append(
            f"{int(took.sum())} pass rates took the last known {rows.series.compute!r} before "
            f"them: {rows.named(took)}"
        )
    return filled


def _one_pass(step: Floats) -> bool:
    """Whether steps put the rows in order: they rise, or are in no order at all."""
    return not len(falls(step)) or shuffled(step)


def _assemble(
    rows: Rows, compute: Floats, reward: Floats, step: Floats | None, at_zero: np.ndarray
) -> Curve:
    """Split off step 0, average duplicates with their weights, and build the curve."""
    series, table = rows.series, rows.table
    r0 = float(reward[at_zero].mean()) if at_zero.any() else None
    if at_zero.sum() > 1:
        rows.notes.append(
            f"{int(at_zero.sum())} evaluations at step 0 were averaged: {rows.named(at_zero)}"
        )
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
        several = np.zeros(len(rest), bool)
        several[rest] = (count > 1)[group]
        rows.notes.append(
            f"{int(several.sum())} evaluations at the same compute were averaged, "
            f"{int((count > 1).sum())} times: {rows.named(several)}"
        )
    se, truncation = rows.optional("pass_rate_se"), share(rows, "truncation_rate")
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


def _weights(rows: Rows) -> Floats:
    """Relative precision of each row: its number of samples where the log has it, else 1."""
    samples = rows.optional("n_samples")
    prompts = rows.optional("n_prompts")
    ones = np.ones(len(rows.index))
    if samples is None or not (np.isfinite(samples).all() and (samples > 0).all()):
        return ones
    size = samples if prompts is None or not np.isfinite(prompts).all() else samples * prompts
    return ones if size.min() <= 0 else size / np.median(size)


def _first_epoch(rows: Rows, compute: Floats) -> float | None:
    """Compute at which the epoch column first reaches 1."""
    epoch = rows.optional("epoch")
    if epoch is None or rows.series.compute == "epoch":
        return None
    past = (epoch >= 1) & (compute > 0)
    return float(compute[past].min()) if past.any() and not past.all() else None


def _note_sampling(rows: Rows, step: Floats | None) -> None:
    """Say when the steps look like a chart's sample of a longer history."""
    if step is None or len(step) < 10 or not np.isfinite(step).all():
        return
    gaps = np.diff(np.unique(step))
    uneven = gaps != np.median(gaps)
    if len(gaps) > 8 and uneven.mean() > 0.5 and gaps.max() > 1:
        first = np.unique(step)[int(np.argmax(uneven)) + 1]
        rows.notes.append(
            f"steps look sampled: {int(uneven.sum())} of {len(gaps)} are unevenly spaced, first "
            f"at {rows.line(int(np.argmax(step == first)))}; export all of the history if so"
        )
