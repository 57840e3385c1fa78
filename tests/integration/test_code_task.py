"""The example that mixes four tasks, code among them: a few real steps, and a curve for each."""

import importlib.util
import json
import runpy
from pathlib import Path

import pytest

from scalerl import scaling
from scalerl.config import load_config
from scalerl.pipeline import run as run_module
from scalerl.pipeline.records import current_rows
from scalerl.pipeline.session import run_new
from scalerl.rewards.code import CodePool, read_tests
from scalerl.rewards.sandbox_probe import try_kind

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [
    *("--steps", "3", "--batch.prompts", "6", "--batch.completions", "4", "--seed", "1"),
    *("--evaluation.every", "1", "--evaluation.completions", "1", "--data.heldout_share", "0.02"),
    *("--supervised.steps", "400", "--supervised.rows", "16", "--sampling.slots", "32"),
    *("--model.tiny.hidden", "32", "--model.tiny.layers", "1", "--model.tiny.feed_forward", "64"),
]
TASKS = {"chain", "chain_sum", "basic_arithmetic", "functions"}

pytestmark = [
    pytest.mark.skipif(
        not any(try_kind(kind).works for kind in ("bubblewrap", "landlock")),
        reason="neither bubblewrap nor Landlock works here",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("reasoning_gym") is None,
        reason="the extra `environments` is not installed",
    ),
]


class Quiet:
    def on_step(self, row):
        pass

    def on_evaluation(self, row):
        pass

    def on_warning(self, text):
        pass


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def kept_starts(tmp_path_factory):
    return tmp_path_factory.mktemp("starts")


@pytest.mark.parametrize("mode", ["interleaved", "async"])
def test_four_tasks_train_and_each_has_a_curve_that_the_fit_takes(
    mode, tmp_path, kept_starts, monkeypatch
):
    monkeypatch.chdir(EXAMPLES.parent)
    text = (EXAMPLES / "mixed_code.toml").read_text().replace("heldout=96", "heldout=6")
    file = kept_starts / "mixed_code.toml"  # the same text, so that both use one start model
    file.write_text(text)
    config = load_config([file], overrides=[*SMALL, "--execution.mode", mode])
    scorers = []
    make_scorer = run_module.make_scorer
    monkeypatch.setattr(
        run_module, "make_scorer", lambda *a: scorers.append(make_scorer(*a)) or scorers[-1]
    )
    run_new(config, tmp_path / "run", Quiet(), starts=kept_starts)
    assert current_rows(tmp_path / "run" / "steps.jsonl")[-1]["step"] == 3
    lines = lines_of(tmp_path / "run" / "curve.jsonl")
    code = [line for line in lines if line.get("task") == "functions"]
    assert [line["step"] for line in code] == [0, 1, 2, 3]
    counts = scorers[0].counts
    assert counts["functions", "wrong"] + counts["functions", "correct"] > 0  # programs that ran
    assert not any(counts[task, "error"] for task in TASKS)
    curves = {curve.name: curve for curve in scaling.read_curves(tmp_path / "run")}
    by_task = {name.rpartition("task ")[2]: c for name, c in curves.items() if "task " in name}
    assert set(by_task) == TASKS
    for curve in by_task.values():
        assert len(curve.pass_rate) == 3  # step 0 is kept apart
        assert scaling.fit(curve).summary()


def test_the_code_task_is_what_its_script_writes_and_its_solutions_pass():
    rows = lines_of(EXAMPLES / "functions.jsonl")
    assert runpy.run_path(str(EXAMPLES / "functions.py"))["rows"]() == rows
    with CodePool() as pool:
        for ticket, row in enumerate(rows[:40]):
            text = f"</think>\n```python\n{row['solution']}\n```"
            pool.submit(ticket, text, read_tests(row["tests"]))
        done = []
        while len(done) < 40:
            done += pool.collect(1.0)
    assert {d.outcome for d in done} == {"correct"}
