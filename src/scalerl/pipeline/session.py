"""From a command to a finished, stopped or resumed run: signals, checkpoints, and the way out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from scalerl.config import Config, differences, dump_toml, load_config
from scalerl.errors import InputError
from scalerl.pipeline import heldout, state
from scalerl.pipeline.loop import Ending, Listener, train
from scalerl.pipeline.records import RunDirectory
from scalerl.pipeline.rollouts import Stopped
from scalerl.pipeline.run import Run, open_run
from scalerl.pipeline.start import make_start
from scalerl.train import checkpoint

# A resumed run may change these: they decide how far, how often and where, not what is computed.
HARMLESS = ("steps", "checkpoint.", "monitor.", "execution.", "batch.rows_per_pass", "evaluation.")


def run_new(
    config: Config,
    path: Path,
    listener: Listener,
    *,
    starts: Path,
    on_start: Callable[[int, float], None] = lambda step, loss: None,
) -> Ending:
    """Train from the start in a folder that holds no run yet.

    Args:
        starts: folder of start models, made once for their settings.
        on_start: progress of the supervised stage, (step, loss).

    Raises:
        InputError: the folder holds a run, or the model cannot be read.
        Stopped: a signal ended the run; a checkpoint was made.
        RunError: the run could not go on.
    """
    directory = RunDirectory.create(path, config)
    start = start_model(config, starts, on_start)
    run = open_run(config, directory, start)
    return _guarded(run, listener)


def run_on(path: Path, listener: Listener, *, starts: Path, config: Config) -> Ending:
    """Go on from the last whole checkpoint of the run in `path`.

    Raises:
        InputError: no run or checkpoint there, or a setting changed that a run cannot change.
    """
    directory = RunDirectory.reopen(path)
    check_changes(load_config([path / "config.toml"]), config)
    found = checkpoint.latest(directory.checkpoints, listener.on_warning)
    start = start_model(config, starts, lambda step, loss: None)
    if found is None:
        listener.on_warning(f"{path}: no whole checkpoint; the run begins again from step 0")
        run = open_run(config, directory, start)
    else:
        run = open_run(config, directory, start, trained_path=found / "model")
    try:
        if found is not None:
            state.restore(run, found)
        (path / "config.toml").write_text(dump_toml(config), "utf-8")
    except BaseException:
        run.close()
        raise
    return _guarded(run, listener)


def start_model(config: Config, starts: Path, on_start: Callable[[int, float], None]) -> Path:
    """The HF folder that training starts from."""
    if config.model.path:
        path = Path(config.model.path)
        if not path.is_dir():
            raise InputError(f"model.path: {path} is no folder with a model")
        return path
    return make_start(config, starts, on_start)


def check_changes(before: Config, after: Config) -> None:
    """Refuse, by name, what a resumed run must not change."""
    refused = {
        key: values
        for key, values in differences(before, after).items()
        if not key.startswith(HARMLESS)
    }
    if refused:
        lines = [f"{key}: {old!r} → {new!r}" for key, (old, new) in refused.items()]
        raise InputError(
            "a resumed run cannot change what it computes:\n  "
            + "\n  ".join(lines)
            + "\nleave these as they were, or start another run"
        )


def _guarded(run: Run, listener: Listener) -> Ending:
    """Train with signals caught; whatever happens, no process is left behind."""
    try:
        with _signals(run):
            ending = train(run, listener, state.save)
        state.save(run)
        return ending
    except Stopped:
        heldout.collect(run, listener.on_evaluation, wait=True)
        state.save(run)
        raise
    finally:
        run.close()


@contextmanager
def _signals(run: Run) -> Iterator[None]:
    """The first SIGINT or SIGTERM asks the run to stop at the next whole state; a second SIGINT
    ends it at once."""

    def ask(number: int, frame: FrameType | None) -> None:
        if run.rollouts.stop_signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        run.rollouts.stop_signal = number

    caught: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, ask) for number in caught]
    try:
        yield
    finally:
        for number, handler in zip(caught, before, strict=True):
            signal.signal(number, handler)
