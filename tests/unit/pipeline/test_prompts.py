"""Prompts and scorer of a run, and one curve a task."""

import json
from pathlib import Path

import pytest

from scalerl.config import dump_toml, load_config
from scalerl.errors import InputError
from scalerl.messages import Completion, Prompt
from scalerl.model.tiny import ASCII, tiny_tokenizer
from scalerl.pipeline.demonstrations import demonstrations
from scalerl.pipeline.heldout import _by_task
from scalerl.pipeline.prompts import make_scorer, run_prompts
from scalerl.pipeline.records import current_rows
from scalerl.pipeline.scoring import Scoring
from scalerl.scaling.readers.read import read_curves

EXAMPLE = Path(__file__).parents[3] / "examples" / "mixed.toml"


def settings(tmp_path, text):
    (tmp_path / "c.toml").write_text(text)
    return load_config([tmp_path / "c.toml"])


def sources(tmp_path, rows, more=""):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return settings(
        tmp_path, f'[[data.sources]]\npath = "{tmp_path / "p.jsonl"}"\ntask = "sums"\n{more}'
    )


ROWS = [{"prompt": f"{i}+{i}=", "answer": 2 * i} for i in range(60)]


def completion(tokenizer, text):
    ids = (*tokenizer.encode(text), tokenizer.eos_token_id)
    return Completion(
        group=0,
        sample=0,
        token_ids=ids,
        logp_gen=(0.0,) * len(ids),
        mask=(1,) * len(ids),
        segments=((0, 0),),
        finish="stop",
        interrupted=False,
        entropy=0.0,
    )


def test_a_config_with_sources_is_saved_and_read_back_the_same(tmp_path):
    config = load_config([EXAMPLE])
    (tmp_path / "config.toml").write_text(dump_toml(config))
    assert load_config([tmp_path / "config.toml"]) == config
    assert len(config.data.sources) == 3


def test_a_fault_in_a_source_is_named_with_its_key_and_file(tmp_path):
    with pytest.raises(InputError, match=r"c\.toml: unknown key 'data\.sources\.0\.pth'"):
        settings(tmp_path, '[[data.sources]]\npath = "x.jsonl"\npth = "y"\n')


def test_prompts_of_a_file_are_scored_by_value(tmp_path):
    tokenizer = tiny_tokenizer(ASCII)
    config, warnings = sources(tmp_path, ROWS), []
    loaded = run_prompts(config, tokenizer, warnings.append)
    assert len(loaded.training) + len(loaded.heldout) == 60
    prompt: Prompt = loaded.training[0]
    with make_scorer(config, loaded) as scorer:
        score = Scoring(scorer, tokenizer.decode).wait
        for text, outcome in (
            (f"<think></think><answer>{prompt.answer}.0</answer>", "correct"),
            ("<think></think><answer>-1</answer>", "wrong"),
            (f"<think><answer>{prompt.answer}</answer>", "no_answer"),
        ):
            scored = score(prompt, completion(tokenizer, text))
            assert (scored.outcome, scored.reward) == (outcome, 1.0 if outcome == "correct" else -1)
    shown = demonstrations(config, loaded, 400)
    heldout = {p.text for p in loaded.heldout}
    assert len(shown) == 400
    assert not heldout & {text for text, _ in shown}
    answers = {p.text: f"<answer>{p.answer}</answer>" for p in loaded.training}
    assert 0.4 < sum(answers[text] in trace for text, trace in shown) / 400 < 0.65


def test_errors_in_the_data_end_the_run_before_it_starts(tmp_path):
    rows = [*ROWS, {"prompt": "x", "answer": None}]
    with pytest.raises(InputError, match=r"p\.jsonl:61: error: bad answer"):
        run_prompts(sources(tmp_path, rows), tiny_tokenizer(ASCII))
    config = load_config([tmp_path / "c.toml"], overrides=["--data.on_error", "drop"])
    said = []
    assert run_prompts(config, tiny_tokenizer(ASCII), said.append).training
    assert "p.jsonl:61" in said[0]


def test_a_character_outside_the_tokenizer_is_a_fault_of_its_row(tmp_path):
    with pytest.raises(InputError, match=r"p\.jsonl:61: error: bad prompt: cannot be encoded"):
        run_prompts(sources(tmp_path, [*ROWS, {"prompt": "é", "answer": 1}]), tiny_tokenizer(ASCII))


def test_each_of_several_tasks_has_a_series_and_the_overall_one_stays(tmp_path):
    prompts = [
        Prompt(id=str(i), text="", token_ids=(), answer="", task=task)
        for i, task in enumerate(("a", "b", "a"))
    ]
    assert {k: len(v) for k, v in _by_task(prompts, [[], [], []]).items()} == {"a": 2, "b": 1}
    assert _by_task(prompts[:1], [[]]) == {}
    lines = [
        {"attempt": 0, "step": step, "pass_rate": rate, "device_hours": step + 1.0, **task}
        for step in range(6)
        for rate, task in ((0.5, {}), (0.7, {"task": "a"}), (0.1, {"task": "b"}))
    ]
    path = tmp_path / "curve.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row["pass_rate"] for row in current_rows(path)] == [0.5] * 6
    rates = {curve.name.rpartition("/")[2]: set(curve.pass_rate) for curve in read_curves(tmp_path)}
    assert rates["task a"] == {0.7}
    assert rates["task b"] == {0.1}
