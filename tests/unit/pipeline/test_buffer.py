"""The staleness bound: literal examples, then random schedules of admission, finish and step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_fakes import make_group

from scalerl.config.axes import Pipeline, PpoOffPolicy, RegimeConfig, Synchronous
from scalerl.pipeline.buffer import Buffer, StalenessError, make_regime

GROUPS = 2


def buffer_of(regime: RegimeConfig, groups: int = GROUPS) -> Buffer:
    return Buffer(make_regime(regime, groups), groups)


def admit(buffer: Buffer, indices: range, version: int) -> None:
    for index in indices:
        buffer.admit(index, version)


def finish(buffer: Buffer, version: int, *indices: int) -> None:
    for index in indices:
        buffer.finish(make_group(index, version))


def indices(groups: object) -> list[int] | None:
    return None if groups is None else [g.index for g in groups]  # type: ignore[attr-defined]


def test_the_trap_two_fast_groups_may_go_and_then_two_of_the_slow_must() -> None:
    """ALGORITHM.md: k = 2, P = 2, six groups of version 0 of which four are slow."""
    buffer = buffer_of(Pipeline(k=2))
    admit(buffer, range(6), 0)
    assert buffer.room(0) == 0
    finish(buffer, 0, 4, 5)
    assert indices(buffer.take(0)) == [4, 5]  # four left, for the two steps before their deadline
    admit(buffer, range(6, 8), 1)
    finish(buffer, 1, 6, 7)
    assert buffer.take(1) is None  # two fresh ones are ready, but would leave four for one step
    finish(buffer, 0, 0)
    assert buffer.take(1) is None  # one slow and one fresh would leave three
    finish(buffer, 0, 2)
    assert indices(buffer.take(1)) == [0, 2]
    finish(buffer, 0, 1, 3)
    assert indices(buffer.take(2)) == [1, 3]  # at their deadline, not after it
    assert indices(buffer.take(3)) == [6, 7]


def test_training_past_a_deadline_is_an_error_not_a_wait() -> None:
    buffer = buffer_of(Pipeline(k=2))
    admit(buffer, range(6), 0)
    finish(buffer, 0, 0, 1, 2, 3, 4, 5)
    with pytest.raises(StalenessError, match="admitted at version 0, was to be trained at"):
        buffer.take(3)


def test_with_slack_unfinished_older_groups_are_skipped() -> None:
    buffer = buffer_of(Pipeline(k=8))
    admit(buffer, range(18), 0)
    finish(buffer, 0, 16, 17)
    assert indices(buffer.take(0)) == [16, 17]


def test_the_earliest_deadline_goes_first() -> None:
    buffer = buffer_of(Pipeline(k=4))
    admit(buffer, range(4), 0)
    finish(buffer, 0, 0, 3)
    assert indices(buffer.take(0)) == [0, 3]
    admit(buffer, range(4, 8), 1)
    finish(buffer, 1, 4, 5)
    finish(buffer, 0, 2)
    assert indices(buffer.take(1)) == [2, 4]


@pytest.mark.parametrize("regime", [Pipeline(k=0), Synchronous()])
def test_k_zero_is_one_batch_one_step_in_turn(regime: RegimeConfig) -> None:
    buffer = buffer_of(regime)
    for version in range(5):
        assert buffer.room(version) == GROUPS
        first = version * GROUPS
        admit(buffer, range(first, first + GROUPS), version)
        assert buffer.room(version) == 0
        finish(buffer, version, first)
        assert buffer.take(version) is None
        finish(buffer, version, first + 1)
        assert indices(buffer.take(version)) == [first, first + 1]


def test_alternating_makes_k_batches_with_fixed_weights_then_takes_k_steps() -> None:
    buffer = buffer_of(PpoOffPolicy(k=3))
    for phase in range(3):
        start = 3 * phase
        assert buffer.room(start) == 6
        admit(buffer, range(6), start)
        finish(buffer, start, 5, 4, 3, 2, 1)
        assert buffer.take(start) is None  # the phase is not whole
        finish(buffer, start, 0)
        assert indices(buffer.take(start)) == [0, 1]
        assert buffer.room(start + 1) == 0  # generators keep the phase's weights
        assert indices(buffer.take(start + 1)) == [2, 3]
        assert indices(buffer.take(start + 2)) == [4, 5]


def test_a_phase_that_a_crash_cut_is_completed() -> None:
    buffer = buffer_of(PpoOffPolicy(k=2))
    for index in (0, 2, 3):
        buffer.restore(make_group(index, 4))
    assert buffer.room(4) == 1
    buffer.admit(1, 4)
    finish(buffer, 4, 1)
    assert indices(buffer.take(4)) == [0, 1]


def test_no_more_is_admitted_than_the_steps_left_can_train() -> None:
    buffer = buffer_of(Pipeline(k=8))
    assert buffer.room(0, last_version=100) == 18
    assert buffer.room(97, last_version=100) == 6
    assert buffer.room(100, last_version=100) == 0


def test_the_last_step_of_a_dried_up_pool_may_be_smaller() -> None:
    buffer = buffer_of(Pipeline(k=1))
    admit(buffer, range(3), 0)
    finish(buffer, 0, 0, 1, 2)
    assert indices(buffer.take(0, closing=True)) == [0, 1]
    assert buffer.take(1) is None
    assert indices(buffer.take(1, closing=True)) == [2]
    assert buffer.take(2, closing=True) is None


@pytest.mark.parametrize(
    ("outstanding", "groups"), [(0, 20), (16, 19), (17, 19), (304, 1), (320, 0), (999, 0)]
)
def test_generators_get_their_slots_full_and_a_step_behind(outstanding: int, groups: int) -> None:
    buffer = buffer_of(Pipeline(k=8), groups=4)
    assert buffer.appetite(outstanding, slots=256, completions=16) == groups


def test_finished_groups_count_as_the_step_that_is_kept_ready() -> None:
    buffer = buffer_of(Pipeline(k=8), groups=4)
    admit(buffer, range(10), 0)
    finish(buffer, 0, *range(6))
    assert buffer.appetite(64, slots=256, completions=16) == 14  # 20 − 4 pending − 2 finished


def test_faults_of_the_program_are_loud() -> None:
    buffer = buffer_of(Pipeline(k=0))
    admit(buffer, range(2), 0)
    with pytest.raises(ValueError, match="admitted already"):
        buffer.admit(0, 0)
    with pytest.raises(StalenessError, match="no room"):
        buffer.admit(2, 0)
    with pytest.raises(StalenessError, match="another admission version"):
        buffer.finish(make_group(0, 1))
    with pytest.raises(KeyError):
        buffer.finish(make_group(7, 0))
    with pytest.raises(ValueError, match="at least one group"):
        Buffer(make_regime(Synchronous(), 1), 0)


# Random schedules


class Schedule:
    """Plays moves on a buffer and holds it to its promises after each."""

    def __init__(self, regime: RegimeConfig, groups: int, last_version: int | None) -> None:
        self.buffer = buffer_of(regime, groups)
        self.version = 0
        self.last_version = last_version
        self.admitted: dict[int, int] = {}  # index → version
        self.trained: dict[int, int] = {}  # index → version of the step
        self.dropped: set[int] = set()

    def play(self, kind: int, choice: int) -> None:
        match kind:
            case 0 | 1:
                self.admit(1 + choice % 5)
            case 2 | 3 | 4:
                self.finish(choice)
            case 5 | 6:
                self.step()
            case 7:
                self.drop(choice)
            case 8:
                self.kill_and_restore()
            case _:
                self.admit(99)
        self.check()

    def admit(self, most: int) -> None:
        room = self.buffer.room(self.version, self.last_version)
        for _ in range(min(most, room)):
            index = len(self.admitted)
            self.buffer.admit(index, self.version)
            self.admitted[index] = self.version

    def finish(self, choice: int) -> None:
        if pending := self.buffer.pending:
            index = pending[choice % len(pending)]
            self.buffer.finish(make_group(index, self.admitted[index]))

    def drop(self, choice: int) -> None:
        """A group without variance, under dynamic sampling."""
        if finished := self.buffer.finished:
            index = finished[choice % len(finished)].index
            self.buffer.drop(index)
            self.dropped.add(index)

    def step(self, *, closing: bool = False) -> bool:
        if self.version == self.last_version:
            return False
        groups = self.buffer.take(self.version, closing=closing)
        if not groups:
            return False
        assert closing or len(groups) == self.buffer.groups
        for group in groups:
            assert group.index not in self.trained
            assert self.version - group.admitted_version <= self.buffer.regime.k
            self.trained[group.index] = self.version
        self.version += 1
        return True

    def kill_and_restore(self) -> None:
        """Finished groups are kept, pending ones begun again under their numbers."""
        old, self.buffer = self.buffer, Buffer(self.buffer.regime, self.buffer.groups)
        for group in old.finished:
            self.buffer.restore(group)
        for index in old.pending:
            self.buffer.admit(index, self.version)
            self.admitted[index] = self.version

    def check(self) -> None:
        """(★), and that no untrained group is past its deadline."""
        buffer, k, groups = self.buffer, self.buffer.regime.k, self.buffer.groups
        untrained = [*buffer.pending, *(g.index for g in buffer.finished)]
        assert sorted([*untrained, *self.trained, *self.dropped]) == sorted(self.admitted)
        deadlines = [self.admitted[i] + k - self.version for i in untrained]
        assert all(left >= 0 for left in deadlines)
        for m in range(k + 1):
            assert sum(left <= m for left in deadlines) <= (m + 1) * groups

    def drain(self) -> None:
        """No deadlock: with every group finished, steps go on until too few are left."""
        while self.buffer.untrained >= self.buffer.groups and self.version != self.last_version:
            while self.buffer.pending:
                self.finish(0)
            assert self.step()
            self.check()
        while self.buffer.pending:
            self.finish(0)
        while self.buffer.untrained and self.version != self.last_version:
            assert self.step(closing=True)


REGIMES: st.SearchStrategy[RegimeConfig] = st.one_of(
    st.builds(Pipeline, k=st.integers(0, 9)),
    st.builds(PpoOffPolicy, k=st.integers(1, 9)),
    st.just(Synchronous()),
)
MOVES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=150)


@settings(max_examples=1500, deadline=None)
@given(
    regime=REGIMES,
    groups=st.integers(1, 5),
    last_version=st.none() | st.integers(1, 30),
    moves=MOVES,
)
def test_any_schedule_keeps_the_bound_and_never_locks(
    regime: RegimeConfig, groups: int, last_version: int | None, moves: list[tuple[int, int]]
) -> None:
    schedule = Schedule(regime, groups, last_version)
    for kind, choice in moves:
        schedule.play(kind, choice)
    schedule.drain()
    k = schedule.buffer.regime.k
    for index, version in schedule.trained.items():  # no starvation: k steps after admission
        assert schedule.admitted[index] <= version <= schedule.admitted[index] + k
    if last_version is None or schedule.version < last_version:
        assert not schedule.buffer.untrained
