"""The pool of killable processes: limits hold, nothing else is touched, any thread may ask."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from scalerl.errors import RunError
from scalerl.rewards import workers as workers_module
from scalerl.rewards.math import math_job, math_outcome
from scalerl.rewards.workers import Workers

SOURCE = """
import os, time
def say(line):  # where only verdicts belong
    for number in range(3, 10):
        try:
            os.write(number, line + b"\\n")
        except OSError:
            pass
def score(completion, prompt):
    print("noise on standard output")
    match completion:
        case "mute":
            os.closerange(0, 64)
            time.sleep(60)
        case "babble": say(b"no verdict")
        case "list": say(b"[1]")
        case "brackets": say(b"[" * 60000)
        case "other": say(b'{"id": 0, "score": 1.0}')
        case "no verdict": say(b'{"id": %d}' % 1)
        case "flood":
            while True:
                say(bytes(1 << 16).replace(b"\\0", b"x")[:-1])
        case "hang":
            while True:
                try:
                    time.sleep(9)
                except BaseException:
                    pass
        case "die": os._exit(3)
        case "memory": return float(len(bytearray(8 << 30)))
        case "raise": raise KeyError("x")
        case "word": return "no_answer"
        case "deep": return (lambda f: f(f))(lambda f: f(f))
        case _: return 1.0
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return lambda text: {
        "kind": "plugin",
        "path": "planted:score",
        "completion": text,
        "prompt": {},
    }


def test_a_bad_job_ends_as_its_own_outcome_and_the_others_are_right(plugin):
    with Workers(count=2, limit_s=0.5, preload=()) as workers:
        began = time.monotonic()
        bad = ["hang", "die", "memory", "raise", "deep", "word"]
        asked = [(text, workers.submit(plugin(text))) for text in (bad + ["fine"] * 4) * 2]
        outcomes = [(text, future.result(timeout=30)) for text, future in asked]
        assert time.monotonic() - began < 20
        assert workers.killed == 2
        assert workers.crashed == 2
    expected = {"hang": "timeout", "word": "no_answer", "fine": None}
    for text, verdict in outcomes:
        assert verdict.get("outcome") == expected.get(text, "error"), (text, verdict)
        assert verdict.get("score") == (1.0 if text == "fine" else None)


def test_any_thread_gets_the_same_verdict():
    outcomes = []
    with Workers() as workers:

        def ask():
            outcomes.append(
                math_outcome(r"\boxed{\frac{2}{6}\sqrt{4x}}", r"\frac{2}{3}\sqrt x", workers)
            )
            outcomes.append(math_outcome(r"\boxed{\frac{1}{3}}", r"$\frac{1}{3}$", workers))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        ask()
        for thread in threads:
            thread.join()
    assert outcomes == ["correct"] * 10


def test_towers_among_normal_answers_are_bounded():
    towers = ["9^{9^{9^{9}}}", "2^{10^{9}}", "(10^{10})!", r"\frac{1}{10^{10^{10}}}"] * 16
    with Workers(count=2, limit_s=2.0) as workers:
        workers.check(math_job("x", ["y"]))
        began = time.monotonic()
        asked = []
        for index, tower in enumerate(towers):
            asked.append(workers.submit(math_job(tower, ["7"])))
            asked.append(workers.submit(math_job(rf"{index}\sqrt{{4}}", [str(2 * index)])))
        verdicts = [future.result(timeout=60)["outcome"] for future in asked]
        assert time.monotonic() - began < 20
    assert verdicts[1::2] == ["correct"] * 64
    assert "correct" not in verdicts[::2]


def test_closing_answers_what_is_open_and_leaves_no_process(plugin):
    workers = Workers(limit_s=60, preload=())
    futures = [workers.submit(plugin("hang")) for _ in range(3)]
    time.sleep(0.3)
    processes = [worker.process for worker in workers._workers]
    workers.close()
    assert [future.result()["outcome"] for future in futures] == ["error"] * 3
    assert all(process.poll() is not None for process in processes)
    with pytest.raises(RunError, match="closed"):
        workers.submit(plugin("fine"))
    workers.close()


def test_workers_that_do_not_start_are_an_error_and_no_verdict(plugin):
    with Workers(memory_bytes=1 << 20) as workers:
        with pytest.raises(RunError, match="do not start"):
            workers.check(plugin("fine"))
        with pytest.raises(RunError, match="do not start"):
            workers.submit(plugin("fine"))


