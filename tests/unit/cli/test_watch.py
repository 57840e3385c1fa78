"""The live panel: every figure that a run is watched by, from fixed rows."""

import io
import re

import pytest
from rich.console import Console

from scalerl.cli import watch
from scalerl.config import load_config

STEP = {
    "step": 1,
    "pass_rate": 0.4,
    "groups_trained": 20,
    "groups": 32,
    "generator_device_hours": 1.0 / 3600,
    "tokens_generated": 1000,
    "tokens_trained": 800,
    "busy_s": 0.5,
    "staleness_mean": 1.5,
    "staleness_max": 3,
    "generator_idle_share": 0.47,
    "trainer_idle_share": 0.03,
    "truncation_rate": 0.062,
}
SECOND = STEP | {
    "step": 2,
    "generator_device_hours": 3.0 / 3600,
    "tokens_generated": 7000,
    "tokens_trained": 2800,
}
EVALUATION = {
    "step": 0,
    "pass_rate": 0.312,
    "pass_rate_se": 0.006,
    "entropy": 0.1,
    "device_hours": 0.0,
}


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def test_the_live_panel_shows_every_figure(tmp_path, clock):
    console = Console(force_terminal=True, width=100, file=io.StringIO(), highlight=False)
    config = load_config(overrides=["--steps", "50"])
    watcher = watch.Watcher(config, tmp_path, console, live=True)
    try:
        watcher.on_evaluation(EVALUATION)
        watcher.on_step(STEP)
        clock[0] += 2.5
        watcher.on_step(SECOND)
        with console.capture() as shown:
            console.print(watcher._panel())
    finally:
        watcher.stop()
    panel = re.sub(r"\x1b\[[0-9;]*m", "", shown.get())
    for label, value in {
        "step": "2 of 50",
        "left": "2:00",  # 48 steps of 2.5 s
        "held-out pass rate": "▃ 0.312",
        "tokens/s generators": "3,000",  # 6,000 tokens in 2 device-seconds
        "tokens/s trainer": "4,000",  # 2,000 tokens in half a second
        "idle generators": "47%",
        "idle trainer": "3%",
        "staleness mean (max)": "1.5 (3)",
        "truncated": "6.2%",
    }.items():
        assert re.search(rf"{re.escape(label)}\s+{re.escape(value)}(\s|$)", panel), (label, panel)


def test_the_live_panel_is_drawn_on_the_terminal_and_gone_at_the_end(tmp_path, clock):
    out = io.StringIO()
    console = Console(force_terminal=True, width=100, file=out, highlight=False)
    watcher = watch.Watcher(load_config(), tmp_path, console, live=True)
    watcher.on_evaluation(EVALUATION)
    watcher.on_step(STEP)
    watcher.on_step(SECOND)
    assert watcher._live is not None
    watcher._live.refresh()
    assert "staleness mean" in out.getvalue()
    watcher.finish("prompts_retired")
    assert "ended early: every prompt is retired" in out.getvalue()
    assert watcher._live is None
