import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.data.golds import after_hashes, gold_answers
from scalerl.data.overlap import content_id, decontaminated, is_heldout, overlaps
from scalerl.errors import InputError


@pytest.mark.parametrize(
    ("value", "golds"),
    [
        ("12", ("12",)), (12, ("12",)), (12.0, ("12",)), (0.5, ("0.5",)), (" 033 ", ("033",)),
        (["1", "2"], ("1", "2")), ([1, 1.0], ("1",)), (-3.0, ("-3",)), (10**20, (str(10**20),)),
    ],
)  # fmt: skip
def test_answers_are_written_shortly_and_lists_are_alternatives(value, golds):
    assert gold_answers(value) == golds


@pytest.mark.parametrize(
    "value",
    [None, True, False, "", "  ", "None", "nan", "NULL", float("nan"), float("inf"), [], [None],
     [["1"]], {"a": 1}, ["1", ""], b"1", object()],
)  # fmt: skip
def test_what_is_no_answer_is_refused(value):
    with pytest.raises(InputError):
        gold_answers(value)


def test_gsm8k_answers_stand_behind_hashes():
    assert after_hashes("so\n#### 1,234") == "1234"
    with pytest.raises(InputError, match="####"):
        after_hashes("1234")


def test_spacing_and_decoration_do_not_make_another_prompt_but_digits_do():
    same = [
        r"Find $\dfrac{1}{2}$ of 10.",
        r"Find \( \frac12 \) of  10.",
        r"Find\, \frac{1}{2} of 10.",
    ]
    assert len({content_id(text) for text in same}) == 1
    assert content_id("1 23") != content_id("12 3")
    assert content_id("x + 1") != content_id("x + 2")


@pytest.mark.parametrize(
    "text",
    [
        r"Let $ x = 1000 $ and $y^{2}$.", r"Let $x=1\,000$ and~$y^2$.",
        r"Let\ \(x = 1000\) and $$y^2$$.",
        r"Let\; $x\!=1000$ \quad and \hspace{1em}$y^2$.", "Let\u00a0x = 1000 and\u2009y^2.",
        r"Let\thinspace{}$x = 1000$ and $\textstyle y^2$.",
    ],
)  # fmt: skip
def test_latex_spacing_makes_no_other_prompt(text):
    plain = "Let x = 1000 and y^2."
    assert content_id(text) == content_id(plain)
    assert [o.kind for o in overlaps([text], [plain])] == ["exact"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("choose $5$ 3 times", "choose 53 times"), (r"\frac{12}{3}", r"\frac{1}{23}"),
        (r"a \leftarrow b", r"a \rightarrow b"), ("5~3", "53"), (r"x\ 1\ 2", r"x\ 12"),
    ],
)  # fmt: skip
def test_what_tells_two_prompts_apart_is_no_decoration(one, other):
    assert content_id(one) != content_id(other)


@given(st.text(min_size=1), st.floats(0.01, 0.99))
def test_a_prompt_heldout_at_a_share_is_heldout_at_any_larger(text, share):
    if is_heldout(content_id(text), share):
        assert is_heldout(content_id(text), min(1.0, share * 1.5))


WALK = "Every morning Aya goes for a {} kilometer walk and stops at a coffee shop afterwards."


def test_overlap_tells_exact_from_near_from_none():
    texts = [
        WALK.format(9),
        WALK.format(11),
        "How many primes are there below one hundred, please?",
    ]
    found = overlaps(texts, [WALK.format(9)])
    assert [(o.index, o.kind) for o in found] == [(0, "exact"), (1, "near")]
    assert overlaps(texts, [WALK.format(9)], near=False)[-1].index == 0


def test_other_numbers_are_told_from_other_words():
    asked = "Give the final answer to this arithmetic problem: {} ="
    texts = [
        WALK.format(11),
        WALK.format(11).replace("coffee", "tea"),
        asked.format("3 + 4 - 5"),
        asked.format("1,000 + 2"),
    ]
    found = overlaps(texts, [WALK.format(9), asked.format("7 + 8")])
    assert [(o.index, o.numbers_only) for o in found] == [
        (0, True),
        (1, False),
        (2, True),
        (3, True),
    ]
    assert overlaps(["Compute 3 + 4"], ["Compute 5 - 6"]) == []


def test_decontamination_says_which_benchmark_removed_what():
    texts = [
        "A quite different question about triangles, circles and their common tangents.",
        WALK.format(3),
    ]
    kept, removed = decontaminated(texts, {"math500": ["x"], "aime24": [WALK.format(9)]})
    assert kept == [0]
    assert [(i, name, o.kind) for i, name, o in removed] == [(1, "aime24", "near")]
