"""A study from its file to its result: every run, the fits, the extension, the check.

    run      every run to its budget; with [race] in rounds, after each of which some stop
    fit      fit what there is; with stages.extend_to, forecasts of the extension, kept in
             forecasts.json from before it begins
    extend   the chosen variants' runs go on to stages.extend_to
    check    the forecasts against what happened; result.json, result.txt, report.html

The folder of a study holds variant/seed-N (run directories), starts (start models), study.sqlite.
Each stage may be interrupted at any moment; the same command goes on from there.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scalerl.config import Config, dump_toml
from scalerl.errors import InputError
from scalerl.experiments import forecasts, race
from scalerl.experiments.result import StudyResult, read_run_curve, study_result
from scalerl.experiments.study_file import Race, Study, Variant, changed_keys
from scalerl.experiments.study_progress import overview
from scalerl.experiments.study_runner import SCALERL, Runner, Say
from scalerl.experiments.study_state import FILE, RunRow, StudyState, at_work
from scalerl.placement.commands import Place
from scalerl.scaling.curve import Curve
from scalerl.scaling.fit import fit

STAGES = ("run", "fit", "extend", "check")
HARMLESS = (
    "execution.",
    "checkpoint.",
    "monitor.",
    "evaluation.",
    "batch.rows_per_pass",
    "batch.tokens_per_pass",
)
"""Settings that may change between sittings of a study."""
PAGE = "report.html"


class Stopped(Exception):
    """A signal ended the study; everything can be resumed."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.number = number


def conduct(
    study: Study,
    folder: Path,
    say: Say,
    *,
    jobs: int = 1,
    until: str = "check",
    retry_failed: bool = False,
    command: Sequence[str] = SCALERL,
    place: Place | None = None,
    on_runner: Callable[[Runner], None] = lambda runner: None,
) -> StudyResult | None:
    """Bring a study to a stage; returns its result, None before the stage that makes one.

    Args:
        jobs: runs at once.
        retry_failed: runs that failed before are resumed, too.
        command: what `train` and `sft` are given to.
        place: where runs are started; this machine where it is not given.
        on_runner: gets the runner before it starts, to be able to stop it.

    Raises:
        InputError: the folder holds runs of other settings, or another runner is at work.
        Stopped: a signal ended it.
        RunError: the start model could not be made.
    """
    with at_work(folder):
        state = StudyState(folder)
        try:
            register(study, state, retry_failed=retry_failed)
            runner = Runner(study, state, say, jobs=jobs, command=command, place=place)
            on_runner(runner)
            runner.recover()
            wanted = STAGES[: STAGES.index(until) + 1]
            _stage_run(study, state, runner)
            if "fit" in wanted:
                _stage_fit(study, state, say)
            if "extend" in wanted:
                _stage_extend(study, state, runner)
            return _stage_check(study, state, say) if "check" in wanted else None
        finally:
            state.close()


def register(study: Study, state: StudyState, *, retry_failed: bool = False) -> None:
    """Enter the study's runs. Runs that are there keep what they have.

    Raises:
        InputError: runs of a variant were made with other settings.
    """
    for variant in study.variants:
        key = f"variant {variant.name}"
        saved = state.fact(key)
        if saved is not None:
            old = Config.model_validate(tomllib.loads(saved))
            _refuse_changes(study, variant, old, state.folder)
        state.note(key, dump_toml(variant.config))
        for seed in variant.seeds:
            state.add(
                variant.name, seed, steps=_first_target(study, variant),
                completions_a_step=variant.config.batch.groups * variant.config.batch.completions,
            )  # fmt: skip
    state.note("name", study.name)
    if retry_failed:
        for row in state.runs():
            if row.state == "failed":
                state.update(row.variant, row.seed, state="waiting", reason="")


def _refuse_changes(study: Study, variant: Variant, old: Config, folder: Path) -> None:
    lines = [
        f"variants.{variant.name}: {key}: {before!r} → {after!r}"
        for key, (before, after) in changed_keys(old, variant.config).items()
        if not key.startswith(HARMLESS)
    ]
    if lines:
        raise InputError(
            f"{study.file}: {folder} holds runs of other settings:\n  "
            + "\n  ".join(lines)
            + "\ngive another --dir, or another name to the changed variant"
        )


def _first_target(study: Study, variant: Variant) -> int:
    if study.plan.race is None:
        return variant.config.steps
    return round_steps(variant, study.plan.race.rounds[0])