def test_a_worker_that_closes_its_channel_and_stays_is_killed(plugin):
    with Workers(limit_s=30, preload=()) as workers:
        asked = [workers.submit(plugin(text)) for text in ("mute", "fine")]
        verdicts = [future.result(timeout=30) for future in asked]
    assert "ended with status -9" in verdicts[0]["reason"]
    assert verdicts[1] == {"score": 1.0}


@pytest.mark.parametrize("noise", ["babble", "list", "brackets", "other", "no verdict", "flood"])
def test_a_worker_that_says_what_is_no_verdict_is_treated_as_gone(plugin, noise):
    with Workers(limit_s=30, preload=()) as workers:
        asked = [workers.submit(plugin(text)) for text in (noise, "fine")]
        verdicts = [future.result(timeout=30) for future in asked]
        assert workers.crashed == 1
    assert verdicts == [
        {"outcome": "error", "reason": "the worker said what is no verdict"},
        {"score": 1.0},
    ]


def test_a_stopped_worker_holds_a_large_job_no_longer_than_its_limit(plugin):
    with Workers(count=2, limit_s=2.0, preload=()) as workers:
        large = {**plugin("fine"), "more": "x" * (1 << 20)}
        assert workers.submit(large).result(timeout=30) == {"score": 1.0}
        while not all(worker.ready for worker in workers._workers):
            time.sleep(0.05)
        os.kill(workers._workers[0].process.pid, signal.SIGSTOP)
        asked = [workers.submit(job) for job in (large, plugin("fine"), large)]
        verdicts = [future.result(timeout=30) for future in asked]
    assert verdicts == [
        {"outcome": "timeout", "reason": "over 2.0 s"},
        {"score": 1.0},
        {"score": 1.0},
    ]


def test_a_fault_of_the_pool_itself_is_told_to_all_who_wait_and_ask(plugin, monkeypatch):
    def refuse(*arguments, **options):
        raise BlockingIOError("no process left")

    with Workers(limit_s=30, preload=()) as workers:
        assert workers.check(plugin("fine")) == {"score": 1.0}
        monkeypatch.setattr(workers_module.subprocess, "Popen", refuse)
        asked = [workers.submit(plugin(text)) for text in ("die", "fine")]
        assert asked[0].result(timeout=30)["outcome"] == "error"
        for ask in (lambda: asked[1].result(timeout=30), lambda: workers.submit(plugin("fine"))):
            with pytest.raises(RunError, match="BlockingIOError: no process left") as raised:
                ask()
            fault = raised.value.__cause__
            assert isinstance(fault, BlockingIOError)
            assert fault.__traceback__ is not None  # it says where in the pool


def test_closing_returns_when_the_pool_is_held_up(plugin, monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(workers_module, "CLOSE_S", 0.2)
    workers = Workers(preload=())
    monkeypatch.setattr(workers, "_start_missing", lambda: held.wait(60))
    future = workers.submit(plugin("fine"))
    began = time.monotonic()
    workers.close()
    assert time.monotonic() - began < 20
    with pytest.raises(RunError, match="closed"):
        future.result(timeout=0)
    held.set()


def test_waiting_for_a_verdict_has_an_end_that_names_what_was_waited_for(plugin, monkeypatch):
    monkeypatch.setattr(workers_module, "WAIT_S", 0.2)
    with Workers(limit_s=0.1, preload=()) as workers:
        monkeypatch.setattr(workers, "_hand_out", lambda: None)
        with pytest.raises(RunError, match=r"a plugin check .* no verdict"):
            workers.check(plugin("fine"))


PARENT = """
import sys, time
from scalerl.rewards.workers import Workers
workers = Workers(limit_s=60, preload=())
job = {"kind": "plugin", "path": "planted:score", "prompt": {}}
workers.check({**job, "completion": "fine"})
workers.submit({**job, "completion": "hang"})
time.sleep(0.5)
print(workers._workers[0].process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
def test_a_busy_worker_ends_with_its_killed_parent(plugin):
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = Path(f"/proc/{int(parent.stdout.readline())}")
        assert worker.exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while worker.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.exists()
