"""Requests of a run: where thinking is interrupted, and with which numbers tokens are drawn."""

from __future__ import annotations

from collections import Counter

import pytest
from pipeline_fakes import make_prompt

from scalerl.config import Config, load_config
from scalerl.messages import Request
from scalerl.pipeline.run import make_request

LOW, HIGH = 20, 29
BUDGETS = range(LOW, HIGH + 1)
PROMPTS = [make_prompt(f"p{i}") for i in range(250)]


def config(*words: str) -> Config:
    return load_config([], overrides=[f"--length.low={LOW}", f"--length.high={HIGH}", *words])


def requests(settings: Config, purpose: str = "rollout") -> list[Request]:
    """4000 of them, of 250 groups."""
    return [
        make_request(settings, purpose, group, prompt, sample, group)
        for group, prompt in enumerate(PROMPTS)
        for sample in range(16)
    ]


def chi_squared(seen: Counter[int]) -> float:
    expected = seen.total() / len(BUDGETS)
    return sum((seen[budget] - expected) ** 2 / expected for budget in BUDGETS)


LIMIT = 27.9  # of χ² with nine degrees of freedom: exceeded once in a thousand


def test_the_interruption_is_drawn_evenly_from_low_to_high_both_included() -> None:
    drawn = Counter(r.interrupt_at for r in requests(config()))
    assert set(drawn) == set(BUDGETS)
    assert chi_squared(drawn) < LIMIT  # type: ignore[arg-type]
    for sample in (0, 15):  # of one sample over the groups, and of one group over the samples
        assert chi_squared(Counter(r.interrupt_at for r in requests(config())[sample::16])) < LIMIT  # type: ignore[arg-type]
    assert len({r.interrupt_at for r in requests(config())[:16]}) > 5


@pytest.mark.parametrize("shift", [0, 8, 16, 40])
def test_the_interruption_says_nothing_of_the_numbers_that_the_tokens_are_drawn_with(
    shift: int,
) -> None:
    """Neither the lowest digit of the seed nor higher ones go with it."""
    together = Counter((r.interrupt_at, (r.seed >> shift) % 10) for r in requests(config()))
    cells = [together[budget, digit] for budget in BUDGETS for digit in range(10)]
    expected = sum(cells) / len(cells)
    assert sum((seen - expected) ** 2 / expected for seen in cells) < 148.3  # of 99 degrees


def test_the_interruption_changes_no_sampling_seed_and_evaluation_has_its_own() -> None:
    with_it, without = (
        requests(config()),
        requests(load_config([], overrides=["--length.type=none"])),
    )
    assert [r.seed for r in with_it] == [r.seed for r in without]
    assert all(r.interrupt_at is None for r in without)
    assert len({r.seed for r in with_it}) == len(with_it)
    evaluation = requests(config(), "evaluation")
    assert not {r.seed for r in with_it} & {r.seed for r in evaluation}
    same = sum(a.interrupt_at == b.interrupt_at for a, b in zip(with_it, evaluation, strict=True))
    assert 300 < same < 500  # one in ten by chance
    other = requests(config("--seed=1"))
    assert not {r.seed for r in with_it} & {r.seed for r in other}
