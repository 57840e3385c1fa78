"""A study's runs on a Ray cluster of one machine: done, stopped by the runner, lost with an actor.

Needs Ray, which has an extra of its own.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from scalerl.experiments import study as studies
from scalerl.experiments.study_file import load_study
from scalerl.experiments.study_runner import Runner
from scalerl.experiments.study_state import StudyState
from scalerl.placement.ray import RayPlace

pytest.importorskip("ray", reason="Ray is not installed (pip install 'scalerl[ray]')")
FAKE = (sys.executable, str(Path(__file__).with_name("fake_scalerl.py")))
STUDY = """
budget.steps = 40
evaluation.points = 20
seeds = [0, 1]
[variants.cap8]
loss.ratio_max = 8
"""


@pytest.fixture(scope="module")
def cluster():
    place = RayPlace("local", cpus=0.5)
    yield place
    place.close()


def conduct(tmp_path: Path, place: RayPlace, **options) -> tuple[dict, list[str]]:
    said: list[str] = []
    file = tmp_path / "mine.toml"
    file.write_text(STUDY)
    try:
        studies.conduct(
            load_study(file), tmp_path / "s", said.append, jobs=2, until="run",
            command=FAKE, place=place, **options,
        )  # fmt: skip
    except studies.Stopped:
        said.append("stopped")
    state = StudyState(tmp_path / "s")
    rows = {r.name: r for r in state.runs()}
    state.close()
    return rows, said


def test_runs_on_a_cluster_are_done(tmp_path, cluster):
    rows, _ = conduct(tmp_path, cluster)
    assert {r.state for r in rows.values()} == {"done"}
    assert {r.steps_done for r in rows.values()} == {40}
    assert {r.pid for r in rows.values()} == {None}


def pace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float) -> None:
    """How long a step of the stand-in takes. Actors have the environment of their cluster, so it
    goes through the command."""
    command = ("env", f"FAKE_PACE={seconds}", *FAKE)
    monkeypatch.setattr(sys.modules[__name__], "FAKE", command)


def once(tmp_path: Path, act) -> None:
    """Do something when the first run has logged a step."""

    def wait() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if (tmp_path / "s/scalerl/seed-0/steps.jsonl").exists():
                act()
                return
            time.sleep(0.02)

    threading.Thread(target=wait, daemon=True).start()


def test_a_signal_ends_them_and_the_next_one_resumes(tmp_path, cluster, monkeypatch):
    pace(monkeypatch, tmp_path, 0.2)

    def on_runner(runner: Runner) -> None:
        once(tmp_path, lambda: setattr(runner, "stop_signal", signal.SIGINT))

    rows, said = conduct(tmp_path, cluster, on_runner=on_runner)
    assert said[-1] == "stopped"
    assert {r.state for r in rows.values()} == {"waiting"}
    pace(monkeypatch, tmp_path, 0.001)
    rows, _ = conduct(tmp_path, cluster)
    assert {r.state for r in rows.values()} == {"done"}
    assert rows["scalerl/seed-0"].attempts == 2


def test_a_lost_actor_ends_its_command_and_the_run_is_resumed(tmp_path, cluster, monkeypatch):
    import ray  # pyright: ignore[reportMissingImports]

    pace(monkeypatch, tmp_path, 0.05)
    commands = []
    start = cluster.start
    monkeypatch.setattr(
        cluster, "start", lambda *a, **k: commands.append(start(*a, **k)) or commands[-1]
    )
    once(tmp_path, lambda: ray.kill(commands[0]._actor))
    rows, said = conduct(tmp_path, cluster)
    assert {r.state for r in rows.values()} == {"done"}
    assert any("ended by SIGKILL" in s and "resuming" in s for s in said)
    assert max(r.attempts for r in rows.values()) == 2
