"""From a command to a finished, stopped or resumed run: signals, checkpoints, and the way out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from scalerl.config import Config, differences, load_config
from scalerl.errors import InputError, RunError
from scalerl.messages import Counters
from scalerl.model.source import resolve_model
from scalerl.pipeline import heldout, state
from scalerl.pipeline.alarms import Alarmed, Judge, Listener, Silent, Watch
from scalerl.pipeline.devices import trainer_device
from scalerl.pipeline.loop import Ending, train
from scalerl.pipeline.records import RunDirectory, current_rows
from scalerl.pipeline.rollouts import Stopped
from scalerl.pipeline.run import Run, open_run
from scalerl.pipeline.start import make_start
from scalerl.train import checkpoint


class GraceOver(Stopped):
    """The checkpoint after a signal took too long; the one before it stands."""

    def __str__(self) -> str:
        return f"{super().__str__()}; no checkpoint within execution.grace_s"


# A resumed run may change these: they decide how far, how often and where, not what is computed.
HARMLESS = (
    "steps",
    "checkpoint.",
    "monitor.",
    "execution.",
    "batch.rows_per_pass",
    "batch.tokens_per_pass",
    "evaluation.",
)


def run_new(
    config: Config,
    path: Path,
    listener: Listener,
    *,
    starts: Path,
    on_start: Callable[[int, float], None] = lambda step, loss: None,
    make_judge: Callable[[], Judge] = Silent,
) -> Ending:
    """Train from the start in a folder that holds no run yet.

    Args:
        starts: folder of start models, made once for their settings.
        on_start: progress of the supervised stage, (step, loss).
        make_judge: says which figures are alarming; a new judge for each stretch of the run.

    Raises:
        InputError: the folder holds a run, there is no such device, or the model cannot be read.
        Stopped: a signal ended the run; a checkpoint was made.
        RunError: the run could not go on.
    """
    trainer_device(config)  # refused before a folder is made for the run
    directory = RunDirectory.create(path, config)
    with ExitStack() as unless_ready:
        unless_ready.callback(directory.withdraw)
        start = start_model(config, starts, on_start)
        run = open_run(config, directory, start)
        unless_ready.pop_all()
    return _watched(run, listener, make_judge)


def run_on(
    path: Path,
    listener: Listener,
    *,
    starts: Path,
    config: Config,
    make_judge: Callable[[], Judge] = Silent,
) -> Ending:
    """Go on from the last whole checkpoint of the run in `path`.

    Raises:
        InputError: no run or checkpoint there, or a setting changed that a run cannot change.
    """
    directory = RunDirectory.reopen(path)
    found = checkpoint.latest(directory.checkpoints, listener.on_warning)
    computed_with = load_config([(found or path) / "config.toml"])
    for change in check_changes(computed_with, config):
        listener.on_warning(f"resumed with another setting: {change}")
    start = start_model(config, starts, lambda step, loss: None)
    if found is None:
        listener.on_warning(f"{path}: no whole checkpoint; the run begins again from step 0")
        run = open_run(config, directory, start)
    else:
        run = open_run(config, directory, start, trained_path=found / "model")
    with ExitStack() as unless_ready:
        unless_ready.callback(run.close)
        if found is not None:
            state.restore(run, found)
            if run.version >= config.steps:
                listener.on_warning(
                    f"the run has done all of its {config.steps} steps; give more with --steps"
                )
        directory.write_config(config)
        unless_ready.pop_all()
    return _watched(run, listener, make_judge)


def start_model(config: Config, starts: Path, on_start: Callable[[int, float], None]) -> Path:
    """The HF folder that training starts from."""
    if config.model.path:
        return resolve_model(config.model.path, starts)
    return make_start(config, starts, on_start)


def check_changes(before: Config, after: Config) -> list[str]:
    """What a resumed run changes, one line a setting; refuses, by name, what it must not."""
    lines = {
        key: f"{key}: {old!r} → {new!r}" for key, (old, new) in differences(before, after).items()
    }
    refused = [line for key, line in lines.items() if not key.startswith(HARMLESS)]
    if refused:
        raise InputError(
            "a resumed run cannot change what it computes:\n  "
            + "\n  ".join(refused)
            + "\nleave these as they were, or start another run"
        )
    return list(lines.values())


def _watched(run: Run, listener: Listener, make_judge: Callable[[], Judge]) -> Ending:
    """Train under the judge's eyes. With `monitor.on_alarm = rollback` a red alarm takes the run
    back to the last checkpoint from before the decline, `monitor.rollbacks` times at most."""
    monitor = run.config.monitor
    for rollbacks_left in reversed(range(monitor.rollbacks + 1)):
        watch = Watch(
            listener=listener,
            judge=make_judge(),
            directory=run.directory,
            action=monitor.on_alarm,
            stopping=stopping(run),
        )
        for row in current_rows(run.directory.path / "curve.jsonl"):
            if row["step"] <= run.version:
                watch.judge.on_evaluation(row)  # what it would know without the interruption
        try:
            return _guarded(run, watch)
        except Alarmed as raised:
            if monitor.on_alarm == "stop":
                raise RunError(f"{raised} (monitor.on_alarm = 'stop')") from None
            if not rollbacks_left:
                raise RunError(
                    f"{raised}; still alarmed after {monitor.rollbacks} rollbacks "
                    "(monitor.rollbacks)"
                ) from None
            run = _roll_back(run, raised, listener)
    raise AssertionError("unreachable: the last pass returns or raises")


def stopping(run: Run) -> Callable[[], bool]:
    """Whether a signal has asked this run to end."""
    return lambda: run.rollouts.stop_signal is not None


def _roll_back(run: Run, raised: Alarmed, listener: Listener) -> Run:
    """The run as it was before the decline, as its next attempt. What the abandoned stretch spent
    stays spent, and its group numbers are not used again, so its samples are not repeated. A
    checkpoint says so at once, and later ones go: a resume would repeat the decline, or start in
    the middle of it."""
    root = run.directory.checkpoints
    found = checkpoint.latest(root, listener.on_warning, up_to=raised.alarm.since_step)
    to = checkpoint.step_of(found) if found else 0
    listener.on_warning(f"rolling back to step {to}, to before the decline")
    compute, generated = run.compute_now(), run.rollouts.ledger.ended
    generated += sum(c.tokens_generated for c in run.rollouts.counters)
    next_group = run.rollouts.next_group
    checkpoint.discard_after(root, to)
    again = open_run(
        run.config,
        RunDirectory.reopen(run.directory.path),
        run.start_path,
        trained_path=found / "model" if found else None,
    )
    with ExitStack() as unless_ready:
        unless_ready.callback(again.close)
        if found:
            state.restore(again, found, anew=True)
        again.compute, again.rollouts.gone = compute, Counters()  # that of old generators is in it
        lost = generated - again.rollouts.ledger.ended
        again.rollouts.ledger.end_generator("rolled back", generated=lost, in_flight=lost)
        again.rollouts.next_group = next_group
        state.save(again)
        unless_ready.pop_all()
    return again


def _guarded(run: Run, listener: Listener) -> Ending:
    """Train with signals caught; whatever happens, no process is left behind."""
    run.rollouts.warn = listener.on_warning
    patience_s = 0.0  # for generators to end by themselves; after a fault nobody waits
    try:
        with _signals(run):
            try:
                ending = train(run, listener, state.save)
            except GraceOver:
                raise  # it comes at any moment, so the state may be half-way
            except Stopped:
                heldout.collect(run, listener.on_evaluation, wait=True)
                state.save(run)
                raise
            if run.version % run.config.checkpoint.every:
                state.save(run)
            patience_s = 5.0
            return ending
    finally:
        run.close(patience_s)


@contextmanager
def _signals(run: Run) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to stop at the next whole state and to checkpoint,
    for which it has `execution.grace_s`; a second SIGINT ends it at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked:
            asked.append(number)
            run.rollouts.stop_signal = number
            signal.setitimer(signal.ITIMER_REAL, run.config.execution.grace_s)

    def give_up(number: int, frame: FrameType | None) -> None:
        raise GraceOver(asked[0])

    asked: list[int] = []
    handlers = {signal.SIGINT: ask, signal.SIGTERM: ask, signal.SIGALRM: give_up}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
