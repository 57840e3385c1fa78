"""The pool of killable processes: limits hold, nothing else is touched, any thread may ask."""

import threading
import time

import pytest

from scalerl.errors import RunError
from scalerl.rewards.math import math_job, math_outcome
from scalerl.rewards.workers import Workers

SOURCE = """
import os, time
def score(completion, prompt):
    print("noise on standard output")
    match completion:
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
        assert workers.check(plugin("fine"))["outcome"] == "error"
        with pytest.raises(RunError, match="do not start"):
            workers.submit(plugin("fine"))
