"""Real rollouts around fake generators: random latencies, orders, faults, kills; no model."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipeline_fakes import Clock, FakeFleet, SlowScores, World, fake_score, make_completion

from scalerl.algorithm.effective import Rules
from scalerl.config.axes import Pipeline, PpoOffPolicy, RegimeConfig, Synchronous
from scalerl.data.curriculum import Curriculum
from scalerl.errors import RunError
from scalerl.messages import (
    Completion,
    Counters,
    Evaluated,
    Progress,
    Prompt,
    Request,
    Scored,
    WeightsLoaded,
)
from scalerl.pipeline.fleet import Lost, Word

REGIMES: st.SearchStrategy[RegimeConfig] = st.one_of(
    st.builds(Pipeline, k=st.integers(0, 6)),
    st.builds(PpoOffPolicy, k=st.integers(1, 6)),
    st.just(Synchronous()),
)


def lengths(request: Request) -> int:
    """One prompt in ten takes ten times as long."""
    return (30 if request.seed % 10 == 0 else 1) + request.seed % 5


def assert_each_epoch_once(world: World, prompts: int) -> None:
    """Groups 0, 1, 2 … of the run were spent once each, and every epoch is a permutation."""
    taken = [g for step in (*world.trained, *world.spent) for g in step]
    numbers = [g.index for g in taken]
    assert sorted(numbers) == list(range(world.rollouts.next_group))
    by_number = {g.index: g.prompt.id for g in taken}
    for start in range(0, len(taken) - prompts + 1, prompts):
        assert len({by_number[i] for i in range(start, start + prompts)}) == prompts


@settings(max_examples=600, deadline=None)
@given(
    regime=REGIMES,
    groups=st.integers(1, 3),
    completions=st.integers(2, 3),
    generators=st.integers(1, 3),
    prompts=st.integers(1, 9),
    steps=st.integers(1, 12),
    slow=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_any_latencies_train_every_prompt_of_an_epoch_once_within_the_bound(
    regime: RegimeConfig,
    groups: int,
    completions: int,
    generators: int,
    prompts: int,
    steps: int,
    slow: float,
    seed: int,
) -> None:
    fleet = FakeFleet(generators, seed=seed, lengths=lengths)
    checks = SlowScores(seed, slow=slow)
    world = World(
        fleet,
        regime=regime,
        groups=groups,
        completions=completions,
        prompts=prompts,
        steps=steps,
        score=checks.submit,
        scores=checks.collect,
    )
    world.run()  # checks staleness of every token and closes the ledger at every step
    assert world.version == steps
    assert not world.rollouts.pending
    assert not checks.waiting
    for group in (g for step in world.trained for g in step):  # no verdict of another sample
        for sample, got in enumerate(group.completions):
            assert got.completion.sample == sample
            assert got.completion.group == group.index
            ended = (group.index, sample) in checks.ended
            told = checks.error if ended else lambda c, p=group.prompt: checks.verdict(p, c)
            assert got == told(got.completion)
    assert_each_epoch_once(world, prompts)
    k = world.rollouts.buffer.regime.k
    for version, step in enumerate(world.trained):  # no starvation
        assert all(version - g.admitted_version <= k for g in step)
    row = world.rollouts.close_ledger()
    assert row["waiting"] == row["discarded"] == 0
    assert row["generated"] == sum(row.values()) - row["generated"]


@settings(max_examples=600, deadline=None)
@example(Synchronous(), 1, 12, 1, [1], "dynamic", "no_positive_resampling", 0.0, 0)
@given(
    regime=REGIMES,
    generators=st.integers(1, 3),
    steps=st.integers(2, 12),
    every=st.integers(1, 4),
    kills=st.lists(st.integers(1, 120), min_size=1, max_size=5),
    zero_variance=st.sampled_from(["filter", "dynamic"]),
    curriculum=st.sampled_from(["uniform", "no_positive_resampling"]),
    slow=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_killed_at_any_moment_and_resumed_every_prompt_is_used_once(
    regime: RegimeConfig,
    generators: int,
    steps: int,
    every: int,
    kills: list[int],
    zero_variance: str,
    curriculum: Curriculum,
    slow: float,
    seed: int,
) -> None:
    if isinstance(regime, PpoOffPolicy):
        zero_variance = "filter"  # the configuration refuses the other
    world, saved, saved_at = None, None, 0
    for polls_left in (*kills, 10**9):
        before = world
        fleet = Kill(generators, seed=seed + polls_left, lengths=lengths, polls=polls_left)
        checks = SlowScores(seed + polls_left, slow=slow)  # nothing of the one before is left
        world = World(
            fleet,
            score=checks.submit,
            scores=checks.collect,
            regime=regime,
            prompts=7,
            steps=steps,
            rules=Rules(zero_variance=zero_variance),  # type: ignore[arg-type]
            curriculum=curriculum,
        )
        if saved is not None and before is not None:
            world.version = saved_at
            world.resume(saved, before)
        try:
            world.begin()
            while world.version < steps:
                retired = world.rollouts.stream.retired
                number = world.rollouts.next_group
                if not world.step():
                    break
                drawn = [p for p in world.rollouts.pending.values() if p.index >= number]
                assert not any(p.prompt.id in retired for p in drawn)
                if world.version % every == 0:
                    saved, saved_at = world.checkpoint(), world.version
        except Killed:
            continue
        break
    assert world is not None
    numbers = [g.index for step in (*world.trained, *world.spent) for g in step]
    left = [*world.rollouts.pending, *(g.index for g in world.rollouts.held_groups())]
    assert sorted([*numbers, *left]) == list(range(world.rollouts.next_group))
    if curriculum == "uniform":
        assert world.version == steps
        if zero_variance == "filter":
            assert_each_epoch_once(world, 7)
    elif world.version < steps:
        assert world.rollouts.stream.n_live == 0  # a defined end
        assert not world.rollouts.buffer.untrained
        world.rollouts.close_ledger()  # the useless ones without a step are held, not lost


class Killed(Exception):
    pass


class Kill(FakeFleet):
    """Ends the world after so many polls."""

    def __init__(self, *args: object, polls: int, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._polls = polls

    def poll(self, timeout_s: float) -> list[tuple[int, Word]]:
        self._polls -= 1
        if self._polls < 0:
            raise Killed
        return super().poll(timeout_s)


# Faults of generators


def garbage(fleet: FakeFleet, i: int, kind: int) -> Word:
    """Things that cannot be true, of every kind."""
    generator = fleet.generators[i]
    honest = generator.progress([])
    counters = honest.counters
    lie = make_completion(0, 0, tokens=2, segments=((0, generator.version),))
    future = make_completion(10**6, 0)
    match kind % 10:
        case 0:
            return Progress(completions=(future,), version=0, counters=counters)
        case 1:
            return Progress(completions=(), version=10**6, counters=counters)
        case 2:
            return Progress(completions=(), version=0, counters=Counters(tokens_generated=-1))
        case 3:
            return honest_with(honest, msgspec.structs.replace(lie, logp_gen=(-1.0,)))
        case 4:
            return honest_with(honest, msgspec.structs.replace(lie, segments=((0, 10**6),)))
        case 5:
            return honest_with(honest, msgspec.structs.replace(lie, sample=99))
        case 6:
            return honest_with(honest, msgspec.structs.replace(lie, mask=(1, 2)))
        case 7:
            return Evaluated(step=99, version=0, completions=(), seconds=0.0, counters=Counters())
        case 8:
            tokens = counters.tokens_generated + 5
            return Progress(completions=(), version=0, counters=Counters(tokens_generated=tokens))
        case _:
            return Lost("was killed by SIGKILL")


def honest_with(honest: Progress, completion: Completion) -> Progress:
    return msgspec.structs.replace(honest, completions=(completion,))


@settings(max_examples=500, deadline=None)
@given(
    regime=REGIMES,
    generators=st.integers(1, 3),
    faults=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=6),
    duplicates=st.booleans(),
    slow=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 10**6),
)
def test_dead_and_lying_generators_are_replaced_and_nothing_is_lost(
    regime: RegimeConfig,
    generators: int,
    faults: list[tuple[int, int]],
    duplicates: bool,
    slow: float,
    seed: int,
) -> None:
    checks = SlowScores(seed, slow=slow)
    rng = random.Random(seed)
    due = sorted(faults)
    polls = 0

    def mischief(fleet: FakeFleet) -> list[tuple[int, Word]]:
        nonlocal polls
        polls += 1
        words: list[tuple[int, Word]] = []
        if due and due[0][0] <= polls:
            i = rng.randrange(fleet.size)
            words.append((i, garbage(fleet, i, due.pop(0)[1])))
        elif duplicates:  # everything said a second time, deliveries and acknowledgements alike
            words += [(i, said) for i, g in enumerate(fleet.generators) for said in g.last]
        return words

    world = World(
        FakeFleet(generators, seed=seed, lengths=lengths, mischief=mischief),
        regime=regime,
        prompts=7,
        steps=8,
        restarts=len(faults),
        score=checks.submit,
        scores=checks.collect,
    )
    world.run()
    assert world.version == 8
    assert_each_epoch_once(world, 7)
    assert len(world.warnings) == len(world.fleet.restarted) <= len(faults)
    assert set(world.rollouts.ledger.discarded) <= {"generator lost"}


def test_the_work_of_a_dead_generator_is_asked_for_again_under_the_same_numbers() -> None:
    """Only what is missing is; delivered samples stay, undelivered tokens are discarded."""
    polls = 0

    def mischief(fleet: FakeFleet) -> list[tuple[int, Word]]:
        nonlocal polls
        polls += 1
        return [(0, Lost("generator 0 (pid 7) was killed by SIGKILL"))] if polls == 8 else []

    fleet = FakeFleet(1, lengths=lambda r: 1 if r.sample == 0 else 12, mischief=mischief)
    world = World(fleet, regime=Synchronous(), steps=1, restarts=1)
    world.begin()
    world.step()
    asked = [(r.group, r.sample) for r in fleet.submitted]
    assert asked == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 1), (1, 1)]
    assert fleet.submitted[1] == fleet.submitted[4]  # the same random numbers
    ledger = world.rollouts.ledger
    assert ledger.discarded["generator lost"] > 0
    assert world.rollouts.close_ledger()["discarded"] == ledger.discarded["generator lost"]
    assert world.warnings == [
        "generator 0 (pid 7) was killed by SIGKILL; restarted (1 of 1)",
    ]


def test_a_used_up_budget_ends_the_run_with_who_and_why() -> None:
    def mischief(fleet: FakeFleet) -> list[tuple[int, Word]]:
        return [(0, Lost("generator 0 (pid 7) was killed by SIGKILL"))]

    world = World(FakeFleet(1, mischief=mischief), regime=Pipeline(k=1), restarts=2)
    with pytest.raises(RunError, match=r"pid 7\) was killed by SIGKILL; .*restarts = 2 is used up"):
        world.run()
    assert world.fleet.restarted == [0, 0]


def test_a_generator_that_stays_silent_is_restarted_and_at_last_named() -> None:
    """E01: a request that never returns; the wait names what it waits for."""

    def mischief(fleet: FakeFleet) -> list[tuple[int, Word]]:
        for generator in fleet.generators:
            generator.deaf = generator.version >= 0
        return []

    world = World(FakeFleet(1, mischief=mischief), regime=Pipeline(k=1), restarts=1, stall_s=5.0)
    with pytest.raises(RunError, match=r"waited 5 s for groups for step 1 .* group 0 on gener"):
        world.run()
    assert world.fleet.restarted == [0]
    assert world.fleet.clock.now < 12


def test_one_request_that_never_returns_is_asked_for_again() -> None:
    """E01: the generator is well, but has forgotten one sample of one group."""
    world = World(FakeFleet(1), regime=Pipeline(k=2), restarts=1, stall_s=5.0, steps=6)
    fleet = world.fleet
    forgets = lambda r: 0 if (r.group, r.sample) == (3, 1) and not fleet.restarted else 2  # noqa: E731
    fleet._lengths = fleet.generators[0]._length = forgets
    world.run()
    assert world.version == 6
    assert fleet.restarted == [0]
    assert "oldest unfinished: group 3 on generator 0" in world.warnings[0]
    assert [(r.group, r.sample) for r in fleet.submitted].count((3, 1)) == 2
    assert_each_epoch_once(world, 8)


def test_k_zero_with_weights_that_come_late_is_synchronous_and_does_not_lock() -> None:
    """E02: the push takes longer than a step."""
    for regime in (Pipeline(k=0), Pipeline(k=1)):
        world = World(FakeFleet(1, slots=1, lengths=lambda r: 1), regime=regime, steps=20)
        fleet = world.fleet

        def late(fleet: FakeFleet = fleet) -> list[tuple[int, Word]]:
            fleet.generators[0].deaf = fleet.rng.random() < 0.9
            return []

        fleet._mischief = lambda _, late=late: late()
        world.run()
        assert world.version == 20
        assert world.rollouts.close_ledger()["discarded"] == 0


def test_slow_prompts_are_trained_as_often_as_the_others_and_within_the_bound() -> None:
    """E03: one prompt in ten takes ten times as long; k = 2; 200 steps. A group is trained k steps
    after its admission at the latest, however slow it is, and no token is older than that."""
    k = 2

    def slow(request: Request) -> int:
        return 50 if request.prompt_ids[0] % 10 == 0 else 5

    world = World(FakeFleet(2, slots=8, lengths=slow), regime=Pipeline(k=k), prompts=40, steps=200)
    world.run()
    visits = Counter(g.prompt.id for step in world.trained for g in step)
    assert set(visits.values()) == {10}  # 400 groups of 40 prompts
    assert world.rollouts.ledger.discarded == {}
    waited: dict[bool, list[int]] = {True: [], False: []}
    oldest = 0
    for version, step in enumerate(world.trained):
        for group in step:
            long = {len(s.completion.token_ids) for s in group.completions} == {50}
            waited[long].append(version - group.admitted_version)
            oldest = max(
                oldest, *(version - s.completion.oldest_version for s in group.completions)
            )
    assert (len(waited[True]), len(waited[False])) == (40, 360)
    assert max(waited[True]) == max(waited[True] + waited[False]) == oldest == k
    mean = {long: sum(steps) / len(steps) for long, steps in waited.items()}
    assert mean[True] > mean[False]  # they are slow indeed, and are overtaken


@pytest.mark.parametrize(("prompts", "groups"), [(10, 4), (3, 8), (18, 32)])
def test_a_pool_smaller_than_a_batch_goes_on_into_the_next_epoch(prompts: int, groups: int) -> None:
    """E07: no last partial batch is dropped and none is waited for."""
    world = World(FakeFleet(2), regime=Pipeline(k=2), groups=groups, prompts=prompts, steps=5)
    world.run()
    assert [len(step) for step in world.trained] == [groups] * 5
    assert_each_epoch_once(world, prompts)


def test_a_pool_that_is_mastered_ends_the_run_with_a_smaller_last_step() -> None:
    def mastered(prompt: Prompt, completion: Completion) -> Scored:
        return Scored(completion=completion, reward=1.0, outcome="correct")

    world = World(
        FakeFleet(1),
        regime=Synchronous(),
        groups=4,
        prompts=6,
        curriculum="no_positive_resampling",
        score=mastered,
    )
    world.fleet._lengths = lambda r: 1
    world.run()
    trained = [len(step) for step in world.trained]
    assert sum(trained) == world.rollouts.next_group
    assert world.rollouts.exhausted
    assert world.version < 10
    assert not world.step()


def test_dynamic_sampling_refills_and_gives_up_on_a_hopeless_pool() -> None:
    def hopeless(prompt: Prompt, completion: Completion) -> Scored:
        return Scored(completion=completion, reward=-1.0, outcome="wrong")

    rules = Rules(zero_variance="dynamic")
    world = World(FakeFleet(2), regime=Pipeline(k=2), rules=rules, steps=20)
    world.run()
    assert all(len(step) == 2 for step in world.trained)
    assert any(world.spent)
    for step in world.trained:
        assert all(len({s.reward for s in g.completions}) == 2 for g in step)
    world = World(FakeFleet(2), regime=Pipeline(k=2), rules=rules, score=hopeless)
    with pytest.raises(RunError, match=r"without variance for one step .*dynamic_limit = 50"):
        world.run()


def test_an_evaluation_is_pinned_and_survives_its_generator() -> None:
    """Weights of step 2 are kept for it, however many follow."""
    dead = {"at": -1}

    def mischief(fleet: FakeFleet) -> list[tuple[int, Word]]:
        dead["at"] -= 1
        return [(0, Lost("gone"))] if dead["at"] == 0 else []

    world = World(FakeFleet(2, mischief=mischief), regime=Pipeline(k=4), restarts=3, steps=8)
    world.begin()
    world.step()
    world.step()
    requests = [Request(group=9, sample=0, prompt_ids=(1,), seed=3)]
    world.rollouts.evaluate(2, requests)
    world.fleet.generators[0].deaf = True  # it has not even looked
    for _ in range(3):
        world.step()
    dead["at"] = 1
    [done] = world.rollouts.evaluations(wait=True)
    assert (done.step, done.version) == (2, 2)
    assert world.fleet.restarted == [0]
    while world.step() and world.version < 8:
        pass
    assert world.version == 8


def test_an_acknowledgement_that_comes_twice_does_not_free_a_later_buffer() -> None:
    world = World(FakeFleet(1), regime=Pipeline(k=1))
    store = world.rollouts.store
    first = store.write(0, world.weights())
    loaded = WeightsLoaded(version=0, slot=first.slot)
    store.release(0, loaded)
    second = store.write(1, world.weights())
    assert second.slot == first.slot
    store.release(0, loaded)
    assert store.behind == [0]


def test_scores_are_given_in_order_of_sample() -> None:
    world = World(FakeFleet(3, lengths=lengths), regime=Pipeline(k=3), completions=4)
    world.run()
    for step in world.trained:
        for group in step:
            assert [s.completion.sample for s in group.completions] == [0, 1, 2, 3]
            assert group.completions == tuple(
                fake_score(group.prompt, s.completion) for s in group.completions
            )


# Scores that take time


class OneAt:
    """Checks one answer after the other, each for so many seconds; with None, for ever."""

    def __init__(self, clock: Clock, seconds: float | None) -> None:
        self._clock, self._seconds = clock, seconds
        self.queue: list[Scored] = []
        self._since = 0.0

    def submit(self, prompt: Prompt, completion: Completion) -> None:
        if not self.queue:
            self._since = self._clock()
        self.queue.append(fake_score(prompt, completion))

    def collect(self) -> list[Scored]:
        if not self.queue or self._seconds is None or self._clock() < self._since + self._seconds:
            return []
        self._since = self._clock()
        return [self.queue.pop(0)]


@pytest.mark.parametrize("seconds", [20.0, 70.0])
def test_a_score_is_progress_and_no_generator_is_blamed_for_a_slow_check(seconds: float) -> None:
    clock = Clock()
    checks = OneAt(clock, seconds)
    world = World(
        FakeFleet(1, clock=clock),
        regime=Synchronous(),
        completions=4,
        steps=1,
        stall_s=60.0,
        score=checks.submit,
        scores=checks.collect,
    )
    world.run()
    assert clock.now >= 8 * seconds
    assert world.fleet.restarted == []


def test_checks_that_never_end_end_the_run_and_say_so() -> None:
    clock = Clock()
    checks = OneAt(clock, None)
    world = World(
        FakeFleet(1, clock=clock),
        regime=Synchronous(),
        restarts=3,
        score=checks.submit,
        scores=checks.collect,
    )
    with pytest.raises(RunError, match="4 answers are with their checks, none ends"):
        world.run()
    assert world.fleet.restarted == []


def test_what_awaits_a_score_is_waiting_in_the_ledger_and_sampled_again_after_a_resume() -> None:
    checks = OneAt(Clock(), None)
    world = World(
        FakeFleet(1), regime=Synchronous(), score=checks.submit, scores=checks.collect, steps=3
    )
    world.begin()
    world.rollouts.admit(0)
    while len(checks.queue) < 3:
        world.rollouts.poll(0.05)
    tokens = sum(len(s.completion.token_ids) for s in checks.queue)
    assert world.rollouts.waiting_tokens == tokens > 0
    undelivered = world.rollouts.close_ledger()["waiting"] - tokens
    saved = world.checkpoint()
    asked = len(world.fleet.submitted)
    resumed = World(FakeFleet(1), regime=Synchronous(), steps=3)
    resumed.resume(saved, world)
    row = resumed.rollouts.close_ledger()
    assert row["waiting"] == 0
    assert row["discarded"] == tokens + undelivered
    resumed.begin()
    resumed.rollouts.admit(0)
    again = {(r.group, r.sample) for r in resumed.fleet.submitted}
    assert again == {(r.group, r.sample) for r in world.fleet.submitted[:asked]}  # each once more


def test_an_answer_that_awaits_its_score_is_not_asked_for_again_when_its_generator_dies() -> None:
    checks = SlowScores(0, slow=1.0, deaths=0.0)
    dead = {"at": 0}

    def mischief(fleet: FakeFleet) -> list[tuple[int, Word]]:
        if dead["at"] == 0 and len(checks.waiting) >= 2:
            dead["at"] = 1
            waiting = {(c.group, c.sample) for _, _, c in checks.waiting}
            dead["asked"], dead["waiting"] = len(fleet.submitted), waiting  # type: ignore[assignment]
            return [(0, Lost("gone"))]
        return []

    world = World(
        FakeFleet(1, mischief=mischief),
        regime=Pipeline(k=2),
        completions=4,
        restarts=1,
        score=checks.submit,
        scores=checks.collect,
    )
    world.run()
    asked = [(r.group, r.sample) for r in world.fleet.submitted]
    waiting: set[tuple[int, int]] = dead["waiting"]  # type: ignore[assignment]
    assert all(asked.count(key) == 1 for key in waiting)
    assert max(Counter(asked).values()) == 2
