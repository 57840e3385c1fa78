"""Checks beside training: each verdict comes to its own completion, whoever waited first."""

import json
import time

import pytest
from pipeline_fakes import make_completion

from scalerl.algorithm.effective import Rules, assemble, final_reward
from scalerl.algorithm.length_penalty import LengthPenalty
from scalerl.config import load_config
from scalerl.errors import InputError, RunError
from scalerl.messages import Group, Prompt
from scalerl.pipeline.run import scores_are_waited_for
from scalerl.pipeline.scoring import Scoring, make_score
from scalerl.rewards import sandbox_probe
from scalerl.rewards import scorer as scorer_module
from scalerl.rewards.scorer import Check, Scorer

SOURCE = """
import os, time
def slow(completion, prompt):
    time.sleep(0.05 * len(completion))
    if prompt["id"] == "dies":
        os._exit(1)
    return "correct" if prompt["answer"] == completion else "wrong"
"""


@pytest.fixture
def scorer(tmp_path, monkeypatch):
    (tmp_path / "slow_rewards.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    checks = {"slow": Check(reward="slow_rewards:slow"), "exact": Check(reward="exact")}
    with Scorer(checks, workers=2, limit_s=20) as made:
        yield made


def prompt(name, task="slow", answer="555"):
    return Prompt(id=name, text="?", token_ids=(1,), answer=answer, task=task)


def written(tokens, group=0, sample=0):
    """As many fives as tokens; a last token ends it."""
    return make_completion(group, sample, tokens=tokens + 1)


def decode(ids):
    return "".join(map(str, ids))


def test_a_slow_check_comes_later_and_one_that_is_told_at_once_comes_at_once(scorer):
    scoring = Scoring(scorer, decode)
    score = make_score(scoring, waits=False)
    assert score(prompt("a"), written(3, sample=1)) is None
    told = score(prompt("b", "exact"), written(3))
    assert told is not None
    assert told.outcome == "no_answer"
    came = []
    while not came:
        came = scoring.collect()
        time.sleep(0.01)
    [later] = came
    assert (later.completion.sample, later.outcome, later.reward) == (1, "correct", 1.0)
    assert scoring.collect() == []
    waited = make_score(scoring, waits=True)(prompt("a"), written(2))
    assert waited is not None
    assert (waited.outcome, waited.reward) == ("wrong", -1.0)


def test_who_waits_for_all_of_his_own_leaves_the_others_to_their_asker(scorer):
    scoring = Scoring(scorer, decode)
    assert scoring.submit(prompt("a"), written(3, group=7)) is None
    answers = [(prompt(str(i)), written(4 - i % 3, group=i)) for i in range(6)]
    answers.insert(2, (prompt("x", "exact"), written(1, group=9)))
    answers.insert(4, (prompt("dies"), written(1, group=8)))
    found = scoring.score_all(answers)
    assert [s.completion for s in found] == [completion for _, completion in answers]
    right = {2: "wrong", 3: "correct", 4: "wrong"}
    for (asked, completion), got in zip(answers, found, strict=True):
        expected = right.get(len(completion.token_ids) - 1)
        if completion.group in (8, 9):
            expected = {"dies": "error", "x": "no_answer"}[asked.id]
        assert got.outcome == expected
    [left] = scoring.collect()
    assert (left.completion.group, left.outcome) == (7, "correct")


def test_waiting_for_all_verdicts_has_an_end_that_names_what_was_waited_for(scorer, monkeypatch):
    monkeypatch.setattr(scorer_module, "WAIT_S", 0.0)
    monkeypatch.setattr(scorer._workers, "limit_s", 0.1)
    monkeypatch.setattr(scorer._workers, "_hand_out", lambda: None)
    answers = [(prompt("x", "exact"), written(1)), (prompt("a"), written(1))]
    reason = r"waited 0 s for the checks of 1 answers, the first to prompt 'a': no verdict"
    with pytest.raises(RunError, match=reason):
        Scoring(scorer, decode).score_all(answers)


def test_a_right_answer_that_was_cut_off_is_not_passed_but_its_outcome_is_told(scorer):
    ended, cut = written(3), make_completion(0, tokens=3, finish="length")
    scores = Scoring(scorer, decode).score_all([(prompt("a"), ended), (prompt("a"), cut)])
    assert [(s.outcome, s.reward) for s in scores] == [("correct", 1.0), ("correct", -1.0)]
    group = Group(index=0, prompt=prompt("a"), admitted_version=0, completions=tuple(scores))
    assert group.pass_rate == 0.5
    kept = assemble([group], Rules(truncated="keep", normalisation="none"))
    assert [row.advantage for row in kept.rows] == [1.0, -1.0]
    penalty = LengthPenalty(length_max=3, length_cache=2)  # −1 at three tokens
    assert final_reward(scores[1], Rules(truncated="keep", penalty=penalty)) == -1.0


def test_where_the_order_of_all_things_is_fixed_scores_are_waited_for():
    for words, waited in (
        ((), False),
        (("--execution.mode", "interleaved"), True),
        (("--regime.type", "synchronous"), True),
    ):
        assert scores_are_waited_for(load_config([], overrides=list(words))) is waited


def test_code_is_refused_where_no_sandbox_works_unless_that_is_allowed(tmp_path, monkeypatch):
    from scalerl.model.tiny import ASCII, tiny_tokenizer
    from scalerl.pipeline.prompts import make_scorer, run_prompts

    def broken(kind):
        return sandbox_probe.Trial(kind=kind, works=False, detail="taken away")

    monkeypatch.setattr(sandbox_probe, "try_kind", broken)
    tests = '{"fn_name": "f", "inputs": [[1]], "outputs": [2]}'
    rows = [json.dumps({"prompt": f"f{i}", "answer": tests}) for i in range(30)]
    (tmp_path / "p.jsonl").write_text("\n".join(rows))
    (tmp_path / "c.toml").write_text(
        f'[[data.sources]]\npath = "{tmp_path / "p.jsonl"}"\nreward = "code"\ntask = "code"\n'
    )
    config = load_config([tmp_path / "c.toml"])
    loaded = run_prompts(config, tiny_tokenizer(ASCII))
    with pytest.raises(
        InputError, match=r"none works here .*taken away.*--rewards.allow_unsandboxed_code true"
    ):
        make_scorer(config, loaded)
    allowed = load_config(
        [tmp_path / "c.toml"], overrides=["--rewards.allow_unsandboxed_code", "true"]
    )
    text = "</think>\n```python\nf=lambda x:x+1\n```"
    with make_scorer(allowed, loaded) as scorer:
        assert scorer.score_now(loaded.training[0], text).outcome == "correct"
