"""`scalerl sft` on a file: filters, a run, a resume that is bit for bit the uninterrupted one."""

import json

import pytest

from scalerl.cli.main import main
from scalerl.data.chain import Teacher, supervised_pairs
from scalerl.data.traces import load_traces
from scalerl.errors import InputError
from scalerl.model.load import load_model, load_tokenizer, save_model
from scalerl.model.tiny import tiny_model, tiny_tokenizer
from scalerl.pipeline.records import current_rows

CHAT = (
    "{% for m in messages %}{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat(prompt, answer, **more):
    return {
        "messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}],
        **more,
    }


@pytest.fixture(scope="module")
def pairs():
    return supervised_pairs(
        count=300, seed=0, teacher=Teacher.make(0), exclude=(), operations=(1, 3)
    )


@pytest.fixture
def model(tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT
    save_model(tiny_model(seed=0), tmp_path / "model", tokenizer)
    return tmp_path / "model"


def read(path, tokenizer, **how):
    base = {"max_tokens": 200, "trivial_pass_rate": 1.0, "heldout_share": 0.5}
    return load_traces(path, tokenizer, **base | how)


@pytest.mark.parametrize("template", [True, False])
def test_messages_and_columns_give_the_same_ids(tmp_path, pairs, template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT if template else None
    one = read(write(tmp_path / "a.jsonl", [chat(p, a) for p, a in pairs]), tokenizer)
    plain = [{"prompt": p, "answer": a} for p, a in pairs]
    assert read(write(tmp_path / "b.jsonl", plain), tokenizer) == one
    for trace in one.training[:20]:
        assert tokenizer.decode(trace.prompt_ids) == trace.text
        assert trace.answer_ids[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(trace.answer_ids[:-1]) in {a for p, a in pairs if p == trace.text}
    assert not {t.text for t in one.training} & {t.text for t in one.heldout}


def test_filters_leave_out_and_count(tmp_path, pairs):
    tokenizer = tiny_tokenizer()
    rows = [chat(p, a) for p, a in pairs[:100]]
    rows += [chat("1a+1=", "2", pass_rate=1.0), chat("1a+2b*4=", "2", pass_rate=0.4)]
    rows += [chat("1a+3=", "4" * 500)]
    benchmark = write(tmp_path / "benchmark.jsonl", [{"problem": pairs[0][0]}])
    found = read(write(tmp_path / "a.jsonl", rows), tokenizer, against=[benchmark])
    texts = {t.text for t in (*found.training, *found.heldout)}
    alike = found.removed.pop("in a benchmark")  # numbers count as alike: more than the copies
    assert sum(p == pairs[0][0] for p, _ in pairs[:100]) <= alike < 100
    assert found.removed == {"trivial": 1, "too long": 1}
    assert len(found.training) + len(found.heldout) == 101 - alike
    assert "1a+2b*4=" in texts
    assert not {"1a+1=", "1a+3=", pairs[0][0]} & texts


def parquet(path, rows):
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_parquet_traces_are_those_of_json_lines(tmp_path, pairs):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT
    rows = [chat(p, a, pass_rate=i % 11 / 10) for i, (p, a) in enumerate(pairs)]
    lines = read(write(tmp_path / "a.jsonl", rows), tokenizer)
    assert lines.removed == {"trivial": len(rows) // 11}
    assert read(parquet(tmp_path / "a.parquet", rows), tokenizer) == lines
    plain = [{"prompt": p, "answer": a} for p, a in pairs]
    columns = read(parquet(tmp_path / "b.parquet", plain), tokenizer)
    assert columns == read(write(tmp_path / "b.jsonl", plain), tokenizer)
    with pytest.raises(InputError, match=r"c\.parquet:1: .*no answer"):
        read(parquet(tmp_path / "c.parquet", [chat("1a+1=", "")]), tokenizer)


def test_a_run_on_parquet_is_the_one_on_json_lines(tmp_path, model, pairs):
    rows = [chat(p, a) for p, a in pairs[:60]]
    sources = write(tmp_path / "a.jsonl", rows), parquet(tmp_path / "a.parquet", rows)
    weights = []
    for source in sources:
        run = tmp_path / source.suffix
        how = [f"--model.path={model}", f"--sft.data={source}", "--sft.heldout_share=0.2"]
        how += ["--sft.tokens_per_step=600", "--sft.tokens_per_pass=300", "--sft.steps=2"]
        assert main(["sft", *how, f"--run-dir={run}"]) == 0
        weights.append((run / "checkpoints/step-000002/model/model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_several_ranks_are_refused(tmp_path, model, pairs, capsys):
    data = write(tmp_path / "a.jsonl", [chat(p, a) for p, a in pairs[:60]])
    how = [f"--model.path={model}", f"--sft.data={data}", "--execution.trainer_ranks=2"]
    assert main(["sft", *how, f"--run-dir={tmp_path / 'run'}"]) == 2
    assert "execution.trainer_ranks = 1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_faults_are_all_named_with_their_line(tmp_path):
    rows = [
        chat("1a+1=", ""),
        {"prompt": "1a+1="},
        {"question": "?"},
        {"messages": [{"role": "user", "content": "1a+1="}]},
        chat("1a+1=", "2", pass_rate=3),
    ]
    with pytest.raises(InputError) as error:
        read(write(tmp_path / "a.jsonl", rows), tiny_tokenizer())
    text = str(error.value)
    for line, words in enumerate(
        ("no answer", "no answer", "needs `messages`", "must end with", "from 0 to 1"), start=1
    ):
        assert any(f":{line}: " in part and words in part for part in text.splitlines()), (
            line,
            text,
        )


def test_a_run_learns_and_resumes_bit_for_bit(tmp_path, model, pairs, capsys):
    data = write(tmp_path / "traces.jsonl", [chat(p, a) for p, a in pairs])
    how = [
        f"--model.path={model}",
        f"--sft.data={data}",
        "--sft.heldout_share=0.2",
        "--sft.tokens_per_step=900",
        "--sft.tokens_per_pass=300",
        "--sft.lr=4e-3",
        "--sft.evaluate_every=20",
        "--sft.checkpoint_every=20",
    ]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert main(["sft", *how, "--sft.steps=40", f"--run-dir={whole}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("step-000040/model")
    curve = current_rows(whole / "curve.jsonl")
    assert [row["step"] for row in curve] == [0, 20, 40]
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]
    assert load_tokenizer(whole / "checkpoints/step-000040/model").chat_template == CHAT
    load_model(whole / "checkpoints/step-000040/model")

    assert main(["sft", *how, "--sft.steps=40", f"--run-dir={cut}"]) == 0
    for name in ("step-000040",):  # as if it had been killed after step 20
        for file in sorted((cut / "checkpoints" / name).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
    assert main(["sft", "--resume", f"--run-dir={cut}"]) == 0
    weights = "checkpoints/step-000040/model/model.safetensors"
    assert (whole / weights).read_bytes() == (cut / weights).read_bytes()
    rows = current_rows(cut / "steps.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert main(["sft", *how, f"--run-dir={cut}"]) == 2  # a folder that holds a run
