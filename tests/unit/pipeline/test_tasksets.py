"""verifiers tasksets as a source of prompts, scored by their own rewards. Every test runs on a
stand-in, and on the package itself where that is installed."""

import importlib.util
import sys
from pathlib import Path

import pytest

from scalerl.config.schema import Config
from scalerl.errors import InputError
from scalerl.model.tiny import ASCII, tiny_tokenizer
from scalerl.pipeline.prompts import make_scorer, run_prompts

FAKE = Path(__file__).parents[2] / "data" / "fake_verifiers"

TASKSET = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str | None = None
    unwritten: object = None

class Config(vf.TasksetConfig):
    num_tasks: int = 40
    known: bool = True

class Sum(vf.Task[Data]):
    @vf.reward(weight=0.75)
    async def right(self, trace) -> float:
        n = self.data.idx
        return float(f"[{2 * n}]" in trace.last_reply)

    @vf.reward(weight=0.25)
    async def thought(self, trace) -> float:
        return float(trace.assistant_messages[-1].reasoning_content == "hm")

class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for n in range(self.config.num_tasks):
            answer = f"[{2 * n}]" if self.config.known else None
            prompt = [vf.UserMessage(content=f"{n}+{n}=")] if n % 2 else f"{n}+{n}="
            yield Sum(Data(prompt=prompt, system_prompt="Say [sum].", answer=answer))

