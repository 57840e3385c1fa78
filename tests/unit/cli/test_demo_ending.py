"""`scalerl demo` around its run: how it ended, how to go on, and a page before the table."""

import signal

import pytest

from scalerl.cli.main import main
from scalerl.experiments import demo
from scalerl.pipeline.rollouts import Stopped


def test_the_ending_is_said_as_the_run_ended(tmp_path, monkeypatch, capsys):
    order = []
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: "prompts_retired")
    monkeypatch.setattr(demo, "write_page", lambda run: order.append("page") or run / "report.html")
    monkeypatch.setattr(demo, "forecast_table", lambda run: order.append("table") or "a table")
    assert main(["demo", "--dir", str(tmp_path), "--plain"]) == 0
    out = capsys.readouterr().out
    assert "ended early: every prompt is retired" in out
    assert "a table" in out
    assert f"The page to look at: {tmp_path / 'run-1' / 'report.html'}" in out
    assert order == ["page", "table"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_names_the_command_that_goes_on(tmp_path, monkeypatch, capsys, number):
    def stopped(*_, **__):
        raise Stopped(number)

    monkeypatch.setattr(demo, "run_demo", stopped)
    assert main(["demo", "--dir", str(tmp_path), "--plain"]) == 128 + number
    said = capsys.readouterr().out
    assert f"go on with: scalerl train --resume --run-dir {tmp_path / 'run-1'}" in said
