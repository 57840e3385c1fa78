"""A study's runs with a stand-in for training: ends of all kinds, restarts, stages and the race."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from scalerl import scaling
from scalerl.errors import InputError
from scalerl.experiments import study as studies
from scalerl.experiments import study_runner
from scalerl.experiments.result import StudyResult
from scalerl.experiments.study_export import export
from scalerl.experiments.study_file import Study, load_study
from scalerl.experiments.study_progress import last_words, overview, time_left
from scalerl.experiments.study_runner import Runner
from scalerl.experiments.study_state import RunRow, StudyState, at_work
from scalerl.placement.commands import start_here

FAKE = (sys.executable, str(Path(__file__).with_name("fake_scalerl.py")))
TWO = "seeds = [0, 1]\n[variants.cap8]\nloss.ratio_max = 8\n"


def make(tmp_path: Path, text: str, *, steps: int = 40, points: int = 20) -> Study:
    file = tmp_path / "mine.toml"
    file.write_text(f"budget.steps = {steps}\nevaluation.points = {points}\n" + text)
    return load_study(file)


def conduct(study: Study, folder: Path, **options) -> tuple[StudyResult | None, list[str]]:
    said: list[str] = []
    options.setdefault("command", FAKE)
    return studies.conduct(study, folder, said.append, **options), said


def rows(folder: Path) -> dict[str, RunRow]:
    state = StudyState(folder)
    try:
        return {r.name: r for r in state.runs()}
    finally:
        state.close()


def test_every_run_is_done_and_the_result_written(tmp_path):
    result, said = conduct(make(tmp_path, TWO), tmp_path / "s", jobs=2)
    found = rows(tmp_path / "s")
    assert list(found) == ["scalerl/seed-0", "scalerl/seed-1", "cap8/seed-0", "cap8/seed-1"]
    assert {r.state for r in found.values()} == {"done"}
    assert {r.steps_done for r in found.values()} == {40}
    assert {r.tokens_generated for r in found.values()} == {4000}
    assert result is not None
    assert [v.verdict for v in result.variants] == ["the base", "raises the ceiling"]
    assert all((tmp_path / "s" / f).is_file() for f in ("result.json", "result.txt", "report.html"))
    assert (tmp_path / "s" / "starts" / "start-fake").is_dir()
    assert sum("making the start model" in s for s in said) == 1


def test_settings_that_another_seed_is_reading_are_never_half_written(tmp_path):
    file, torn = tmp_path / "variant.toml", []
    study_runner._settle(file, "whole = true\n" * 500)
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            if len(file.read_text()) != 500 * len("whole = true\n"):
                torn.append(file)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        study_runner._settle(file, "whole = true\n" * 500)
    stop.set()
    reader.join()
    assert not torn


def test_a_finished_study_starts_nothing_again(tmp_path):
    study = make(tmp_path, TWO)
    conduct(study, tmp_path / "s", until="run")
    before = (tmp_path / "s/cap8/seed-0/steps.jsonl").stat().st_mtime_ns
    _, said = conduct(study, tmp_path / "s", until="run")
    assert not [s for s in said if "started" in s]
    assert {r.attempts for r in rows(tmp_path / "s").values()} == {1}
    assert (tmp_path / "s/cap8/seed-0/steps.jsonl").stat().st_mtime_ns == before


def test_the_tables_can_be_read_by_anyone(tmp_path):
    conduct(make(tmp_path, TWO), tmp_path / "s", until="run")
    db = sqlite3.connect(tmp_path / "s" / "study.sqlite")
    query = "SELECT variant, seed, state FROM runs ORDER BY variant, seed"
    assert db.execute(query).fetchall()[0] == ("cap8", 0, "done")
    db.close()


def test_a_failed_run_is_marked_with_its_reason_and_the_rest_go_on(tmp_path):
    study = make(tmp_path, TWO + "[variants.bad]\nloss.ratio_max = 13\n")
    result, said = conduct(study, tmp_path / "s", jobs=2)
    found = rows(tmp_path / "s")
    assert found["bad/seed-0"].state == "failed"
    assert found["bad/seed-0"].reason == "the disk is full: of fakes"
    assert {r.state for n, r in found.items() if "bad" not in n} == {"done"}
    assert any("bad/seed-1: FAILED" in s for s in said)
    assert result is not None
    assert [v.name for v in result.variants] == ["scalerl", "cap8"]
    assert any("bad/seed-0: failed: the disk is full" in n for n in result.notes)
    assert studies.failures(tmp_path / "s") == ["bad/seed-0", "bad/seed-1"]


def test_failed_runs_are_retried_only_when_asked(tmp_path):
    study = make(tmp_path, "[variants.bad]\nloss.ratio_max = 13\n")
    conduct(study, tmp_path / "s", until="run")
    conduct(study, tmp_path / "s", until="run")
    assert rows(tmp_path / "s")["bad/seed-0"].attempts == 1
    conduct(study, tmp_path / "s", until="run", retry_failed=True)
    assert rows(tmp_path / "s")["bad/seed-0"].attempts == 2


def test_a_killed_run_is_resumed_where_it_was(tmp_path):
    study = make(tmp_path, "[variants.dies]\nloss.ratio_max = 14\n")
    _, said = conduct(study, tmp_path / "s", until="run")
    found = rows(tmp_path / "s")["dies/seed-0"]
    assert (found.state, found.attempts, found.steps_done) == ("done", 2, 40)
    assert any("ended by SIGKILL at step 4, resuming" in s for s in said)
    steps = (tmp_path / "s/dies/seed-0/steps.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps] == list(range(1, 41))


def test_a_run_that_keeps_dying_fails(tmp_path):
    study = make(tmp_path, "[variants.dies]\nloss.ratio_max = 15\n")
    conduct(study, tmp_path / "s", until="run")
    found = rows(tmp_path / "s")["dies/seed-0"]
    assert (found.state, found.attempts) == ("failed", 3)
    assert found.reason == "ended by SIGKILL 3 times, last at step 14"


def test_a_run_without_prompts_left_is_done_and_not_extended(tmp_path):
    text = "[variants.short]\nloss.ratio_max = 16\n"
    conduct(make(tmp_path, text), tmp_path / "s", until="run")
    extended = make(tmp_path, text + "[stages]\nextend_to = 60\nextend = 'all'\n")
    conduct(extended, tmp_path / "s", until="extend")
    found = rows(tmp_path / "s")
    assert found["short/seed-0"].reason == "ended at step 11: every prompt is retired"
    assert (found["short/seed-0"].state, found["short/seed-0"].attempts) == ("done", 1)
    assert found["scalerl/seed-0"].steps_done == 60


def test_a_budget_of_tokens_ends_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_PACE", "0.05")
    study = make(tmp_path, "budget.tokens = 1500\n" + TWO, steps=400, points=200)
    result, _ = conduct(study, tmp_path / "s", jobs=4)
    found = rows(tmp_path / "s").values()
    assert all(r.state == "done" and 15 <= r.steps_done < 60 for r in found)
    assert all("1,500 tokens generated" in r.reason for r in found)
    assert result is not None
    assert studies.curves_of(study, StudyState(tmp_path / "s"))["cap8"][0].step[-1] == 14


def test_a_stopped_study_leaves_no_process_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_PACE", "0.1")
    study = make(tmp_path, TWO)
    runners: list[Runner] = []

    def stop_soon(runner: Runner) -> None:
        runners.append(runner)

        def stop() -> None:
            while runner.stop_signal is None and not (tmp_path / "s/cap8/seed-0").exists():
                time.sleep(0.02)
                if (tmp_path / "s/scalerl/seed-1/steps.jsonl").exists():
                    break
            runner.stop_signal = signal.SIGINT

        threading.Thread(target=stop, daemon=True).start()

    with pytest.raises(studies.Stopped) as stopped:
        conduct(study, tmp_path / "s", jobs=2, on_runner=stop_soon)
    assert stopped.value.number == signal.SIGINT
    assert {r.state for r in rows(tmp_path / "s").values()} == {"waiting"}
    assert not runners[0]._children
    monkeypatch.setenv("FAKE_PACE", "0.001")
    conduct(study, tmp_path / "s", jobs=2)
    found = rows(tmp_path / "s")
    assert {r.state for r in found.values()} == {"done"}
    assert found["scalerl/seed-0"].attempts == 2


RUNNER = """
import sys
from pathlib import Path
from scalerl.experiments.study import conduct
from scalerl.experiments.study_file import load_study
conduct(load_study(Path(sys.argv[1])), Path(sys.argv[2]), print, jobs=2, command=sys.argv[3:])
"""


def test_the_runs_of_a_killed_runner_end_and_the_next_one_resumes_them(tmp_path):
    study = make(tmp_path, TWO)
    folder = tmp_path / "s"
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(study.file), str(folder), *FAKE],
        env={**os.environ, "FAKE_PACE": "0.5"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "scalerl/seed-1/steps.jsonl").exists():
            break
        time.sleep(0.05)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    orphans = [r.pid for r in rows(folder).values() if r.state == "running"]
    assert len(orphans) == 2
    _, said = conduct(study, folder, jobs=2)
    assert not any(alive(pid) for pid in orphans if pid)
    assert sum("was interrupted" in s for s in said) == 2
    found = rows(folder)
    assert {r.state for r in found.values()} == {"done"}
    assert found["scalerl/seed-0"].attempts == 2
    assert found["cap8/seed-0"].attempts == 1


def test_an_orphan_that_no_table_knows_is_waited_for(tmp_path):
    """The runner was killed before it wrote down whom it had started."""
    study, folder = make(tmp_path, TWO), tmp_path / "s"
    conduct(study, folder, until="run")
    state = StudyState(folder)
    state.update("cap8", 1, state="running", pid=None)
    state.close()
    orphan = start_here(["sleep", "1"], log=tmp_path / "log", lock=folder / "cap8/.seed-1.lock")
    began = time.monotonic()
    _, said = conduct(study, folder, until="run")
    assert time.monotonic() - began > 0.5
    assert orphan.wait() == 0
    assert any("cap8/seed-1: was interrupted" in s for s in said)
    assert rows(folder)["cap8/seed-1"].state == "done"


def alive(pid: int) -> bool:
    """A process that ended but whose parent has gone, too, may stay listed for a moment."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_an_export_holds_curves_that_fit_alone_to_the_same_ceiling(tmp_path):
    study = make(tmp_path, TWO)
    result, _ = conduct(study, tmp_path / "s", jobs=2)
    export(study, tmp_path / "s", tmp_path / "out")
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "cost.json", "curves", "curves.png", "race.txt", "result.json", "result.txt", "study.toml",
    ]  # fmt: skip
    assert len(list((tmp_path / "out/curves").iterdir())) == 4
    assert json.loads((tmp_path / "out/cost.json").read_text())["tokens_generated"] == 16000
    curve = scaling.read_curve(
        tmp_path / "out/curves/cap8.seed-1.jsonl", compute="flops", reward="pass_rate"
    )
    whole = scaling.read_curve(tmp_path / "s/cap8/seed-1", compute="flops", reward="pass_rate")
    np.testing.assert_allclose(curve.pass_rate, whole.pass_rate, rtol=1e-5)
    assert result is not None
    assert load_study(tmp_path / "out/study.toml").plan == study.plan


