"""Which groups may start, which may be trained, and why that keeps every token fresh enough.

Versions count optimiser steps: the step taken at version v trains with the weights of version v and
makes version v+1. A group admitted at version s has no token older than s, so it may be trained at
versions s … s+k; s+k is its *deadline*. P groups leave at each step.

The bound as arithmetic. At version v, for every m ≥ 0:

    (untrained groups with deadline ≤ v+m)  ≤  (m+1)·P                                        (★)

(★) says that training P groups a step, earliest deadline first, meets every deadline. It holds at
the start (nothing is untrained), and

- *admission* keeps it: a new group's deadline is v+k, so only the line m = k can break, and that
  one says: all untrained groups number at most (k+1)·P. That is the capacity;
- *a step* keeps it by choice: the P finished groups with the earliest deadlines are taken, which
  may skip unfinished older ones, but only if (★) holds for version v+1 afterwards. Otherwise the
  step waits for the oldest work, and nothing is ever thrown away for being stale.

So a group admitted at version s is trained by the step at version s+k at the latest, however slow
it is: k steps after its admission at most, no group starves, and none is regenerated.

k = 0 makes capacity P and lets no step skip anything: synchronous training. The alternating regime
(`ppo_off_policy`) admits k·P groups at one version, waits for all of them, trains them in k steps
while the generators keep the phase's weights, and admits again when none is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from scalerl.config.axes import Pipeline, PpoOffPolicy, RegimeConfig, Synchronous
from scalerl.messages import Group


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The three regimes as two numbers and a switch."""

    k: int  # greatest staleness of a trained token, in versions
    capacity: int  # greatest number of untrained groups
    alternating: bool = False  # admit only when nothing is untrained, train only what is whole


def make_regime(config: RegimeConfig, groups: int) -> Regime:
    """The only place where a regime is chosen. `groups`: what a step takes, P."""
    match config:
        case Pipeline(k=k):
            return Regime(k=k, capacity=(k + 1) * groups)
        case PpoOffPolicy(k=k):
            return Regime(k=k - 1, capacity=k * groups, alternating=True)
        case Synchronous():
            return Regime(k=0, capacity=groups)


class StalenessError(AssertionError):
    """The hard bound was about to be broken: a fault of this program, never of the data."""


class Buffer:
    """Untrained groups: pending (admitted, not finished) and finished. No clock, model or I/O."""

    def __init__(self, regime: Regime, groups: int) -> None:
        if groups < 1:
            raise ValueError(f"a step must take at least one group, not {groups}")
        self.regime = regime
        self.groups = groups
        self._pending: dict[int, int] = {}  # group index → version at admission
        self._finished: dict[int, Group] = {}

    @property
    def pending(self) -> tuple[int, ...]:
        """Indices of groups admitted and not finished, oldest first."""
        return tuple(self._pending)

    @property
    def finished(self) -> tuple[Group, ...]:
        return tuple(self._finished.values())

    @property
    def untrained(self) -> int:
        return len(self._pending) + len(self._finished)

    def room(self, version: int, last_version: int | None = None) -> int:
        """How many groups may be admitted now. `last_version`: the run ends there, so no more is
        admitted than the steps that are left can train."""
        if self.regime.alternating and any(s != version for s in self._admitted_versions()):
            return 0  # the steps of a phase have begun
        capacity = self.regime.capacity
        if last_version is not None:
            capacity = min(capacity, (last_version - version) * self.groups)
        return max(0, capacity - self.untrained)

    def appetite(self, outstanding: int, slots: int, completions: int) -> int:
        """Groups worth starting now: fill every slot and keep a step's worth beside them, queued
        or finished beyond what the coming step takes. More would not be trained sooner, only begun
        with older weights: where the trainer is the slower side, staleness would grow to k.

        Args:
            outstanding: completions sent to generators and not come back.
            slots: completions that all generators together sample at a time.
            completions: of a group, G.
        """
        if self.regime.alternating or self.regime.k == 0:
            return self.regime.capacity
        surplus = max(0, len(self._finished) - self.groups)
        wanted = slots + (self.groups - surplus) * completions - outstanding
        return max(0, -(-wanted // completions))

    def admit(self, index: int, version: int) -> None:
        if index in self._pending or index in self._finished:
            raise ValueError(f"group {index} is admitted already")
        if not self.room(version):
            raise StalenessError(f"no room for group {index} at version {version}")
        self._pending[index] = version

    def finish(self, group: Group) -> None:
        """A pending group is complete and scored; it waits to be trained."""
        if self._pending.pop(group.index) != group.admitted_version:
            raise StalenessError(f"group {group.index} came back with another admission version")
        self._finished[group.index] = group

    def restore(self, group: Group) -> None:
        """A group that was finished when a checkpoint was made waits again."""
        self._finished[group.index] = group

    def restore_pending(self, index: int, version: int) -> None:
        """A group goes on whose completions were saved half-way."""
        self._pending[index] = version

    def drop(self, index: int) -> None:
        """A group leaves untrained: given up, or of no use under dynamic sampling."""
        if self._pending.pop(index, None) is None:
            del self._finished[index]

    def take(self, version: int, *, closing: bool = False) -> list[Group] | None:
        """The groups of the step at `version`, earliest deadline first; None: wait for more.

        Args:
            closing: no further group will ever be admitted, so the last step may be smaller.

        Raises:
            StalenessError: a finished group is past its deadline.
        """
        size = min(self.groups, self.untrained) if closing else self.groups
        if not size or len(self._finished) < size:
            return None
        if self.regime.alternating and self._pending:
            return None
        by_age = sorted(self._finished.values(), key=lambda g: (g.admitted_version, g.index))
        chosen = by_age[:size]
        for group in chosen:
            if version - group.admitted_version > self.regime.k:
                raise StalenessError(
                    f"group {group.index}, admitted at version {group.admitted_version}, was to be "
                    f"trained at version {version} with k = {self.regime.k}"
                )
        rest = [*self._pending.values(), *(g.admitted_version for g in by_age[size:])]
        if not self._meets_deadlines(rest, version + 1):
            return None
        for group in chosen:
            del self._finished[group.index]
        return chosen

    def _admitted_versions(self) -> list[int]:
        return [*self._pending.values(), *(g.admitted_version for g in self._finished.values())]

    def _meets_deadlines(self, admitted: Iterable[int], version: int) -> bool:
        """(★) for `version`, over groups given by their versions at admission."""
        by_deadline = sorted(s + self.regime.k for s in admitted)
        return all(
            deadline >= version and count <= (deadline - version + 1) * self.groups
            for count, deadline in enumerate(by_deadline, start=1)
        )
