"""What the slots record, step by step, with tokens given instead of sampled."""

import pytest
import torch

from scalerl.errors import InputError
from scalerl.generate.sampling import SamplingParams
from scalerl.generate.slots import Finished, Interruption, Slots
from scalerl.generate.thinking import ending_in_ids
from scalerl.messages import Request

END, OTHER_END, CLOSE, CLOSE_2, A, B, PHRASE = 1, 2, 3, 4, 5, 6, 7


def run(
    sampled: list[int],
    *,
    interrupt_at: int | None,
    max_new: int = 20,
    phrase: tuple[int, ...] = (PHRASE, CLOSE),
    close: tuple[int, ...] = (CLOSE,),
    solution: int = 3,
) -> Finished:
    """One slot that would sample these; the entropy of step t is t + 1, its log-prob −t − 1."""
    slots = Slots(
        2,
        params=SamplingParams(max_new_tokens=max_new),
        interruption=Interruption(
            phrase_ids=phrase, end_thinking=ending_in_ids(close), solution_tokens=solution
        ),
        end_ids=[END, OTHER_END],
        vocabulary=10,
        device=torch.device("cpu"),
    )
    request = Request(group=0, sample=0, prompt_ids=(9, 8), seed=0, interrupt_at=interrupt_at)
    slots.admit([0], [request])
    for t, token in enumerate(sampled):
        one = torch.tensor([1.0 + t])
        if finished := slots.advance(torch.tensor([token]), -one, one):
            assert len(finished) == 1
            return finished[0]
    raise AssertionError("did not finish")


def test_phrase_is_forced_then_the_answer_sampled():
    done = run([A, A, B, B, A, A, END], interrupt_at=3)
    assert done.token_ids == [A, A, B, PHRASE, CLOSE, A, END]
    assert done.mask == [1, 1, 1, 0, 0, 1, 1]
    assert done.logp_gen == [-1, -2, -3, 0, 0, -6, -7]
    assert done.entropy == pytest.approx((1 + 2 + 3 + 6 + 7) / 5)
    assert done.interrupted
    assert done.stopped


def test_thinking_closed_exactly_at_the_budget_is_no_interruption():
    done = run([A, A, CLOSE, B, END], interrupt_at=3)
    assert done.token_ids == [A, A, CLOSE, B, END]
    assert done.mask == [1] * 5
    assert not done.interrupted


def test_thinking_closed_one_token_after_the_budget_is_interrupted():
    done = run([A, A, A, CLOSE, A, A, END], interrupt_at=3)
    assert done.token_ids == [A, A, A, PHRASE, CLOSE, A, END]
    assert done.interrupted


def test_solution_budget_starts_after_the_phrase():
    done = run([A] * 20, interrupt_at=3)
    assert done.token_ids == [A, A, A, PHRASE, CLOSE, A, A, A]
    assert not done.stopped


def test_without_interruption_the_solution_budget_does_not_apply():
    done = run([A, CLOSE] + [A] * 20, interrupt_at=3)
    assert len(done.token_ids) == 20
    assert not done.interrupted


@pytest.mark.parametrize(("max_new", "mask"), [(5, [1, 1, 1, 0, 0]), (4, [1, 1, 1, 0])])
def test_length_limit_holds_in_the_middle_of_a_phrase(max_new, mask):
    done = run([A] * 9, interrupt_at=3, max_new=max_new)
    assert done.mask == mask
    assert done.interrupted
    assert not done.stopped


def test_length_limit_before_the_budget():
    done = run([A] * 9, interrupt_at=3, max_new=3)
    assert done.mask == [1, 1, 1]
    assert not done.interrupted


def test_budget_of_nothing_forces_from_the_first_token():
    done = run([A, A, B, END], interrupt_at=0)
    assert done.token_ids == [PHRASE, CLOSE, B, END]
    assert done.mask == [0, 0, 1, 1]
    assert done.entropy == pytest.approx(3.5)


def test_only_forced_tokens_have_no_entropy():
    assert run([A, A], interrupt_at=0, max_new=2).entropy == 0.0


def test_requests_without_a_budget_are_left_alone():
    done = run([A] * 20, interrupt_at=None)
    assert done.mask == [1] * 20
    assert not done.interrupted


def test_end_sampled_where_the_phrase_is_forced_does_not_end():
    done = run([A, END, END, A, OTHER_END], interrupt_at=1)
    assert done.token_ids == [A, PHRASE, CLOSE, A, OTHER_END]
    assert done.stopped


def test_a_phrase_may_hold_an_end_id_without_ending():
    done = run([A, A, A, B, END], interrupt_at=1, phrase=(END, CLOSE))
    assert done.token_ids == [A, END, CLOSE, B, END]
    assert done.mask == [1, 0, 0, 1, 1]


def test_end_of_thinking_of_several_tokens():
    close = (CLOSE, CLOSE_2)
    phrase = (PHRASE, *close)
    done = run([CLOSE, CLOSE_2, A, A, END], interrupt_at=3, close=close, phrase=phrase)
    assert not done.interrupted
    done = run([CLOSE, A, CLOSE_2, A, A, A, A, END], interrupt_at=3, close=close, phrase=phrase)
    assert done.token_ids == [CLOSE, A, CLOSE_2, PHRASE, CLOSE, CLOSE_2, A, END]
    # half of it before the budget, half after, is not an end in time
    done = run([A, A, CLOSE, CLOSE_2, A, A, END], interrupt_at=3, close=close, phrase=phrase)
    assert done.token_ids == [A, A, CLOSE, PHRASE, CLOSE, CLOSE_2, END]


def test_a_phrase_beyond_the_models_vocabulary_is_refused():
    with pytest.raises(InputError, match=r"length\.phrase: token 10 of the tokenizer"):
        run([A], interrupt_at=0, phrase=(10, CLOSE))
    assert run([A, CLOSE, END], interrupt_at=9, close=(CLOSE,)).token_ids == [A, CLOSE, END]


def test_interruption_is_checked():
    with pytest.raises(ValueError, match="must end the thinking"):
        Interruption(phrase_ids=(6, 7), end_thinking=ending_in_ids((5,)), solution_tokens=3)
    with pytest.raises(ValueError, match="must end the thinking"):
        Interruption(phrase_ids=(), end_thinking=ending_in_ids(()), solution_tokens=3)
    with pytest.raises(ValueError, match="solution_tokens"):
        Interruption(phrase_ids=(5,), end_thinking=ending_in_ids((5,)), solution_tokens=0)
