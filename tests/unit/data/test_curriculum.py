"""The curriculum over random histories, against a model of it written in a few lines."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalerl.data.curriculum import AllPromptsRetired, Curriculum, PromptStream
from scalerl.errors import InputError, RunError
from scalerl.messages import Prompt


def prompts(n: int, prefix: str = "p") -> list[Prompt]:
    return [
        Prompt(id=f"{prefix}{i:02d}", text="", token_ids=(1,), answer="", task="t")
        for i in range(n)
    ]


def stream(n: int, seed: int = 3, **options: Any) -> PromptStream:
    return PromptStream(prompts(n), seed=seed, **options)


def draw(source: PromptStream, n: int) -> list[str]:
    return [source.draw().id for _ in range(n)]


def reload(source: PromptStream, n: int, **options: Any) -> PromptStream:
    """The stream as another process would restore it from a checkpoint."""
    fresh = stream(n, **options)
    fresh.restore(json.loads(json.dumps(source.state())))
    return fresh


def test_an_epoch_is_a_seeded_permutation_independent_of_the_order_of_the_file() -> None:
    first = draw(stream(20), 40)
    assert sorted(first[:20]) == sorted(first[20:]) == [p.id for p in prompts(20)]
    assert first[:20] != first[20:]
    assert draw(PromptStream(prompts(20)[::-1], seed=3), 40) == first
    assert draw(stream(20, seed=4), 40) != first


def test_a_visit_at_nine_tenths_retires_for_good_also_from_the_epoch_laid_out() -> None:
    source = stream(4)
    order = draw(source, 4)
    assert source.record(order[0], 0.9)
    assert not source.record(order[1], 0.89)
    seen = draw(source, 9)
    assert order[0] not in seen
    assert Counter(seen) == dict.fromkeys(order[1:], 3)
    # The next epoch is laid out when its first prompt is drawn; one retired then does not come.
    source.draw()
    late = (set(order[1:]) - {source.unvisited()[-1]}).pop()
    source.record(late, 1.0)
    assert late not in draw(source, 1)
    assert source.retired == {order[0], late}
    assert source.n_live == 2


def test_a_later_poor_visit_does_not_bring_a_prompt_back() -> None:
    source = stream(2)
    first = source.draw().id
    draw(source, 3)  # the other, then both again: `first` is pending twice
    source.record(first, 1.0)
    assert source.record(first, 0.0)
    assert source.history[first] == (1.0, 0.0)
    assert first not in draw(source, 4)


def test_uniform_retires_none_and_keeps_the_history() -> None:
    source = stream(3, curriculum="uniform")
    for prompt_id in draw(source, 3):
        assert not source.record(prompt_id, 1.0)
    assert sorted(draw(source, 3)) == sorted(source.history)
    assert source.retired == frozenset()


def test_fewer_prompts_than_a_batch_goes_on_with_the_next_epoch() -> None:
    source = stream(3)
    assert Counter(draw(source, 12)) == dict.fromkeys(("p00", "p01", "p02"), 4)
    assert source.epoch == 4


def test_everything_retired_ends_the_run_by_name() -> None:
    source = stream(2)
    for prompt_id in draw(source, 2):
        source.record(prompt_id, 1.0)
    with pytest.raises(AllPromptsRetired, match="all 2 prompts are retired") as caught:
        source.draw()
    assert isinstance(caught.value, RunError)


def test_pending_prompts_of_a_checkpoint_are_drawn_again_first_and_once() -> None:
    source = stream(6)
    order = draw(source, 5)
    source.record(order[1], 0.5)
    restored = reload(source, 6)
    assert restored.unvisited() == (order[0], order[2], order[3], order[4])
    restored.put_back(restored.unvisited(except_for=[order[2]]))  # its group was finished
    assert draw(restored, 3) == [order[0], order[3], order[4]]
    last = restored.draw().id
    assert last not in order  # then the rest of the epoch
    assert restored.unvisited() == (order[2], order[0], order[3], order[4], last)


def test_a_pending_prompt_retired_by_another_visit_is_not_drawn_again() -> None:
    source = stream(2)
    first = source.draw().id
    other = draw(source, 3)[0]  # both are pending twice now
    source.record(first, 1.0)
    source.put_back(source.unvisited())
    assert draw(source, 4) == [other] * 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 5}, "another dataset"),
        ({"seed": 9}, "another seed: 3 there, 9 here"),
        ({"threshold": 0.5}, "another threshold"),
        ({"curriculum": "uniform"}, "another curriculum"),
    ],
)
def test_a_state_of_another_run_is_refused_and_changes_nothing(
    options: dict[str, Any], words: str
) -> None:
    saved = stream(4)
    draw(saved, 2)
    target = stream(**({"n": 4} | options))
    before = target.state()
    with pytest.raises(InputError, match=words):
        target.restore(saved.state())
    assert target.state() == before


def test_a_malformed_state_is_refused() -> None:
    state = stream(4).state()
    for broken in ({}, state | {"epoch": "two"}, state | {"more": 1}):
        with pytest.raises(InputError, match="malformed"):
            stream(4).restore(broken)
    with pytest.raises(InputError, match="unknown prompt x"):
        stream(4).restore(state | {"rest": ["x"]})


@pytest.mark.parametrize(
    ("n", "options", "words"),
    [
        (0, {}, "empty"),
        (2, {"seed": -1}, "seed"),
        (2, {"threshold": 0.0}, "threshold"),
        (2, {"threshold": 1.1}, "threshold"),
        (2, {"curriculum": "linear"}, "choose no_positive_resampling or uniform"),
    ],
)
def test_what_cannot_be_drawn_from_is_refused(n: int, options: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        stream(n, **options)


def test_prompts_of_one_content_are_refused() -> None:
    with pytest.raises(InputError, match="1 prompts occur more than once, among them p00"):
        PromptStream([*prompts(2), prompts(1)[0]], seed=0)


def test_visits_that_did_not_happen_are_refused() -> None:
    source = stream(3)
    drawn = source.draw().id
    with pytest.raises(ValueError, match="not in"):
        source.record(drawn, 1.5)
    source.record(drawn, 0.5)
    with pytest.raises(ValueError, match="not pending"):
        source.record(drawn, 0.5)
    with pytest.raises(ValueError, match=f"put back but not pending: {drawn}"):
        source.put_back([drawn])


events = st.lists(
    st.one_of(
        st.tuples(st.just("draw"), st.integers(1, 4)),
        st.tuples(
            st.just("record"), st.integers(0, 30), st.sampled_from([0.0, 0.5, 0.89, 0.9, 1.0])
        ),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("crash")),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(
    st.integers(1, 9),
    st.integers(0, 5),
    st.sampled_from(["no_positive_resampling", "uniform"]),
    events,
)
def test_random_histories_with_crashes(
    n: int, seed: int, curriculum: Curriculum, history: list[tuple[Any, ...]]
) -> None:
    """A retired prompt never returns, no other is lost, an epoch visits each live prompt once.

    A crash goes back to the last checkpoint and puts the pending prompts back. `visits` counts
    first draws by epoch; a redrawn prompt must be one owed, in order.
    """
    source = stream(n, seed=seed, curriculum=curriculum)
    ids = {p.id for p in prompts(n)}
    world: dict[str, Any] = {"retired": set(), "pending": [], "owed": [], "visits": {}}
    saved = json.dumps([source.state(), _plain(world)])
    for event in history:
        match event:
            case ("draw", int(many)):
                for _ in range(many):
                    _draw_and_check(source, ids, world)
            case ("record", int(which), float(rate)):
                if world["pending"]:
                    prompt_id = world["pending"].pop(which % len(world["pending"]))
                    retired = source.record(prompt_id, rate)
                    if rate >= 0.9 and curriculum == "no_positive_resampling":
                        world["retired"].add(prompt_id)
                    assert retired == (prompt_id in world["retired"])
            case ("checkpoint",):
                saved = json.dumps([source.state(), _plain(world)])
            case _:
                state, plain = json.loads(saved)
                source = stream(n, seed=seed, curriculum=curriculum)
                source.restore(state)
                world = _world(plain)
                pending = source.unvisited()
                assert sorted(pending) == sorted(world["pending"])
                source.put_back(pending)
                world["owed"] = [*pending, *world["owed"]]
                world["pending"] = []
    _check_epochs(ids, world)


def _draw_and_check(source: PromptStream, ids: set[str], world: dict[str, Any]) -> None:
    owed = [p for p in world["owed"] if p not in world["retired"]]
    if world["retired"] == ids:
        with pytest.raises(AllPromptsRetired):
            source.draw()
        return
    prompt_id = source.draw().id
    assert prompt_id not in world["retired"]
    if owed:
        assert prompt_id == owed[0]
        world["owed"] = owed[1:]
    else:
        world["owed"] = []
        visits = world["visits"].setdefault(str(source.epoch), [])
        assert prompt_id not in visits
        visits.append(prompt_id)
        previous = world["visits"].get(str(source.epoch - 1))
        if len(visits) == 1 and previous is not None:
            assert ids - world["retired"] <= set(previous)  # nobody live was left out
    world["pending"].append(prompt_id)


def _check_epochs(ids: set[str], world: dict[str, Any]) -> None:
    epochs = sorted(map(int, world["visits"]))
    assert epochs == list(range(1, len(epochs) + 1))
    for epoch in epochs[:-1]:
        assert ids - set(world["visits"][str(epoch)]) <= world["retired"]


def _plain(world: dict[str, Any]) -> dict[str, Any]:
    return world | {"retired": sorted(world["retired"])}


def _world(plain: dict[str, Any]) -> dict[str, Any]:
    return plain | {"retired": set(plain["retired"])}


@given(st.integers(1, 8), st.integers(0, 25), st.integers(0, 25))
def test_a_restored_stream_draws_what_the_uninterrupted_one_draws(
    n: int, before: int, after: int
) -> None:
    whole, first = stream(n), stream(n)
    expected = draw(whole, before + after)
    start = draw(first, before)
    assert start + draw(reload(first, n), after) == expected