def round_steps(variant: Variant, share: float) -> int:
    """Steps at the end of a race's round: whole evaluations, at most the budget."""
    every = variant.config.evaluation.every
    return min(variant.config.steps, max(1, round(share * variant.config.steps / every)) * every)


# ── stages ──────────────────────────────────────────────────────────────────────────────────────
def _stage_run(study: Study, state: StudyState, runner: Runner) -> None:
    plan = study.plan.race
    shares: Sequence[float] = plan.rounds if plan else (1.0,)
    bound = plan.bound if plan else 0.0
    out = {name for _, name, _, goes_on in state.decisions() if not goes_on}
    decided = {number for number, _, _, _ in state.decisions()}
    for number, share in enumerate(shares, 1):
        if number in decided:
            continue
        for variant in study.variants:
            if variant.name not in out:
                last = share == 1.0
                state.want(
                    variant.name, variant.config.steps if last else round_steps(variant, share)
                )
        _run(runner)
        if share < 1.0:
            out |= _round(study, state, runner.say, number, out, bound)


def _round(
    study: Study, state: StudyState, say: Say, number: int, out: set[str], bound: float
) -> set[str]:
    """Decide a round; returns who stops."""
    curves = {n: c for n, c in curves_of(study, state).items() if n not in out}
    chances = race.p_best({n: [fit(c) for c in runs] for n, runs in curves.items() if runs})
    chances |= {n: None for n in curves if n not in chances}
    decisions = race.decide(chances, bound)
    state.decide(number, decisions)
    stopped = {n for n, (_, goes_on) in decisions.items() if not goes_on}
    words = ", ".join(f"{n} {'?' if p is None else f'{p:.2f}'}" for n, (p, _) in decisions.items())
    say(f"round {number}: P(best ceiling): {words}; stopped: {', '.join(stopped) or 'nobody'}")
    return stopped


def _stage_fit(study: Study, state: StudyState, say: Say) -> None:
    """Forecasts of what is to be extended, written once, before it begins."""
    if not study.plan.stages.extend_to or (state.folder / forecasts.FILE).exists():
        return
    curves = curves_of(study, state)
    chosen = _chosen(study, state, curves)
    say(f"to be extended: {', '.join(chosen)}")
    state.note("extend", chosen)
    forecasts.freeze(state.folder, {n: curves[n] for n in chosen})


def _chosen(study: Study, state: StudyState, curves: dict[str, list[Curve]]) -> list[str]:
    """Who is extended: by name, all that finished, or all that may have the best ceiling."""
    stopped = {name for _, name, _, goes_on in state.decisions() if not goes_on}
    there = [n for n, c in curves.items() if c and n not in stopped]
    match study.plan.stages.extend:
        case "all":
            return there
        case "contenders":
            chances = race.p_best({n: [fit(c) for c in curves[n]] for n in there})
            bound = study.plan.race.bound if study.plan.race else 0.05
            return [n for n, (_, goes_on) in race.decide(chances, bound).items() if goes_on]
        case names:
            return [n for n in there if n in names]


def _stage_extend(study: Study, state: StudyState, runner: Runner) -> None:
    for name in state.fact("extend") or []:
        state.want(name, study.variant(name).extended_steps)
    _run(runner)


def _run(runner: Runner) -> None:
    runner.run()
    if runner.stop_signal is not None:
        raise Stopped(runner.stop_signal)


def _stage_check(study: Study, state: StudyState, say: Say) -> StudyResult:
    """Result, forecasts and page from what is there."""
    from scalerl.experiments.report import write_report

    result = result_of(study, state)
    result.write(state.folder)
    if any(r.runs for r in result.variants):
        paths = [state.folder]
        share = study.plan.stages.fit_share
        page = write_report(paths, state.folder / PAGE, fit_share=share)
        say(f"the page: {page}")
    return result


# ── reading ─────────────────────────────────────────────────────────────────────────────────────
def curves_of(study: Study, state: StudyState) -> dict[str, list[Curve]]:
    """Each variant's curves, of runs that did not fail."""
    unit, tokens = study.plan.compute, study.plan.budget.tokens
    found: dict[str, list[Curve]] = {variant.name: [] for variant in study.variants}
    for row in state.runs():
        if row.variant not in found or row.state == "failed":
            continue
        curve = read_run_curve(state.folder / row.folder, unit, tokens=tokens)
        if curve is not None:
            found[row.variant].append(curve)
    return found


