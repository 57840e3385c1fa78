"""Tests of tasks in the shapes of public data sets, and what is refused."""

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.errors import InputError
from scalerl.rewards.code_tests import (
    CallTest,
    PrintedTest,
    read_livecodebench,
    read_tests,
    write_tests,
)
from scalerl.rewards.code_tests import Tests as CodeTests  # pytest collects names in Test…

DATA = Path(__file__).parents[2] / "data" / "code"


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def test_deepcoder_shapes() -> None:
    printed, called, columns, called_columns, bare = (
        read_tests(row["tests"]) for row in rows("deepcoder.jsonl")
    )
    assert printed.printed == (
        PrintedTest(stdin="3\n1 2 3\n", stdout="6\n"),
        PrintedTest(stdin="1\n-4\n", stdout="-4\n"),
    )
    assert called == CodeTests(
        function="add",
        calls=(CallTest(arguments=(1, 2), value=3), CallTest(arguments=(-1, 1), value=0)),
    )
    assert columns.printed[0] == PrintedTest(stdin="2\n4\n", stdout="4\n8\n")
    assert called_columns == CodeTests(
        function="twice",
        calls=(CallTest(arguments=([1, 2],), value=[2, 4]), CallTest(arguments=([],), value=[])),
    )
    assert len(bare) == 1


def test_livecodebench_rows_public_and_private_tests() -> None:
    called, printed = (read_livecodebench(row) for row in rows("livecodebench.jsonl"))
    assert called == CodeTests(
        function="countValue",
        calls=(
            CallTest(arguments=([1, 2, 1], 1), value=2),
            CallTest(arguments=([5, 5, 1], 5), value=2),
        ),
    )
    assert [t.stdout for t in printed.printed] == ["1.5\n", "4.0\n"]


class Bomb:
    def __reduce__(self):
        return (print, ("unpickled",))


def private(value: object) -> dict[str, str]:
    packed = base64.b64encode(zlib.compress(pickle.dumps(value))).decode()
    return {"public_test_cases": "[]", "private_test_cases": packed}


def test_private_tests_are_never_unpickled(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="more than a string"):
        read_livecodebench(private(Bomb()))
    with pytest.raises(InputError, match="more than a string"):
        read_livecodebench(private(["a", "b"]))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be JSON"),
        ("not json", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("null", "no known shape"),
        ("6", "no known shape"),
        ("[]", "no tests"),
        ('{"inputs": [], "outputs": []}', "no tests"),
        ('{"inputs": ["1"], "outputs": []}', "1 inputs but 0 outputs"),
        ('{"outputs": []}', "'inputs' is missing"),
        ('[{"input": "1"}]', "'output' is missing"),
        ('[{"input": 1, "output": "1"}]', "text or a list of lines"),
        ('[{"input": "1", "output": null}]', "text or a list of lines"),
        ('[{"input": "1", "output": ""}, {"input": "2", "output": " \\n"}]', "does nothing"),
        ('{"fn_name": "f", "inputs": [[1], [2]], "outputs": [null, ""]}', "does nothing"),
        ('{"fn_name": "f", "inputs": [[1]], "outputs": [[null]]}', "does nothing"),
        ('{"fn_name": "f(", "inputs": [[1]], "outputs": [1]}', "function's name"),
        ('{"fn_name": 3, "inputs": [[1]], "outputs": [1]}', "name must be text"),
        ('[{"type": "lsp", "input": "", "output": "1"}]', "unknown kind"),
        ('[{"type": [], "input": "", "output": "1"}, 3]', "no known shape"),
        (
            '[{"type": "function_call", "fn_name": "f", "input": [1], "output": 2},'
            ' {"input": "1", "output": "2"}]',
            "mixed",
        ),
        (
            '[{"type": "function_call", "fn_name": "f", "input": [1], "output": 2},'
            ' {"type": "function_call", "fn_name": "g", "input": [1], "output": 2}]',
            "several functions",
        ),
    ],
)
def test_what_proves_nothing_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        read_tests(text, where="tasks.jsonl:7")
    assert str(caught.value).startswith("tasks.jsonl:7: ")


def test_values_are_unwrapped_only_where_all_are_lists_of_one() -> None:
    text = '{"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 2]]}'
    assert [t.value for t in read_tests(text).calls] == [[1], [1, 2]]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.lists(json_values, max_size=3), json_values), min_size=1, max_size=4))
def test_calls_survive_writing_and_reading(calls: list) -> None:
    tests = CodeTests(
        function="f", calls=tuple(CallTest(arguments=tuple(a), value=v) for a, v in calls)
    )
    if not tests.problem:
        assert read_tests(write_tests(tests)) == tests


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4))
def test_printed_tests_survive_writing_and_reading(pairs: list) -> None:
    tests = CodeTests(printed=tuple(PrintedTest(stdin=i, stdout=o) for i, o in pairs))
    if not tests.problem:
        assert read_tests(write_tests(tests)) == tests
