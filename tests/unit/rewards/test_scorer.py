"""Everything is scored through one door: outcomes by task, tickets once each, any thread."""

import importlib.util
import threading

import pytest

from scalerl.errors import InputError, RunError
from scalerl.messages import Prompt
from scalerl.rewards import scorer as scorer_module
from scalerl.rewards import workers
from scalerl.rewards.sandbox_probe import try_kind
from scalerl.rewards.scorer import Check, Scorer

SOURCE = """
import time
def length(completion, prompt):
    return len(completion) / 10
def word(completion, prompt):
    return "correct" if prompt["answer"] in completion else "wrong"
def odd(completion, prompt):
    return {"hang": lambda: time.sleep(60), "nan": lambda: float("nan"), "raise": lambda: 1 / 0,
            "word": lambda: "excellent"}[completion]()
"""

needs_sandbox = pytest.mark.skipif(
    not any(try_kind(kind).works for kind in ("bubblewrap", "landlock")),
    reason="neither bubblewrap nor Landlock works here",
)
needs_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="the extra `environments` is not installed",
)


def prompt(task, answer="12", identity="p"):
    return Prompt(id=identity, text="?", token_ids=(1,), answer=answer, task=task)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    (tmp_path / "planted_rewards.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "planted_rewards"


def collect_all(scorer, count):
    found = []
    while len(found) < count:
        found += scorer.collect(timeout_s=20.0)
    return sorted(found)


def test_each_task_has_its_own_check_and_each_ticket_comes_back_once():
    checks = {"chain": Check(reward="exact"), "math": Check(reward="math")}
    with Scorer(checks, {"two": {"golds": ["1", r"\sqrt{2}"]}}) as scorer:
        scorer.submit(0, prompt("chain"), "<think></think><answer>12</answer>")
        scorer.submit(1, prompt("chain"), "<answer>12</answer>")
        scorer.submit(2, prompt("math"), r"\boxed{12.0}")
        scorer.submit(3, prompt("math"), r"\boxed{13}")
        scorer.submit(4, prompt("math", "2x+2"), r"\boxed{2(x+1)}")
        scorer.submit(5, prompt("math", identity="two"), r"\boxed{2^{1/2}}")
        scorer.submit(6, prompt("math"), "12")
        assert scorer.pending == 7
        told = [(c.ticket, c.outcome, c.score) for c in collect_all(scorer, 7)]
        assert scorer.pending == 0
        assert scorer.collect() == []
    outcomes = ["correct", "no_answer", "correct", "wrong", "correct", "correct", "no_answer"]
    assert told == [(i, o, float(o == "correct")) for i, o in enumerate(outcomes)]
    assert scorer.counts["math", "correct"] == 3
    assert scorer.counts["chain", "no_answer"] == 1


def test_quick_answers_are_ready_at_once_and_start_no_process():
    with Scorer({"math": Check(reward="math")}) as scorer:
        scorer.submit(7, prompt("math"), r"\boxed{12}")
        assert [c.ticket for c in scorer.collect(timeout_s=0)] == [7]
        assert scorer._workers._workers == []


def test_any_thread_may_ask_for_a_verdict():
    outcomes = []
    with Scorer({"math": Check(reward="math")}) as scorer:

        def ask():
            outcomes.append(scorer.score_now(prompt("math", r"\pi"), r"\boxed{\pi + 0}").outcome)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert outcomes == ["correct"] * 3


def test_own_functions_are_rewards_by_import_path(planted):
    checks = {
        "length": Check(reward=f"{planted}:length", threshold=0.5),
        "word": Check(reward=f"{planted}:word"),
        "odd": Check(reward=f"{planted}:odd"),
    }
    with Scorer(checks, limit_s=1.0) as scorer:
        scorer.prepare()
        assert scorer.score_now(prompt("length"), "12345") == ("correct", 0.5)
        assert scorer.score_now(prompt("length"), "1234") == ("wrong", 0.4)
        assert scorer.score_now(prompt("word"), "it is 12") == ("correct", 1.0)
        for text, outcome in (
            ("nan", "error"),
            ("raise", "error"),
            ("word", "error"),
            ("hang", "timeout"),
        ):
            assert scorer.score_now(prompt("odd"), text) == (outcome, 0.0)


def test_bad_rewards_are_named_before_a_run(planted):
    with pytest.raises(InputError, match="no reward 'maths'"):
        Scorer({"a": Check(reward="maths")})
    with (
        Scorer({"a": Check(reward=f"{planted}:absent")}) as scorer,
        pytest.raises(InputError, match="cannot be imported: AttributeError"),
    ):
        scorer.prepare()
    with Scorer({}) as scorer, pytest.raises(InputError, match="no reward is known for task 'b'"):
        scorer.submit(0, prompt("b"), "")


@needs_gym
def test_reasoning_gym_is_scored_by_its_own_scorer_after_a_trial():
    detail = {"dataset": "chain_sum", "settings": {"size": 3, "seed": 0}, "index": 0}
    import reasoning_gym

    entry = reasoning_gym.create_dataset("chain_sum", size=3, seed=0)[0]
    asked = prompt("sum", entry["answer"])
    with Scorer({"sum": Check(reward="reasoning_gym")}, {"p": detail}, limit_s=30) as scorer:
        scorer.try_entries([asked])
        right = scorer.score_now(asked, f"<answer>{entry['answer']}</answer>")
        assert right == ("correct", 1.0)
        assert scorer.score_now(asked, "<answer>no idea</answer>").outcome == "wrong"
        assert scorer.score_now(asked, entry["answer"]).outcome == "no_answer"
        with pytest.raises(InputError, match="gives its own answer"):
            scorer.try_entries([prompt("sum", "not the answer")])
    low = Check(reward="reasoning_gym", threshold=0.01)
    generous = {"dataset": "countdown", "settings": {"size": 3, "seed": 0}, "index": 0}
    entry = reasoning_gym.create_dataset("countdown", size=3, seed=0)[0]
    with (
        Scorer({"c": low}, {"p": generous}, limit_s=30) as scorer,
        pytest.raises(InputError, match="gives nonsense"),
    ):
        scorer.try_entries([prompt("c", entry["answer"])])


@needs_gym
def test_ten_entries_of_a_data_set_are_tried_and_no_more():
    import reasoning_gym

    settings = {"size": 11, "seed": 0}
    entries = list(reasoning_gym.create_dataset("chain_sum", **settings))
    details = {
        str(i): {"dataset": "chain_sum", "settings": settings, "index": i} for i in range(11)
    }
    asked = [prompt("sum", entry["answer"], str(i)) for i, entry in enumerate(entries)]
    with Scorer({"sum": Check(reward="reasoning_gym")}, details, limit_s=30) as scorer:
        scorer.try_entries([*asked[:10], prompt("sum", "not the answer", "10")])
        with pytest.raises(InputError, match="gives its own answer"):
            scorer.try_entries([*asked[:9], prompt("sum", "not the answer", "9")])


@needs_sandbox
def test_programs_are_run_against_the_tests_of_their_own_prompt():
    tests = {
        "inc": '{"fn_name": "f", "inputs": [[1], [5]], "outputs": [2, 6]}',
        "echo": '[{"input": "3\\n", "output": "3\\n"}]',
    }
    details = {name: {"tests": text} for name, text in tests.items()}
    answers = [
        ("inc", "f=lambda x:x+1", "correct"),
        ("inc", "f=lambda x:2*x", "wrong"),
        ("echo", "print(input())", "correct"),
        ("echo", "f=lambda x:x+1", "wrong"),
        ("inc", "f=lambda x:", "wrong"),
        ("inc", "import os\nos._exit(0)", "wrong"),
    ]
    checks = {"code": Check(reward="code"), "math": Check(reward="math")}
    with Scorer(checks, details, workers=2) as scorer:
        for ticket, (name, program, _) in enumerate(answers):
            text = f"</think>\n```python\n{program}\n```"
            assert scorer.submit_unless_told(ticket, prompt("code", "", name), text) is None
        scorer.submit(6, prompt("code", "", "inc"), "</think> f=lambda x:x+1")
        assert scorer.submit_unless_told(7, prompt("math"), r"\boxed{12}") == ("correct", 1.0)
        waited = scorer.score_now(prompt("code", "", "inc"), "</think>\n```\nf=lambda x:x+1\n```")
        assert waited == ("correct", 1.0)
        told = [(c.ticket, c.outcome) for c in collect_all(scorer, 7)]
        assert scorer.pending == 0
    assert told == [*((i, o) for i, (_, _, o) in enumerate(answers)), (6, "no_answer")]
    assert scorer.counts["code", "wrong"] == 4


def test_a_broken_pool_is_an_error_where_verdicts_are_waited_for(monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("no process left")

    monkeypatch.setattr(workers.subprocess, "Popen", refuse)
    with Scorer({"math": Check(reward="math")}) as scorer:
        scorer.submit(0, prompt("math", "2x+2"), r"\boxed{2(x+1)}")
        with pytest.raises(RunError, match="no process left"):
            scorer.collect(timeout_s=20.0)
        with pytest.raises(RunError, match="no process left"):
            scorer.score_now(prompt("math", "2x+2"), r"\boxed{2(x+1)}")
    with (
        Scorer({"math": Check(reward="math")}) as scorer,
        pytest.raises(RunError, match="no process left"),
    ):
        scorer.score_now(prompt("math", "2x+2"), r"\boxed{2(x+1)}")


@pytest.mark.parametrize("reward", ["math", pytest.param("code", marks=needs_sandbox)])
def test_waiting_for_one_verdict_has_an_end_that_names_it(reward, monkeypatch):
    monkeypatch.setattr(scorer_module, "WAIT_S", 0.0)
    with Scorer({"t": Check(reward=reward)}, {"p": {"tests": ECHO}}, limit_s=0.1) as scorer:
        pool = scorer._workers if reward == "math" else scorer._code
        monkeypatch.setattr(pool, "_hand_out" if reward == "math" else "collect", nothing)
        with pytest.raises(RunError, match=rf"waited .* s for the {reward} check .* prompt 'p'"):
            scorer.score_now(prompt("t", "2x+2"), r"\boxed{2(x+1)}")


ECHO = '[{"input": "3\\n", "output": "3\\n"}]'


def nothing(*arguments):
    return []