def result_of(study: Study, state: StudyState) -> StudyResult:
    """The result so far."""
    curves = curves_of(study, state)
    rows = [r for r in state.runs() if r.variant in curves]
    known = {variant.name: variant for variant in study.variants}
    checks = forecasts.check(state.folder, curves, fit_share=study.plan.stages.fit_share)
    return study_result(
        study.name,
        curves,
        base=study.base.name,
        abouts={n: v.about for n, v in known.items()},
        target=study.plan.target,
        forecasts=checks,
        notes=[*study.notes, *_run_notes(rows)],
    )


def result_so_far(study: Study, folder: Path) -> StudyResult:
    """The result of what is there, while it is still being made or after.

    Raises:
        InputError: nothing has been started in the folder.
    """
    state = _opened(folder)
    try:
        return result_of(study, state)
    finally:
        state.close()


def replay_race(study: Study, folder: Path) -> str:
    """What a race would have saved on the runs that are there, in words.

    Raises:
        InputError: nothing has been started in the folder.
    """
    plan = study.plan.race or Race()
    state = _opened(folder)
    try:
        found = race.replay(curves_of(study, state), plan.rounds, plan.bound)
    finally:
        state.close()
    return found.words() if found else "there is no curve yet"


def failures(folder: Path) -> list[str]:
    """Runs that failed."""
    state = _opened(folder)
    try:
        return [r.name for r in state.runs() if r.state == "failed"]
    finally:
        state.close()


def _opened(folder: Path) -> StudyState:
    if not (folder / FILE).is_file():
        raise InputError(f"{folder}: no study has been started there")
    return StudyState(folder)


def _run_notes(rows: Sequence[RunRow]) -> list[str]:
    notes = [f"{r.name}: {r.state}: {r.reason}" for r in rows if r.reason]
    unfinished = [r.name for r in rows if r.state in ("waiting", "running")]
    if unfinished:
        notes.append(f"not finished: {', '.join(unfinished)}")
    return notes


def status(study: Study, folder: Path, jobs: int = 1) -> str:
    """How far a study is, run by run; asks only the tables, so it may be asked at any time.

    Raises:
        InputError: nothing has been started in the folder.
    """
    state = _opened(folder)
    try:
        rows, decisions = state.runs(), state.decisions()
    finally:
        state.close()
    wide = max((len(r.name) for r in rows), default=0) + 2
    lines = [
        f"{r.name:<{wide}}{r.state:<9}{r.steps_done:>6}/{r.steps_wanted:<6}{r.seconds:>7.0f} s  "
        f"{r.tokens_generated / 1e6:6.2f}M tokens  attempts {r.attempts}  {r.reason}".rstrip()
        for r in rows
    ]
    for number, name, p, goes_on in decisions:
        lines.append(
            f"round {number}: {name}: P(best) = {'?' if p is None else f'{p:.3f}'}, "
            + ("goes on" if goes_on else "stopped")
        )
    return "\n".join([f"{study.name} in {folder}", *lines, overview(rows, jobs)])


def plan_of(study: Study) -> str:
    """What a study would do: variants with their differences, runs, completions, tokens at most."""
    lines = [f"study {study.name}: {study.plan.about}".rstrip(": ")]
    total = runs = most = 0
    for variant in study.variants:
        config = variant.config
        a_step = config.batch.groups * config.batch.completions
        steps = config.steps
        completions = steps * a_step * len(variant.seeds)
        runs += len(variant.seeds)
        total += completions
        most += completions * config.sampling.max_new_tokens
        seeds = ", ".join(map(str, variant.seeds))
        head = f"{variant.name}  seeds {seeds}; {steps} steps × {a_step} completions"
        lines += ["", head + f"; evaluated every {config.evaluation.every}"]
        if variant.about:
            lines.append(f"    {variant.about}")
        lines += [f"    {k}: {_shown(a)} → {_shown(b)}" for k, (a, b) in variant.changed.items()]
    lines += ["", *(f"note: {note}" for note in study.notes)]
    lines.append(f"{runs} runs, {total:,} completions, {most:,} tokens at most")
    if study.plan.budget.tokens:
        lines.append(f"a run ends once it has generated {study.plan.budget.tokens:,} tokens")
    if study.plan.race:
        shares = ", ".join(f"{s:.0%}" for s in study.plan.race.rounds)
        lines.append(f"race: decided at {shares}; stops below P(best) = {study.plan.race.bound:g}")
    if study.plan.stages.extend_to:
        to, who = study.plan.stages.extend_to, study.plan.stages.extend
        lines.append(f"then extended to {to} steps of the base: {who}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)
