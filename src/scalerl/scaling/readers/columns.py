"""Which columns of a table are compute and pass rate: by the user's word or by their names."""

import re
from dataclasses import dataclass

from scalerl.errors import InputError
from scalerl.scaling.readers.table import Cell, Table, not_a_number

COMPUTE_NAMES = (
    "device_hours",
    "gpu_hours",
    "gpu_hrs",
    "gpuhours",
    "accelerator_hours",
    "compute",
    "train_compute",
    "flops",
    "total_flops",
    "train_flops",
    "total_flos",
    "tokens_trained",
    "tokens",
    "num_tokens",
    "total_tokens",
    "train_tokens",
    "consumed_tokens",
    "samples",
    "num_samples",
    "consumed_samples",
    "episodes",
    "hours",
    "runtime",
    "_runtime",
    "wall_time",
    "epoch",
    "step",
    "_step",
    "global_step",
    "train/global_step",
    "trainer/global_step",
    "training_step",
    "steps",
    "iteration",
)
"""Names taken for compute, best first: device time, FLOPs, tokens, samples, time, steps."""
STEP_NAMES = (
    "step",
    "_step",
    "global_step",
    "train/global_step",
    "trainer/global_step",
    "training_step",
)
RUN_NAMES = ("run", "run_name", "run_id", "experiment", "variant", "recipe")
NUMBERED_RUNS = ("run", "run_id", "seed")
"""Names taken for runs also where they hold numbers, few of them."""
REWARD = re.compile(
    r"(^|[/_.\s-])(pass_?rate|mean@\d+|avg@\d+|pass@1|accuracy|acc|reward|rewards|score|success_rate"
    r"|correct|solve_rate)($|[/_.\s-])",
    re.IGNORECASE,
)
HELD_OUT = re.compile(
    r"(^|[/_.\s-])(val|valid|validation|eval|evaluation|test|heldout)($|[/_.\s-])", re.I
)
NOT_REWARD = re.compile(r"(_se|_std|_stderr|_min|_max|__MIN|__MAX|/std|/min|/max|stderr)$")
WANDB = re.compile(r"^(?P<run>.+) - (?P<metric>.+?)(?P<extreme>__MIN|__MAX)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One curve's columns in a table, and which rows belong to it (None: all)."""

    name: str
    compute: str
    unit: str
    reward: str
    step: str | None = None
    rows: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    compute_given: bool = False
    """Whether the user named the compute column."""


def find_series(
    table: Table, name: str, compute: str | None, reward: str | None, run: str | None = None
) -> list[Series]:
    """Every curve in a table; of a W&B export only that of `run`, where one is asked for.

    Errors: InputError listing the candidates where it is open.
    """
    wandb = _wandb_series(table, compute, reward, run)
    if wandb:
        return wandb
    groups, told = _runs(table, name, compute, reward)
    reward_column = _named(table, reward, "--reward") if reward else _find_reward(table)
    if compute:
        compute_column, notes = _named(table, compute, "--compute"), ()
    else:
        compute_column, notes = _find_compute(table, reward_column)
    if compute_column == reward_column:
        raise InputError(
            f"{table.source}: compute and reward are the same column {reward_column!r}"
        )
    step = next((c for c in table.columns if _plain(c) in STEP_NAMES and table.numeric(c)), None)
    chosen = (f"compute is column {compute_column!r}, pass rate is column {reward_column!r}",)
    if (compute_column, reward_column) == ("device_hours", "pass_rate"):
        chosen, notes = (), ()  # the names of our own run directories need no telling
    notes = (*notes, *told)
    return [
        Series(
            name=group,
            compute=compute_column,
            unit=_plain(compute_column),
            reward=reward_column,
            step=step,
            rows=rows,
            notes=(*chosen, *notes),
            compute_given=compute is not None,
        )
        for group, rows in groups
    ]


def _runs(
    table: Table, name: str, compute: str | None, reward: str | None
) -> tuple[list[tuple[str, tuple[int, ...] | None]], tuple[str, ...]]:
    """(name, its rows) of each run that the columns of runs tell apart, and what to say of it."""
    columns = [
        c
        for c in table.columns
        if c not in (compute, reward) and (_names_runs(table, c) or _numbers_runs(table, c))
    ]
    keys: list[str | None] = [None] * len(table.lines)
    used: list[str] = []
    for column in columns:
        cells = [_run_name(column, v) for v in table.columns[column]]
        both = list(zip(keys, cells, strict=True))
        if len({b for b in both if b[1]}) > max(1, len({k for k in keys if k})):
            keys = ["/".join(p for p in pair if p) or None for pair in both]
            used.append(column)
    if not used:
        return [(name, None)], ()
    lost = [line for line, key in zip(table.lines, keys, strict=True) if key is None]
    told = (
        (f"{len(lost)} rows name no run ({', '.join(used)}) and were left out, first {lost[0]}",)
        if lost
        else ()
    )
    runs = list(dict.fromkeys(k for k in keys if k))
    return [(r, tuple(i for i, key in enumerate(keys) if key == r)) for r in runs], told


def _names_runs(table: Table, column: str) -> bool:
    return _plain(column) in RUN_NAMES and _text(table, column)


def _numbers_runs(table: Table, column: str) -> bool:
    """Whether a column numbers runs: whole numbers, each on three rows or more on average."""
    cells = [v for v in table.columns[column] if v is not None]
    if _plain(column).rsplit("/", 1)[-1] not in NUMBERED_RUNS or not cells:
        return False
    whole = all(isinstance(v, float) and v.is_integer() for v in cells)
    return whole and 3 * len(set(cells)) <= len(cells)


def _run_name(column: str, value: Cell) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else f"{column} {value:g}"


def _plain(name: str) -> str:
    """A column name in lower case with underscores: `GPU hours` -> `gpu_hours`."""
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _text(table: Table, name: str) -> bool:
    return any(isinstance(v, str) for v in table.columns[name])


def _named(table: Table, name: str, option: str) -> str:
    """The column of that name, or of the only one that differs in case, spaces or path."""
    if name in table.columns:
        return name
    close = [c for c in table.columns if _plain(c) == _plain(name)]
    close = close or [c for c in table.columns if _plain(c).rsplit("/", 1)[-1] == _plain(name)]
    if len(close) == 1:
        return close[0]
    listed = ", ".join(repr(c) for c in (close or table.columns))
    problem = "several columns match" if close else "there is no column"
    raise InputError(f"{table.source}: {problem} {name!r} ({option}); columns: {listed}")


def _rank(name: str) -> int | None:
    plain = _plain(name)
    for candidate in (plain, plain.rsplit("/", 1)[-1], plain.rsplit(".", 1)[-1]):
        if candidate in COMPUTE_NAMES:
            return COMPUTE_NAMES.index(candidate)
    return None


def _find_compute(table: Table, reward: str) -> tuple[str, tuple[str, ...]]:
    numeric = [c for c in table.columns if c != reward and table.numeric(c)]
    ranked = sorted((r, c) for c in numeric if (r := _rank(c)) is not None)
    if not ranked:
        if len(numeric) == 1:
            return numeric[0], ()
        _say_why_not_numeric(table, [c for c in table.columns if _rank(c) is not None])
        raise InputError(
            f"{table.source}: no column is known to be compute; choose one with --compute: "
            + (", ".join(repr(c) for c in numeric) or "none has numbers")
        )
    best, others = ranked[0][1], [c for _, c in ranked[1:]]
    if not others:
        return best, ()
    return best, ("other compute columns: " + ", ".join(others),)


def _find_reward(table: Table) -> str:
    numeric = [c for c in table.columns if table.numeric(c) and not NOT_REWARD.search(c)]
    if "pass_rate" in numeric:
        return "pass_rate"
    candidates = [c for c in numeric if REWARD.search(c) and _rank(c) is None]
    held_out = [c for c in candidates if HELD_OUT.search(c)]
    candidates = held_out or candidates
    if len(candidates) == 1:
        return candidates[0]
    rest = [c for c in numeric if _rank(c) is None]
    if not candidates and len(rest) == 1:
        return rest[0]
    if not candidates and len(numeric) == 2 and not rest:
        rest = numeric
    if not candidates and len(rest) == 2 and len(numeric) == 2:
        return rest[1]  # two columns of numbers: x, then y
    if not candidates:
        rates = [c for c in table.columns if c == "pass_rate" or REWARD.search(c)]
        _say_why_not_numeric(table, rates)
    listed = ", ".join(repr(c) for c in candidates or rest)
    problem = "several columns could be the pass rate" if candidates else "no column is a pass rate"
    raise InputError(f"{table.source}: {problem}; choose one with --reward: {listed or 'none'}")


def _say_why_not_numeric(table: Table, columns: list[str]) -> None:
    """An error that shows the first cell of the first of these columns without a number."""
    for name in columns:
        if table.numeric(name):
            continue
        for i, value in enumerate(table.columns[name]):
            if isinstance(value, str) and value != name:
                raise InputError(not_a_number(table, name, i))
        raise InputError(f"{table.source}: column {name!r} holds no numbers")


def _wandb_series(
    table: Table, compute: str | None, reward: str | None, run: str | None
) -> list[Series]:
    """Series of a W&B export: columns `run - metric`, `__MIN` and `__MAX` beside them."""
    found = {c: m for c in table.columns if (m := WANDB.match(c)) is not None}
    others = [c for c in table.columns if c not in found]
    extremes = {c for c, m in found.items() if m["extreme"]}
    if not found or not (extremes or all(_rank(c) is not None for c in others[:1])):
        return []
    values = {c: m for c, m in found.items() if c not in extremes}
    metrics = list(dict.fromkeys(m["metric"] for m in values.values()))
    if not values:
        raise InputError(f"{table.source}: a W&B export with only __MIN and __MAX columns")
    metric = _wandb_reward(table, metrics, reward)
    if metric is None:  # the user named a whole column
        metric = found[_named(table, reward or "", "--reward")]["metric"]
    joined = _wandb_compute(table, metrics, metric, others, compute)
    out: list[Series] = []
    for column, m in values.items():
        if m["metric"] != metric or (reward in values and column != reward):
            continue
        if run is not None and run != m["run"] and any(v["run"] == run for v in values.values()):
            continue
        own = f"{m['run']} - {joined}"
        source = own if own in values else joined
        if source not in table.columns:
            raise InputError(f"{table.source}: run {m['run']!r} has no column {own!r}")
        notes = [f"W&B export: compute is column {source!r}, pass rate is column {column!r}"]
        bands = [c for c in (f"{column}__MIN", f"{column}__MAX") if c in extremes]
        if bands:
            notes.append(_band_note(table, column, bands))
        step = others[0] if others and _plain(others[0]) in STEP_NAMES else None
        out.append(
            Series(
                name=m["run"],
                compute=source,
                unit=_plain(joined).rsplit("/", 1)[-1],
                reward=column,
                step=step,
                notes=tuple(notes),
                compute_given=compute is not None,
            )
        )
    return out


def _wandb_reward(table: Table, metrics: list[str], reward: str | None) -> str | None:
    if reward is not None:
        if reward in metrics:
            return reward
        if reward in table.columns:
            return None
        raise InputError(
            f"{table.source}: no metric {reward!r} (--reward); metrics: {', '.join(metrics)}"
        )
    if len(metrics) == 1:
        return metrics[0]
    left = [m for m in metrics if _rank(m) is None]
    named = [m for m in left if REWARD.search(m)]
    held_out = [m for m in named if HELD_OUT.search(m)]
    for candidates in (held_out, named, left):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            break
    raise InputError(
        f"{table.source}: several metrics could be the pass rate; choose one with --reward: "
        + ", ".join(repr(m) for m in (held_out or named or left or metrics))
    )


def _wandb_compute(
    table: Table, metrics: list[str], reward: str, others: list[str], compute: str | None
) -> str:
    if compute is not None:
        if compute in metrics or compute in table.columns:
            return compute
        return _named(table, compute, "--compute")
    ranked = sorted(
        (r, m) for m in [*metrics, *others] if (r := _rank(m)) is not None and m != reward
    )
    if ranked:
        return ranked[0][1]
    if len(others) == 1:
        return others[0]
    raise InputError(
        f"{table.source}: no column is known to be compute; choose one with --compute: "
        + ", ".join(repr(c) for c in [*others, *metrics] if c != reward)
    )


def _band_note(table: Table, column: str, bands: list[str]) -> str:
    differs = any(
        isinstance(v, float) and isinstance(b, float) and abs(v - b) > 1e-12
        for band in bands
        for v, b in zip(table.columns[column], table.columns[band], strict=True)
    )
    if differs:
        return "__MIN and __MAX differ from the value: each point of the chart averages several"
    return "__MIN and __MAX columns ignored"
