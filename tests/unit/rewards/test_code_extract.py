"""The program is the last closed Python block after the thinking."""

import pytest

from scalerl.rewards.code_extract import extract_code


def block(source: str, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{source}\n{fence}\n"


THINKING = "<think>\nlet me see\n</think>\n"

ANSWERS = {
    "one block": (THINKING + block("a = 1"), "a = 1\n"),
    "the last of two": (THINKING + block("a = 1") + "better:\n" + block("b = 2"), "b = 2\n"),
    "a draft while thinking": ("<think>\n" + block("draft") + "</think>\n" + block("b"), "b\n"),
    "the last end of thinking counts": ("x</think>" + block("a") + "</think>" + block("b"), "b\n"),
    "named before bare": (THINKING + block("a", "python") + block("3 6", ""), "a\n"),
    "bare where none is named": (THINKING + block("a", "") + block("b", ""), "b\n"),
    "other languages never": (THINKING + block("a") + block("int main", "cpp"), "a\n"),
    "py, any case": (THINKING + block("a", "Py"), "a\n"),
    "python3 with words after": (THINKING + block("a", "python3 title=x"), "a\n"),
    "tildes": (THINKING + block("a", "python", "~~~"), "a\n"),
    "longer fence holds shorter": (
        THINKING + block("s = '''\n```\n'''", fence="````"),
        "s = '''\n```\n'''\n",
    ),
    "backticks within a line": (THINKING + block("s = '```'"), "s = '```'\n"),
    "indented in a list": (
        THINKING + "1. this\n   ```python\n   if x:\n       y\n   ```\n",
        "if x:\n    y\n",
    ),
    "Windows line ends": ((THINKING + block("a\nb")).replace("\n", "\r\n"), "a\nb\n"),
    "inline code is no fence": (THINKING + "```x``` then\n" + block("a"), "a\n"),
    "a cut-off block is not one": (THINKING + block("a") + "```python\nb = ", "a\n"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_extracts(name: str) -> None:
    text, source = ANSWERS[name]
    assert extract_code(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "</think>",
        THINKING + "print(6)",
        THINKING + "```python\nprint(6)",
        THINKING + block("   \n\n"),
        THINKING + block("int main", "c++"),
        "<think>\n" + block("print(6)"),  # thinking never ended
        block("print(6)"),
    ],
)
def test_no_answer(text: str) -> None:
    assert extract_code(text) is None


def test_lenient_takes_text_without_thinking_but_not_unfinished_thinking() -> None:
    assert extract_code(block("a"), "lenient") == "a\n"
    assert extract_code("<think>" + block("a"), "lenient") is None
    assert extract_code("<think>x</think>" + block("a"), "lenient") == "a\n"


def test_a_megabyte_of_fences_takes_no_time() -> None:
    assert extract_code("</think>" + "```python\n" * 100_000) is None
    assert extract_code("</think>" + "`" * 1_000_000) is None
    assert extract_code("</think>\n" + " " * 1_000_000 + "x") is None
