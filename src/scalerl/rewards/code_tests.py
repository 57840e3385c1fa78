"""Tests of a programming task, and the shapes in which public data sets carry them.

`read_tests` takes the gold answer of a prompt, JSON text in any of these shapes:

- ``[{"input": "3\\n", "output": "6\\n"}, …]``; also with ``"type": "stdin_stdout"`` or
  ``"testtype": "stdin"`` (DeepCoder's PrimeIntellect, LiveCodeBench and Codeforces parts);
- ``[{"type": "function_call", "fn_name": "f", "input": [args], "output": value}, …]``;
- ``[{"testtype": "functional", "input": "[1,2]\\n3", "output": "4",
  "metadata": {"func_name": "f"}}, …]``
  (LiveCodeBench: one JSON value a line for each argument);
- ``{"inputs": [...], "outputs": [...], "fn_name": "f"}`` (DeepCoder's TACO part, APPS); printed
  lines may come as lists of lines.

Where every output of a function task in the second or fourth shape is a list of exactly one
element, the list is the data set's wrapping and is taken off.

What cannot prove anything is refused with `InputError`: no tests, tests that mix both kinds, and
tasks whose every expected output is empty (a program that does nothing would pass).
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalerl.errors import InputError

_LARGEST = 256 << 20  # bytes of unpacked private tests


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTest:
    """The program reads `stdin` and must print `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTest:
    """The function, given `arguments`, must return `value`; both are JSON values."""

    arguments: tuple[Any, ...]
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tests:
    """All tests of one task: printed ones, or calls of `function`. A program must pass them all."""

    printed: tuple[PrintedTest, ...] = ()
    calls: tuple[CallTest, ...] = ()
    function: str = ""

    def __len__(self) -> int:
        return len(self.printed) + len(self.calls)

    @property
    def problem(self) -> str:
        """Why these tests prove nothing, or an empty string."""
        if not len(self):
            return "there are no tests"
        if self.printed and self.calls:
            return "tests by printed output and by function call are mixed"
        if self.calls and not self.function.isidentifier():
            return f"the function's name is {self.function!r}"
        if self.printed and not any(t.stdout.strip() for t in self.printed):
            return "every expected output is empty: a program that does nothing would pass"
        if self.calls and all(t.value is None or t.value == "" for t in self.calls):
            return "every expected value is empty: a function that does nothing would pass"
        return ""


def read_tests(text: str, *, where: str = "tests") -> Tests:
    """Read tests in any shape above. `where` names file and line for the message of an error."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: tests must be JSON: {error}") from error
    try:
        tests = _from_columns(data) if isinstance(data, dict) else _from_list(data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: tests in no known shape: {_say(error)}") from error
    if tests.problem:
        raise InputError(f"{where}: {tests.problem}")
    return tests


def write_tests(tests: Tests) -> str:
    """JSON text that `read_tests` reads back to the same tests; the gold answer of a prompt."""
    if tests.calls:
        rows: list[dict[str, Any]] = [
            {
                "type": "function_call",
                "fn_name": tests.function,
                "input": list(t.arguments),
                "output": [t.value],
            }
            for t in tests.calls
        ]
    else:
        rows = [{"input": t.stdin, "output": t.stdout} for t in tests.printed]
    return json.dumps(rows, ensure_ascii=False)


def read_livecodebench(row: Mapping[str, Any], *, where: str = "row") -> Tests:
    """Public and private tests of one LiveCodeBench row, as the hub stores them.

    Private tests may be base64 of zlib of a pickled JSON string: the string is taken out of the
    pickle's opcodes, nothing is unpickled.
    """
    try:
        rows = json.loads(row["public_test_cases"]) + json.loads(
            _private(row.get("private_test_cases") or "[]")
        )
        metadata = row.get("metadata") or "{}"
        metadata = json.loads(metadata) if isinstance(metadata, str) else metadata
        rows = [{**r, "metadata": {**metadata, **(r.get("metadata") or {})}} for r in rows]
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise InputError(f"{where}: not a LiveCodeBench row: {_say(error)}") from error
    return read_tests(json.dumps(rows), where=where)


def _private(text: str) -> str:
    if text.lstrip()[:1] in ("[", "{"):
        return text
    try:
        packed = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"private tests are neither JSON nor base64: {error}") from error
    unpacker = zlib.decompressobj()
    raw = unpacker.decompress(packed, _LARGEST)
    if unpacker.unconsumed_tail:
        raise ValueError(f"private tests unpack to more than {_LARGEST} bytes")
    allowed = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"}
    strings: list[str] = []
    for opcode, argument, _ in pickletools.genops(raw):
        if "UNICODE" in opcode.name and isinstance(argument, str):
            strings.append(argument)
        elif opcode.name not in allowed:
            raise ValueError(f"private tests hold more than a string ({opcode.name})")
    if len(strings) != 1:
        raise ValueError(f"private tests hold {len(strings)} strings instead of one")
    return strings[0]


def _from_list(rows: Any) -> Tests:
    if not isinstance(rows, list):
        raise TypeError(f"a list or an object is needed, not {type(rows).__name__}")
    printed: list[PrintedTest] = []
    calls: list[CallTest] = []
    literal = True  # values are as written, not wrapped in a list
    names: set[str] = set()
    for row in rows:
        kind = row.get("type") or row.get("testtype") or "stdin"
        if kind in ("stdin", "stdin_stdout"):
            printed.append(_printed(row["input"], row["output"]))
        elif kind == "function_call":
            literal = False
            names.add(row["fn_name"])
            calls.append(CallTest(arguments=tuple(_list(row["input"])), value=row["output"]))
        elif kind == "functional":
            names.add(row["metadata"]["func_name"])
            arguments = [json.loads(line) for line in row["input"].split("\n") if line.strip()]
            calls.append(CallTest(arguments=tuple(arguments), value=json.loads(row["output"])))
        else:
            raise ValueError(f"unknown kind of test {kind!r}")
    if len(names) > 1:
        raise ValueError(f"several functions are named: {', '.join(sorted(names))}")
    return _tests(printed, calls if literal else _unwrapped(calls), next(iter(names), ""))


def _from_columns(data: Mapping[str, Any]) -> Tests:
    inputs, outputs = _list(data["inputs"]), _list(data["outputs"])
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs but {len(outputs)} outputs")
    name = data.get("fn_name") or ""
    pairs = list(zip(inputs, outputs, strict=True))
    if not name:
        return _tests([_printed(i, o) for i, o in pairs], [], "")
    calls = [CallTest(arguments=tuple(_list(i)), value=o) for i, o in pairs]
    return _tests([], _unwrapped(calls), name)


def _tests(printed: list[PrintedTest], calls: list[CallTest], function: str) -> Tests:
    if not isinstance(function, str):
        raise TypeError(f"a function's name must be text, not {type(function).__name__}")
    return Tests(printed=tuple(printed), calls=tuple(calls), function=function)


def _printed(given: Any, expected: Any) -> PrintedTest:
    return PrintedTest(stdin=_text(given), stdout=_text(expected))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(f"{line}\n" for line in value)
    raise TypeError(f"an input or output must be text or a list of lines, not {value!r:.60}")


def _unwrapped(calls: Sequence[CallTest]) -> list[CallTest]:
    if all(isinstance(c.value, list) and len(c.value) == 1 for c in calls):
        return [CallTest(arguments=c.arguments, value=c.value[0]) for c in calls]
    return list(calls)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list is needed, not {value!r:.60}")
    return value


def _say(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
