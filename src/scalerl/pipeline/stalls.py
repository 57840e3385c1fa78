"""A wait without progress: who is waited for, in words that a person can act on."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scalerl.errors import RunError
from scalerl.pipeline.reception import PendingGroup
from scalerl.pipeline.weights import WeightStore


def in_checks(pending: Mapping[int, PendingGroup]) -> int:
    """Completions awaiting a score, where no generator owes any; else 0."""
    if any(p.missing for p in pending.values()):
        return 0
    return sum(len(p.unscored) for p in pending.values())


def culprit(
    waited: str,
    *,
    starting: Collection[int],
    evaluating: bool,
    store: WeightStore,
    pending: Mapping[int, PendingGroup],
) -> tuple[int, str]:
    """The generator that is waited for, and the words to say so.

    Args:
        waited: how long, and for what.
        starting: generators that have not said a word yet.
        evaluating: whether an evaluation is under way, on generator 0.
        pending: groups that are not finished, by index.

    Raises:
        RunError: no generator is to blame.
    """
    if starting:
        return min(starting), f"generator {min(starting)} does not start"
    if evaluating:
        return 0, f"{waited}: generator 0 does not evaluate"
    if store.free_slot() is None and store.behind:
        return store.behind[0], f"{waited}: generator {store.behind[0]} does not"
    owed = [p for p in pending.values() if p.missing]
    oldest = min(owed, key=lambda p: p.index, default=None)
    if oldest is None and (checks := in_checks(pending)):
        raise RunError(f"{waited}: {checks} answers are with their checks, none ends")
    if oldest is None:
        raise RunError(f"{waited}, and nothing is under way")
    return oldest.generator, (
        f"{waited}; oldest unfinished: group {oldest.index} on generator {oldest.generator}, "
        f"prompt {oldest.prompt.text[:60]!r}"
    )