def test_an_export_of_nothing_says_so(tmp_path):
    with pytest.raises(InputError, match="no study has been started there"):
        export(make(tmp_path, TWO), tmp_path / "s", tmp_path / "out")


def test_two_runners_do_not_share_a_study(tmp_path):
    with at_work(tmp_path / "s"), pytest.raises(InputError, match="another `scalerl study`"):
        conduct(make(tmp_path, TWO), tmp_path / "s")


def test_changed_settings_are_refused_by_key(tmp_path):
    conduct(make(tmp_path, TWO), tmp_path / "s", until="run")
    with pytest.raises(InputError, match=r"variants.cap8: loss.ratio_max: 8.0 → 6.0"):
        conduct(make(tmp_path, TWO.replace("= 8", "= 6")), tmp_path / "s")


def test_seeds_variants_and_steps_may_be_added(tmp_path):
    conduct(make(tmp_path, TWO), tmp_path / "s", until="run")
    more = TWO.replace("[0, 1]", "[0, 1, 2]") + "[variants.cap6]\nloss.ratio_max = 6\n"
    conduct(make(tmp_path, more, steps=50), tmp_path / "s", until="run")
    found = rows(tmp_path / "s")
    assert len(found) == 9
    assert {r.steps_done for r in found.values()} == {50}
    assert found["scalerl/seed-0"].attempts == 2
    assert found["cap6/seed-2"].attempts == 1


