"""Prompts from files: every shape, every fault, the split and the mix."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from scalerl.config.tasks import Data, Source
from scalerl.data.sources import load_prompts
from scalerl.data.template import messages_of, opens_thinking, template_ids
from scalerl.errors import InputError

FILES = Path(__file__).with_name("files")


class Characters:
    """One token a character; optionally a chat template that adds a BOS and opens the thinking."""

    bos_token_id = 1
    chat_template = None

    def __init__(self, template=False, bos=1):
        self.chat_template = "yes" if template else None
        self._bos = bos

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def apply_chat_template(self, conversation, *, add_generation_prompt, tokenize, return_dict):
        assert add_generation_prompt
        assert tokenize
        assert not return_dict
        body = "".join(f"[{m['role']}]{m['content']}" for m in conversation)
        return [1] * self._bos + [ord(c) for c in f"{body}[assistant]<think>\n"]


def load(*sources, refuse=True, limit=10_000, share=0.2, tokenizer=None):
    return load_prompts(
        [s if isinstance(s, Source) else Source(path=str(s)) for s in sources],
        tokenizer or Characters(),
        heldout_share=share,
        max_prompt_tokens=limit,
        refuse=refuse,
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


SHAPES = {
    "polaris": ("100", "math"),
    "dapo": ("7", "math"),
    "gsm8k": ("2400", "math"),
    "math500": (r"\left( 3, \frac{\pi}{2} \right)", "math"),
    "aime24": ("033", "math"),
    "aime25": ("70", "math"),
    "deepcoder": ("tests ", "code"),
    "livecodebench": ("tests ", "code"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_published_shapes_are_read_by_name(shape):
    answer, reward = SHAPES[shape]
    source = Source(path=str(FILES / f"{shape}.jsonl"), columns=shape, use="train")
    loaded = load(source)
    assert loaded.problems == []
    assert loaded.training[0].answer.startswith(answer)
    assert loaded.training[0].task == shape
    assert loaded.tasks[shape].reward == reward
    if reward == "code":
        assert json.loads(loaded.details[loaded.training[0].id]["tests"])


def test_a_starter_is_shown_with_the_problem():
    source = Source(path=str(FILES / "livecodebench.jsonl"), columns="livecodebench", use="train")
    assert "def after(self, n: int)" in load(source).training[0].text


def test_every_fault_is_named_with_its_line_in_one_go():
    with pytest.raises(InputError) as caught:
        load(FILES / "bad.jsonl", limit=200)
    message = str(caught.value)
    for line in (1, 2, 3, 4, 7, 9, 10, 11, 12, 13, 15, 16, 17, 21, 23, 24, 25):
        assert f"bad.jsonl:{line}: error" in message, line
    assert message.startswith("17 errors")
    assert "prompt too long: 299 tokens" in message
    assert "answers '12', '13'" in message


def test_faulty_rows_can_be_left_out_and_no_null_becomes_text():
    loaded = load(FILES / "bad.jsonl", refuse=False, limit=200, share=0.01)
    golds = {p.text: p.answer for p in [*loaded.training, *loaded.heldout]}
    assert golds["b2"] == "12"
    assert golds["b3"] == "12"
    assert "b1" not in golds  # twice, with two answers
    assert golds["What is one?"] == "1"
    assert not {"none", "nan", "null", "true", ""} & {g.casefold() for g in golds.values()}
    several = next(p for p in loaded.training if p.text == "b5")
    assert loaded.details[several.id] == {"golds": ["1", "2"]}


def test_copies_are_used_once_and_a_contradiction_is_an_error(tmp_path):
    rows = [{"prompt": f"Question {i}?", "answer": str(i)} for i in range(5)] * 20
    loaded = load(write(tmp_path / "a.jsonl", rows))
    assert len(loaded.training) + len(loaded.heldout) == 5
    assert sum(p.kind == "duplicate prompt" for p in loaded.problems) == 5
    assert "occurs 20 times" in loaded.problems[0].text
    rows[50] = {**rows[50], "answer": "9"}
    with pytest.raises(InputError, match="conflicting answers"):
        load(write(tmp_path / "a.jsonl", rows))


def test_a_heldout_file_that_repeats_its_prompts_is_merged_and_said_once(tmp_path):
    """G01: an AIME file of 3 problems 32 times, for a mean over 32 rows."""
    rows = [
        {
            "prompt": [{"role": "user", "content": f"Problem {i}?"}],
            "reward_model": {"ground_truth": i},
        }
        for i in range(3)
    ]
    path = write(tmp_path / "aime.jsonl", rows * 32)
    train = write(tmp_path / "train.jsonl", [{"prompt": "Another?", "answer": "1"}])
    tested = Source(path=str(path), columns="dapo", use="heldout")
    loaded = load(tested, Source(path=str(train), use="train"))
    assert [p.text for p in loaded.heldout] == ["Problem 0?", "Problem 1?", "Problem 2?"]
    [said] = loaded.problems
    assert (said.where, said.kind) == (str(path), "duplicate prompt")
    assert "each of its 3 prompts occurs 32 times" in said.text
    other = {**rows[1], "reward_model": {"ground_truth": 7}}
    write(path, [*rows * 31, other])
    with pytest.raises(
        InputError, match="conflicting answers: the same prompt with answers '1', '7'"
    ):
        load(tested, Source(path=str(train), use="train"))


def test_rows_that_begin_with_nulls_type_nothing(tmp_path):
    """G03: nulls first, then text, numbers, lists; also as a folder, which is read untyped."""
    answers = [*[None] * 300, "033", 12, 12.0, True, ["1", "2"], "", "nan", 2.5]
    rows = [{"prompt": f"Question {i}?", "answer": a} for i, a in enumerate(answers)]
    rows.append({"prompt": "no key"})
    folder = tmp_path / "set"
    folder.mkdir()
    path = write(folder / "train.jsonl", rows)
    write(folder / "test.jsonl", [{"prompt": "of another split", "answer": 1}])
    right = {"033", "12", "1", "2.5"}
    for source in (path, folder):
        loaded = load(Source(path=str(source), use="train"), refuse=False)
        assert {p.answer for p in loaded.training} == right
        assert [p.answer for p in loaded.training] == ["033", "12", "12", "1", "2.5"]
        lines = sorted(p.line for p in loaded.problems if p.level == "error")
        assert lines == [*range(1, 301), 304, 306, 307, 309]
        assert all(p.file == str(path) for p in loaded.problems)
    with pytest.raises(InputError, match=r"no file of split 'dev'; there are: test\.jsonl, train"):
        load(Source(path=str(folder), split="dev"))


def test_parquet_that_begins_with_nulls_keeps_whole_numbers_whole(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `data` is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `data` is not installed")
    prompts = [f"Question {i}?" for i in range(302)]
    nothing = [None] * 300
    for column in (
        pyarrow.array([*nothing, 12, 13]),
        pyarrow.array([float("nan")] * 300 + [12.0, 13.0]),  # as pandas writes whole numbers
        pyarrow.array([*nothing, "12", "13"]),
        pyarrow.array(["None"] * 150 + ["nan"] * 150 + ["12", "13"]),
    ):
        table = pyarrow.table({"prompt": prompts, "answer": column})
        parquet.write_table(table, tmp_path / "a.parquet", row_group_size=100)
        loaded = load(Source(path=str(tmp_path / "a.parquet"), use="train"), refuse=False)
        assert [p.answer for p in loaded.training] == ["12", "13"]
        assert [p.line for p in loaded.problems] == list(range(1, 301))
    table = pyarrow.table({"prompt": prompts, "answer": pyarrow.nulls(302)})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="302 errors"):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize("prompt", ["", None, "  ", "nan", "None", [], {}, 7, [{"role": "user"}]])
def test_what_is_no_prompt_is_an_error_with_its_line(tmp_path, prompt):
    path = write(tmp_path / "a.jsonl", [{"prompt": prompt, "answer": 1}])
    with pytest.raises(InputError, match=r"a\.jsonl:1: error: bad prompt"):
        load(path)


def test_a_prompt_is_never_cut_and_leaving_it_out_keeps_the_others(tmp_path):
    """G05: there is no truncation, so generator and trainer cannot see different prompts."""
    rows = [{"prompt": "x" * n, "answer": n} for n in (5, 6, 50_000)]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(InputError, match="2 errors") as caught:
        load(path, limit=5)
    assert "a question is never cut" in str(caught.value)
    with pytest.raises(ValidationError, match="a question is never cut"):
        Data.model_validate({"on_error": "truncate"})
    loaded = load(Source(path=str(path), use="train"), limit=5, refuse=False)
    assert [len(p.token_ids) for p in loaded.training] == [5]
    assert [p.line for p in loaded.problems] == [2, 3]


def test_the_split_does_not_move_when_rows_are_added(tmp_path):
    rows = [{"prompt": f"Is {i} of {i * i} even or not?", "answer": "yes"} for i in range(300)]
    few = load(write(tmp_path / "a.jsonl", rows[:200]))
    many = load(write(tmp_path / "a.jsonl", rows[::-1]))
    held = {p.id for p in few.heldout}
    assert held <= {p.id for p in many.heldout}
    assert 20 < len(held) < 60
    assert not {p.id for p in many.training} & {p.id for p in many.heldout}


def test_a_reformatted_copy_of_a_heldout_prompt_is_an_error_and_a_likeness_reported(tmp_path):
    text = "Every morning Aya walks $9$ kilometers and stops at a coffee shop, how long in all?"
    heldout = write(tmp_path / "aime.jsonl", [{"prompt": text, "answer": "204"}])
    copy = text.replace(" ", "  ").replace("$9$", r"\(9\)")
    train = write(tmp_path / "train.jsonl", [{"prompt": copy, "answer": "204"}])
    tested = Source(path=str(heldout), use="heldout")
    with pytest.raises(InputError, match="held-out prompt in training: is also held out"):
        load(Source(path=str(train), use="train"), tested)
    train = write(tmp_path / "train.jsonl", [{"prompt": text.replace("9", "7"), "answer": "1"}])
    loaded = load(Source(path=str(train), use="train"), tested)
    assert [p.kind for p in loaded.problems] == ["nearly a held-out prompt"]
    assert "1 of its prompts differ from one of these in numbers only (line 1 as" in str(
        loaded.problems[0]
    )
    spaced = text.replace("$9$ kilometers", r"$ 9 $~kilometers\,").replace(" and ", r"\ and\quad ")
    train = write(tmp_path / "train.jsonl", [{"prompt": spaced, "answer": "204"}])
    with pytest.raises(InputError, match="held-out prompt in training"):
        load(Source(path=str(train), use="train"), tested)


def test_a_template_is_one_line_and_copies_beside_it_keep_theirs(tmp_path):
    asked = "Please work out the sum {} and give the final answer."
    told = "Beatrix pours nine cups of tea for her guests, and three are drunk before noon."
    tested = [asked.format("3 + 4"), told]
    rows = [asked.format(f"{i} + {i} - 1") for i in range(40)]
    rows += [told.replace("noon", "two"), told.replace("Beatrix", "Anna")]
    train = write(tmp_path / "train.jsonl", [{"prompt": p, "answer": 1} for p in rows])
    aime = write(tmp_path / "aime.jsonl", [{"prompt": p, "answer": 1} for p in tested])
    loaded = load(Source(path=str(train), use="train"), Source(path=str(aime), use="heldout"))
    assert {p.kind for p in loaded.problems} == {"nearly a held-out prompt"}
    assert [p.line for p in loaded.problems] == [41, 42, 0]
    assert loaded.problems[2].text.startswith("40 of its prompts differ")


def test_length_counts_the_template_to_the_token(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": "x" * 10, "answer": "1"}])
    exactly = len(template_ids(messages_of("x" * 10), Characters(template=True)))
    source = Source(path=str(path), use="train")
    assert load(source, limit=exactly, tokenizer=Characters(template=True)).training
    with pytest.raises(InputError, match=f"{exactly} tokens .* limit is {exactly - 1}"):
        load(source, limit=exactly - 1, tokenizer=Characters(template=True))


def test_one_beginning_of_text_and_a_template_that_opens_the_thinking():
    ids = template_ids(messages_of("hi"), Characters(template=True, bos=2))
    assert ids.count(1) == 1
    assert opens_thinking(Characters(template=True))
    assert not opens_thinking(Characters())


def test_parquet_and_csv_are_read_like_jsonl(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="the extra `data` is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `data` is not installed")
    table = pyarrow.table({"prompt": ["one?", "two?"], "answer": [1.0, None]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a\.parquet:2: error: bad answer: no answer"):
        load(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"good\.csv:5: error: bad answer: no answer"):
        load(FILES / "good.csv")
    loaded = load(FILES / "good.csv", refuse=False)
    both = [*loaded.training, *loaded.heldout]
    assert {p.text: p.answer for p in both} == {"What is 1, plus 1?": "2", "Two\nlines": "3"}


def test_a_saved_data_set_is_read_from_its_folder(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")
    rows = [{"problem": f"Problem number {i}?", "answer": str(i)} for i in range(12)]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    loaded = load(Source(path=str(tmp_path / "saved"), columns="polaris", use="train"))
    assert [p.answer for p in loaded.training] == [str(i) for i in range(12)]


def test_reasoning_gym_prompts_are_repeatable_and_know_their_entry():
    pytest.importorskip("reasoning_gym", reason="the extra `environments` is not installed")
    source = Source(path="reasoning_gym:chain_sum?size=30&seed=3&max_terms=3")
    loaded, again = load(source), load(source)
    assert loaded.training == again.training
    assert {p.task for p in loaded.training} == {"chain_sum"}
    assert loaded.tasks["chain_sum"].reward == "reasoning_gym"
    detail = loaded.details[loaded.training[0].id]
    assert detail["dataset"] == "chain_sum"
    with pytest.raises(InputError, match="reasoning-gym refuses"):
        load(Source(path="reasoning_gym:no_such_set"))


def test_weights_cut_the_mix_to_the_scarcest_source(tmp_path):
    paths = [
        write(tmp_path / f"{n}.jsonl", [{"prompt": f"{n} {i}?", "answer": "1"} for i in range(m)])
        for n, m in (("a", 100), ("b", 20))
    ]
    sources = [
        Source(path=str(p), use="train", weight=w) for p, w in zip(paths, (3, 1), strict=True)
    ]
    loaded = load(*sources)
    counts = [sum(p.task == name for p in loaded.training) for name in ("a", "b")]
    assert counts == [60, 20]
    with pytest.raises(InputError, match="a weight, or none"):
        load(sources[0], Source(path=str(paths[1]), use="train"))


def test_the_embedded_chain_is_one_source_among_others(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"prompt": "x?", "answer": "1"}])
    loaded = load(Source(path="chain?train=30&heldout=10"), Source(path=str(path), use="train"))
    assert len(loaded.heldout) == 10
    assert len(loaded.training) == 31
    assert loaded.tasks["chain"].reward == "exact"


@pytest.mark.parametrize("reward", ["reasoning_gym", "verifiers"])
def test_scorers_of_other_people_score_only_their_own_entries(reward):
    with pytest.raises(InputError, match=f"reward '{reward}' scores nothing but {reward}:"):
        load(Source(path=str(FILES / "good.jsonl"), reward=reward))


@pytest.mark.parametrize(
    ("path", "message"),
    [("absent.jsonl", "no such file"), ("x.bin", "no such file"), (__file__, "cannot read .py")],
)
def test_a_source_that_cannot_be_read_is_named(path, message):
    with pytest.raises(InputError, match=message):
        load(path)
