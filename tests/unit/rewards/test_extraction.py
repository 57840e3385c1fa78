import pytest

from scalerl.rewards.extraction import final_answer, solution_part


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{12}", "12"),
        (r"I tried \boxed{5}, then \boxed{7}, so the answer is \boxed{12}.", "12"),
        (r"so \boxed{840}. But let me check. **Final Answer** \boxed{840}", "840"),
        (r"of 2,552,004 we keep \boxed{004}, that is \boxed{004}", "004"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\fbox{3}", "3"),
        (r"\boxed 7 is it", "7"),
        (r"\boxed{\text{a }\boxed{3}}", "3"),
        ("<answer> 42 </answer>", "42"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        (r"<answer>1</answer> \boxed{3}", "3"),
        ("Work.\nAnswer: 33", "33"),
        ("**Answer:** 33", "33"),
        ("Final answer: $x=2$", "$x=2$"),
        ("Answer: 1\nAnswer: 2", "2"),
        (r"<think>\boxed{1}</think>\boxed{2}", "2"),
        # No answer:
        ("I think it is 42 but I never box it", None),
        ("Candidates: 41, 42, 43", None),
        ("The answer is 42", None),
        (r"<think>\boxed{1}", None),
        (r"<think>\boxed{1}</think> done", None),
        (r"a</think>b<think>\boxed{1}", None),
        (r"\boxed{1} then \boxed{", None),
        (r"\boxed{1} then \boxed{}", None),
        (r"\boxed{1} then \boxed{2", None),
        ("<answer></answer>", None),
        ("<answer>42", None),
        ("", None),
        (r"\boxed{" + "9" * 5000 + "}", None),
    ],
)
def test_the_last_stated_answer_after_the_thinking(text, answer):
    assert final_answer(text) == answer


def test_text_whose_template_opened_the_thinking_must_end_it():
    assert final_answer(r"hm \boxed{1}", thinking_open=True) is None
    assert final_answer(r"hm \boxed{1}</think>\boxed{2}", thinking_open=True) == "2"
    assert solution_part("no tags at all") == "no tags at all"


@pytest.mark.parametrize(
    ("text", "answer"),
    [("it is 42 then", "42"), ("so $x^2$ it is", "x^2"), ("1,234.5 of them", "1,234.5"),
     ("nothing", None), (r"5 or \boxed{6}", "6")],
)  # fmt: skip
def test_lenient_mode_takes_the_last_number_or_formula(text, answer):
    assert final_answer(text, mode="lenient") == answer