__all__ = ["Sums"]
"""

REFUSED = {
    "gives the model tools": (
        "class Sum(vf.Task[Data]):",
        "class Sum(vf.Task[Data]):\n    @classmethod\n"
        "    def toolsets(cls, config):\n        return [object()]\n",
    ),
    "needs a container": (
        "class Sum(vf.Task[Data]):",
        "class Sum(vf.Task[Data]):\n    NEEDS_CONTAINER = True\n",
    ),
    r"prepares a runtime \(`setup`\)": (
        "class Sum(vf.Task[Data]):",
        "class Sum(vf.Task[Data]):\n    async def setup(self, trace, runtime): ...\n",
    ),
    r"steers the conversation \(`enough`\)": (
        "class Sum(vf.Task[Data]):",
        "class Sum(vf.Task[Data]):\n    @vf.stop\n"
        "    async def enough(self, trace: vf.Trace): ...\n",
    ),
    r"needs a runtime to score \(`right`\)": ("right(self, trace)", "right(self, trace, runtime)"),
    "scores in a way of its own": (
        "class Sum(vf.Task[Data]):",
        "class Sum(vf.Task[Data]):\n    async def score(self, trace, runtime=None): ...\n",
    ),
    r"has an environment of its own \(Two\)": (
        '__all__ = ["Sums"]',
        'class Two(vf.Env):\n    pass\n\n__all__ = ["Sums", "Two"]',
    ),
    "has a harness of its own": (
        '__all__ = ["Sums"]',
        'class Own(vf.Harness):\n    pass\n\n__all__ = ["Sums", "Own"]',
    ),
    "never ends: set `limit`": ("    def load(self):", "    INFINITE = True\n    def load(self):"),
    "has no tasks": ("range(self.config.num_tasks)", "range(0)"),
    "has no reward": ("@vf.reward", "@staticmethod\n    def _(f=None, weight=0): ...\n    #"),
    r"does not load \(ZeroDivisionError": ("__all__", "1 / 0\n__all__"),
}


def installed() -> bool:
    return importlib.util.find_spec("verifiers") is not None


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param(
            "package", marks=pytest.mark.skipif(not installed(), reason="verifiers is missing")
        ),
    ]
)
def planted(request, tmp_path, monkeypatch):
    """Writes tasksets; modules of the tests and the stand-in are forgotten afterwards."""
    before = set(sys.modules)
    paths = [str(tmp_path), *([str(FAKE)] if request.param == "stand-in" else [])]
    monkeypatch.setattr(sys, "path", [*paths, *sys.path])
    monkeypatch.setenv("PYTHONPATH", ":".join(paths))
    importlib.invalidate_caches()

    def plant(name: str = "planted_sums", old: str = "", new: str = "") -> str:
        assert old in TASKSET
        (tmp_path / f"{name}.py").write_text(TASKSET.replace(old, new) if old else TASKSET)
        return f"verifiers:{name.replace('_', '-')}"

    yield plant
    for module in set(sys.modules) - before:
        if module.startswith(("planted", *(["verifiers"] if request.param == "stand-in" else []))):
            del sys.modules[module]


def settings(path, **source):
    return Config.model_validate(
        {
            "data": {"sources": [{"path": path, **source}], "heldout_share": 0.3},
            "rewards": {"limit_s": 60},
        }
    )


def loaded_of(config):
    said = []
    return run_prompts(config, tiny_tokenizer(ASCII), said.append), said


def test_prompts_carry_their_task_and_its_rewards_score_them(planted):
    config = settings(f"{planted()}?num_tasks=30", threshold=0.75)
    loaded, said = loaded_of(config)
    [line] = said
    assert "of its prompts differ from one of these in numbers only" in line
    prompts = sorted([*loaded.training, *loaded.heldout], key=lambda p: int(p.answer[1:-1]))
    assert [p.text for p in prompts] == [f"system: Say [sum].\nuser: {n}+{n}=" for n in range(30)]
    assert {p.task for p in prompts} == {"planted-sums"}
    with make_scorer(config, loaded) as scorer:
        for text, outcome, score in (
            ("it is [14]", "correct", 0.75),
            ("<think>hm</think>so [14]", "correct", 1.0),
            ("<think>hm</think>so [15]", "wrong", 0.25),
            ("<think>[14]", "no_answer", 0.0),
            ("  ", "no_answer", 0.0),
        ):
            assert scorer.score_now(prompts[7], text) == (outcome, score)


def test_a_taskset_whose_rewards_cannot_be_trusted_ends_the_run(planted):
    lax = planted("planted_lax", 'float(f"[{2 * n}]" in trace.last_reply)', "1.0")
    config = settings(lax, threshold=0.75)
    with pytest.raises(InputError, match=r"verifiers gives nonsense \(''\) 0.75 at a threshold"):
        make_scorer(config, loaded_of(config)[0])
    never = planted("planted_never", 'float(f"[{2 * n}]" in trace.last_reply)', "1 / 0")
    config = settings(never)
    with pytest.raises(InputError, match=r"its own answer .* 0 at .*ZeroDivisionError"):
        make_scorer(config, loaded_of(config)[0])
    config = settings(planted("planted_high"))  # out of reach without the quarter for thoughts
    with pytest.raises(InputError, match=r"its own answer .* 0.75 at a threshold of 1"):
        make_scorer(config, loaded_of(config)[0])


def test_tasks_without_a_known_answer_are_said_to_be_untried(planted):
    config = settings(f"{planted()}?known=false", threshold=0.75)
    loaded, said = loaded_of(config)
    assert "no known answer: 40 tasks have no field 'answer'" in said[0]
    with make_scorer(config, loaded) as scorer:
        prompt = loaded.training[0]
        number = int(prompt.text.rpartition("+")[2][:-1])
        assert scorer.score_now(prompt, f"[{2 * number}]").outcome == "correct"


def test_a_source_may_say_how_a_right_answer_is_stated(planted):
    hashes = planted("planted_hashes", 'f"[{2 * n}]" in', 'f"#### [{2 * n}]" ==')
    config = settings(hashes, threshold=0.75)
    with pytest.raises(InputError, match=r"its own answer .*say how it is stated"):
        make_scorer(config, loaded_of(config)[0])
    config = settings(hashes, threshold=0.75, answer="#### {answer}")
    loaded, _ = loaded_of(config)
    with make_scorer(config, loaded) as scorer:
        prompt = loaded.training[0]
        assert prompt.answer.startswith("#### [")
        assert scorer.score_now(prompt, prompt.answer).outcome == "correct"


@pytest.mark.parametrize("fault", REFUSED)
def test_what_one_text_cannot_be_scored_for_is_refused(planted, fault):
    name = f"planted_{list(REFUSED).index(fault)}"
    with pytest.raises(InputError, match=f"verifiers:{name.replace('_', '-')}: .*{fault}"):
        loaded_of(settings(planted(name, *REFUSED[fault])))


def test_tasks_that_are_more_than_a_question_are_errors_of_their_own(planted):
    image = planted(
        "planted_image", "answer=answer)", 'answer=answer, image="x" if n == 3 else None)'
    )
    with pytest.raises(InputError, match=r"planted-image:4: error: bad task: .*it has image"):
        loaded_of(settings(image))
    asked = planted("planted_asked", "prompt=prompt,", "")
    with pytest.raises(
        InputError, match=r"40 errors[^$]*planted-asked:1: error: bad task: no prompt"
    ):
        loaded_of(settings(asked))
    for answer in ("gold", "#### {gold}", "{answer"):
        with pytest.raises(InputError, match=r"cannot be filled .*there are the fields idx,"):
            loaded_of(settings(planted(), answer=answer))
    with pytest.raises(InputError, match=r"does not load \(ValidationError"):
        loaded_of(settings(f"{planted()}?nonsense=1"))


def test_what_is_missing_is_named(planted, monkeypatch):
    with pytest.raises(InputError, match=r"does not load .*absent.*install its package"):
        loaded_of(settings("verifiers:planted-absent"))
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(InputError, match=r"needs verifiers 0.4 or later: pip install"):
        loaded_of(settings(planted()))
