import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalerl.data.chain import (
    Chain,
    Teacher,
    chain_prompt,
    check_disjoint,
    make_chain_prompts,
    parse_chain,
    random_chain,
    supervised_pairs,
)
from scalerl.errors import InputError
from scalerl.model.tiny import tiny_tokenizer


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def evaluate(text: str) -> int:
    """The value of a prompt text, worked out character by character, apart from the package."""
    total, operator = 0, None
    for character in text.rstrip("="):
        if character in "+-*":
            operator = character
        elif character.isdigit():
            digit = int(character)
            if operator is None:
                total = digit
            else:
                total = {"+": total + digit, "-": total - digit, "*": total * digit}[operator]
    return total % 10


chains = st.builds(
    lambda seed, n: random_chain(random.Random(seed), (n, n)), st.integers(), st.integers(1, 12)
)


@given(chains)
def test_answers_agree_with_an_independent_evaluator(chain):
    assert chain.answer == str(evaluate(chain.text))
    assert parse_chain(chain.text) == chain


def test_the_documented_example():
    chain = Chain(first=3, steps=(("+", 8), ("-", 4), ("*", 7)))
    assert chain.text == "3a+8b-4c*7="
    assert chain.answer == "9"
    flawless = Teacher.make(0, low=1.0)
    assert flawless.trace(chain, random.Random(0)) == (
        "<think>a+8=1b-4=7c*7=9</think><answer>9</answer>"
    )


@pytest.mark.parametrize(
    "text", ["", "3=", "3a+8", "3b+8=", "3a+8a-4=", "3a/8=", "3a+x=", "xa+8=", "3a+8b-="]
)
def test_texts_that_state_no_chain_are_input_errors(text):
    with pytest.raises(InputError, match="not a chain"):
        parse_chain(text)


def test_prompts_are_seeded_unique_disjoint_and_of_every_length():
    train, heldout = make_chain_prompts(train=2000, heldout=256, seed=4, encode=encode)
    again = make_chain_prompts(train=2000, heldout=256, seed=4, encode=encode)
    other, _ = make_chain_prompts(train=2000, heldout=256, seed=5, encode=encode)
    assert (train, heldout) == again
    assert train != other
    fewer, same_heldout = make_chain_prompts(train=500, heldout=256, seed=4, encode=encode)
    assert (fewer, same_heldout) == (train[:500], heldout)
    assert (len(train), len(heldout)) == (2000, 256)
    everything = train + heldout
    assert len({p.text for p in everything}) == len({p.id for p in everything}) == 2256
    for part in (train, heldout):
        lengths = Counter((len(p.text) - 2) // 3 for p in part)
        assert set(lengths) == {1, 2, 3, 4, 5, 6}
        assert min(lengths.values()) > 0.06 * len(part)
    for p in everything:
        assert p.answer == str(evaluate(p.text))
        assert p.token_ids == tuple(encode(p.text))
        assert p.task == "chain"


def test_all_chains_of_a_length_can_be_had_and_no_more():
    train, heldout = make_chain_prompts(
        train=200, heldout=100, seed=0, encode=encode, operations=(1, 1)
    )
    assert len({p.text for p in train + heldout}) == 300
    with pytest.raises(InputError, match="300 different chains exist"):
        make_chain_prompts(train=201, heldout=100, seed=0, encode=encode, operations=(1, 1))


@pytest.mark.parametrize("operations", [(0, 3), (4, 3), (1, 13)])
def test_ranges_of_operations_are_checked(operations):
    with pytest.raises(InputError, match="operations"):
        make_chain_prompts(train=1, heldout=1, seed=0, encode=encode, operations=operations)


def test_a_heldout_prompt_among_the_training_prompts_is_an_input_error():
    chain = Chain(first=1, steps=(("+", 2),))
    prompt = chain_prompt(chain, encode)
    with pytest.raises(InputError, match=r"1 held-out .* '1a\+2='"):
        check_disjoint([prompt], [prompt])


def test_teacher_mistakes_are_systematic():
    teacher = Teacher.make(1, low=0.2)
    assert teacher == Teacher.make(1, low=0.2)
    assert teacher != Teacher.make(2, low=0.2)
    assert len(teacher.wrong) == len(teacher.reliability) == 300
    rng = random.Random(0)
    shares = []
    for (operator, left, right), wrong in list(teacher.wrong.items())[::7]:
        chain = Chain(first=left, steps=((operator, right),))
        answers = Counter(teacher.trace(chain, rng)[-10] for _ in range(300))
        assert str(wrong) != chain.answer
        assert set(answers) <= {chain.answer, str(wrong)}
        share = answers[chain.answer] / 300
        assert share == pytest.approx(teacher.reliability[operator, left, right], abs=0.12)
        shares.append(share)
    assert 0.1 < min(shares) < 0.4
    assert max(shares) > 0.9


@given(chains, st.integers())
def test_traces_carry_mistakes_on_and_answer_with_the_last_value(chain, seed):
    teacher = Teacher.make(0)
    trace = teacher.trace(chain, random.Random(seed))
    head, _, tail = trace.partition("</think>")
    assert tail == f"<answer>{head[-1]}</answer>"
    lines = head.removeprefix("<think>")
    assert len(lines) == 5 * len(chain.steps)
    value = chain.first
    for i, (operator, operand) in enumerate(chain.steps):
        label, op, x, equals, result = lines[5 * i : 5 * i + 5]
        assert (label, op, x, equals) == ("abcdefghijkl"[i], operator, str(operand), "=")
        right = evaluate(f"{value}{operator}{operand}")
        assert int(result) in (right, teacher.wrong[operator, value, operand])
        value = int(result)


def test_supervised_pairs_leave_the_heldout_prompts_out():
    _, heldout = make_chain_prompts(
        train=100, heldout=150, seed=0, encode=encode, operations=(1, 2)
    )
    teacher = Teacher.make(0)
    pairs = supervised_pairs(
        count=3000, seed=0, teacher=teacher, exclude=heldout, operations=(1, 2)
    )
    assert len(pairs) == 3000
    assert not {text for text, _ in pairs} & {p.text for p in heldout}
    assert pairs == supervised_pairs(
        count=3000, seed=0, teacher=teacher, exclude=heldout, operations=(1, 2)
    )


@given(chains.filter(lambda c: len(c.steps) <= 6))
def test_the_tiny_tokenizer_has_the_documented_lengths(chain):
    n = len(chain.steps)
    trace = Teacher.make(0).trace(chain, random.Random(0)) + TOKENIZER.eos_token
    assert len(TOKENIZER(chain.text)["input_ids"]) == 3 * n + 2
    assert len(TOKENIZER(trace)["input_ids"]) == 5 * n + 6


TOKENIZER = tiny_tokenizer()