def test_a_race_stops_the_loser_early_and_keeps_the_planted_winner(tmp_path):
    race = "race.rounds = [0.5, 0.75, 1.0]\n"
    study = make(tmp_path, race + TWO, steps=80, points=40)
    result, said = conduct(study, tmp_path / "s", jobs=2)
    found = rows(tmp_path / "s")
    assert found["cap8/seed-0"].steps_done == 80
    assert found["scalerl/seed-0"].state == "stopped"
    assert found["scalerl/seed-0"].steps_done == 40
    assert "race, round 1" in found["scalerl/seed-0"].reason
    assert any(s.startswith("round 1: P(best ceiling)") for s in said)
    assert result is not None
    assert result.variants[1].verdict == "raises the ceiling"
    _, again = conduct(study, tmp_path / "s", jobs=2)  # decisions stand
    assert not [s for s in again if "started" in s or "round" in s]


def test_forecasts_are_written_before_the_extension_and_checked_after(tmp_path):
    text = TWO + "[stages]\nextend_to = 80\nextend = 'all'\n"
    study = make(tmp_path, text)
    conduct(study, tmp_path / "s", until="fit")
    frozen = (tmp_path / "s/forecasts.json").read_text()
    assert {r.steps_done for r in rows(tmp_path / "s").values()} == {40}
    result, _ = conduct(study, tmp_path / "s")
    assert {r.steps_done for r in rows(tmp_path / "s").values()} == {80}
    assert (tmp_path / "s/forecasts.json").read_text() == frozen
    assert result is not None
    assert {f.fitted_to for f in result.forecasts} == {40e9}
    assert all(f.n_later == 20 and f.n_inside >= 12 for f in result.forecasts)


