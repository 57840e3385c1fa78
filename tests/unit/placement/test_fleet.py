"""A fleet of real processes without a model: what it makes of death, silence and garbage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import placement_workers as lives
import pytest

from scalerl.algorithm.effective import usable_mask
from scalerl.errors import RunError
from scalerl.messages import Progress, Submit, WeightsLoaded, WeightsReady
from scalerl.pipeline import fleet as fleet_module
from scalerl.pipeline.fleet import InlineFleet, Lost, ProcessFleet, Word

Make = Callable[..., ProcessFleet]


@pytest.fixture
def make() -> Iterator[Make]:
    fleets: list[ProcessFleet] = []

    def start(life: Callable[..., None], *arguments: Any, silence_s: float = 60.0) -> ProcessFleet:
        fleets.append(ProcessFleet(life, [arguments], silence_s=silence_s))
        return fleets[-1]

    yield start
    for fleet in fleets:
        fleet.close(0.0)


def await_word(fleet: ProcessFleet, kind: type, timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    heard: list[Word] = []
    while time.monotonic() < deadline:
        for number, word in fleet.poll(0.05):
            assert number == 0
            heard.append(word)
            if isinstance(word, kind):
                return word
    pytest.fail(f"heard only {heard}")


def test_a_new_process_takes_the_place_of_a_dead_one_which_is_not_heard_again(make: Make) -> None:
    fleet = make(lives.generator)
    await_word(fleet, Progress)
    first = fleet.pids
    fleet._workers[0].process.kill()
    assert await_word(fleet, Lost).reason == f"generator 0 (pid {first[0]}) was killed by SIGKILL"
    fleet.restart(0)
    assert fleet.pids != first
    await_word(fleet, Progress)
    fleet.send(0, WeightsReady(version=3, slot=1, checksum=0))
    assert await_word(fleet, WeightsLoaded) == WeightsLoaded(version=3, slot=1)


def test_a_generator_that_fails_says_why_and_is_lost_once(make: Make) -> None:
    """A publication that cannot be read, say."""
    fleet = make(lives.generator)
    await_word(fleet, Progress)
    fleet.send(0, Submit(requests=()))
    assert await_word(fleet, Lost).reason == "generator 0 failed: WeightsCorrupt: no such checksum"


def test_bytes_that_are_no_message_lose_the_generator(make: Make) -> None:
    assert "sent something that is no message" in await_word(make(lives.babble), Lost).reason


def test_a_log_prob_that_is_none_is_no_message_and_loses_the_generator(make: Make) -> None:
    """D08: some engines say None of a token outside their top log-probs. Here it never reaches a
    batch: the completion does not decode, and its generator is lost with these words."""
    lost = await_word(make(lives.unsure, None), Lost)
    assert "sent something that is no message: Expected `float`, got `None`" in lost.reason
    assert "completions[0].logp_gen[1]" in lost.reason


def test_a_log_prob_that_is_no_number_is_a_message_for_the_batch_to_mask(make: Make) -> None:
    [completion] = await_word(make(lives.unsure, math.nan), Progress).completions
    mask, unusable = usable_mask(completion.mask, completion.logp_gen)
    assert mask.tolist() == [True, False]
    assert unusable == 1


def test_silence_is_death_but_only_while_somebody_listens(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "AWAY_S", 0.5)
    fleet = make(lives.deaf, silence_s=1.0)
    assert "no message" in await_word(fleet, Lost).reason  # it says `here`, then nothing
    time.sleep(1.5)  # the trainer is busy, or the job is stopped
    assert not [w for _, w in fleet.poll(0.0) if isinstance(w, Lost)]
    began = time.monotonic()
    lost = await_word(fleet, Lost)
    assert 0.8 < time.monotonic() - began < 5
    assert "gave no sign of life for 1 s (execution.stall_s)" in lost.reason


def test_a_process_may_take_longer_to_start_than_it_may_be_silent_later(make: Make) -> None:
    fleet = make(lives.late, 0.5, silence_s=0.1)
    heard: list[Word] = []
    while not heard:
        heard = [word for _, word in fleet.poll(0.05)]
    assert isinstance(heard[0], Progress)
    assert "no sign of life" in await_word(fleet, Lost).reason  # from its first word on


def test_a_process_that_never_starts_is_lost_when_that_time_is_over(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "START_S", 2.0)
    fleet = make(lives.late, 1000.0, silence_s=0.1)
    began = time.monotonic()
    assert "gave no sign of life for 2 s" in await_word(fleet, Lost).reason
    assert time.monotonic() - began > 1.5


def test_a_process_that_dies_at_its_start_is_not_waited_for(make: Make) -> None:
    lost = await_word(make(lives.leave, 1), Lost)
    assert "ended with exit code 1" in lost.reason


def test_inside_one_process_nothing_can_be_restarted() -> None:
    with pytest.raises(RunError, match="shares the trainer's process"):
        InlineFleet([]).restart(0)