def test_contenders_alone_are_extended(tmp_path):
    study = make(tmp_path, TWO + "[stages]\nextend_to = 80\n", steps=60, points=30)
    conduct(study, tmp_path / "s")
    found = rows(tmp_path / "s")
    assert (found["cap8/seed-0"].steps_done, found["scalerl/seed-0"].steps_done) == (80, 60)


def test_status_and_plan_in_words(tmp_path):
    study = make(tmp_path, TWO)
    with pytest.raises(InputError, match="no study has been started"):
        studies.status(study, tmp_path / "s")
    conduct(study, tmp_path / "s", until="run")
    text = studies.status(study, tmp_path / "s")
    assert "cap8/seed-1" in text
    assert "100% of 4 runs: 4 done" in text
    plan = studies.plan_of(study)
    assert "loss.ratio_max: 5.0 → 8.0" in plan
    assert f"4 runs, {4 * 40 * 512:,} completions, {4 * 40 * 512 * 48:,} tokens at most" in plan


def test_time_left_counts_completions_and_jobs():
    def row(name: str, state: str, done: int, seconds: float) -> RunRow:
        return RunRow(
            variant=name, seed=0, folder=name, state=state, reason="", steps_wanted=10,  # type: ignore[arg-type]
            steps_done=done, completions_a_step=2, tokens_generated=0, attempts=1,
            seconds=seconds, pid=None,
        )  # fmt: skip

    some = [row("a", "done", 10, 20.0), row("b", "waiting", 0, 0.0), row("c", "waiting", 0, 0.0)]
    assert time_left(some, 1) == pytest.approx(40)
    assert time_left(some, 2) == pytest.approx(20)
    assert time_left(some[:1], 2) is None
    assert " 33% of 3 runs: 1 done, 2 waiting, about 20 s left" in overview(some, 2)


def test_last_words_take_the_message_or_the_last_line(tmp_path):
    log = tmp_path / "run.log"
    log.write_text("step 1\nTraceback\nValueError: nan\n")
    assert last_words(log) == "ValueError: nan"
    log.write_text("step 1\nscalerl: two faults:\n  a\n  b\n")
    assert last_words(log) == "two faults: a b"
    assert last_words(tmp_path / "none") == "it said nothing"
