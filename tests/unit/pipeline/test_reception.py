"""What a generator says, one lie a row: each is refused with its own words, and only the lies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pipeline_fakes import FakeFleet, World, fake_score, make_completion, make_prompt

from scalerl.config.axes import Pipeline
from scalerl.messages import Completion, Counters, Evaluate, Evaluated, Progress, Request
from scalerl.pipeline.fleet import Word
from scalerl.pipeline.reception import (
    PendingGroup,
    fault_in_evaluation,
    fault_in_progress,
    news,
)

# Groups 0 … 4 have been asked for, two samples each. Group 3 was admitted at version 2 and awaits
# sample 1; the others are over. The newest weights are of version 4, the vocabulary has 32 entries.
ISSUED, SIZE, ADMITTED, NEWEST, VOCABULARY = 5, 2, 2, 4, 32
BEFORE = Counters(tokens_generated=10, tokens_in_flight=4)
HONEST = make_completion(3, 1, tokens=3, segments=((0, 2), (2, 4)))


def pending() -> dict[int, PendingGroup]:
    group = PendingGroup(3, make_prompt("p"), ADMITTED, 0, SIZE)
    delivered = make_completion(3, 0)
    group.deliver(delivered, fake_score(group.prompt, delivered))
    return {3: group}


def progress(*completions: Completion, version: int = NEWEST) -> Progress:
    """With counters that agree with what is new in it, so that nothing but the lie is false."""
    new = sum(len(c.token_ids) for c in news(completions, pending()))
    counters = Counters(tokens_generated=10 + new + 1, tokens_in_flight=5)
    return Progress(completions=completions, version=version, counters=counters)


def fault(message: Progress) -> str | None:
    return fault_in_progress(
        message,
        BEFORE,
        pending(),
        issued=ISSUED,
        newest=NEWEST,
        size=SIZE,
        vocabulary=VOCABULARY,
    )


TRUE = {
    "one awaited": progress(HONEST),
    "none, a sign of life": progress(),
    "older weights in use": progress(version=0),
    "one that came before": progress(make_completion(3, 0, segments=((0, 2),))),
    "one of a group that is over": progress(make_completion(1, 1)),
    "the same twice": progress(HONEST, HONEST),
    "the last entry of the vocabulary": progress(
        msgspec.structs.replace(HONEST, token_ids=(0, VOCABULARY - 1, 5))
    ),
    "a forced token": progress(msgspec.structs.replace(HONEST, mask=(1, 0, 1))),
}


@pytest.mark.parametrize("message", TRUE.values(), ids=TRUE)
def test_what_can_be_true_is_believed(message: Progress) -> None:
    assert fault(message) is None


OF_COMPLETIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no token": (
        {"token_ids": (), "logp_gen": (), "mask": (), "segments": ()},
        "0 tokens, 0 log-probs and 0 mask entries",
    ),
    "a log-prob short": (
        {"logp_gen": (-1.0, -1.0)},
        "3 tokens, 2 log-probs and 3 mask entries",
    ),
    "a mask entry more": ({"mask": (1, 1, 1, 1)}, "3 tokens, 3 log-probs and 4 mask entries"),
    "a token beyond the vocabulary": (
        {"token_ids": (5, VOCABULARY, 5)},
        "token 32, which is not in the vocabulary",
    ),
    "a negative token": ({"token_ids": (5, -1, 5)}, "token -1, which is not in the vocabulary"),
    "a mask of 2": ({"mask": (1, 2, 1)}, "a mask that is not 0 or 1"),
    "no segment": ({"segments": ()}, "segments () of 3 tokens"),
    "a segment that starts late": (
        {"segments": ((1, 4),)},
        "segments ((1, 4),) of 3 tokens",
    ),
    "a segment beyond the end": (
        {"segments": ((0, 4), (3, 4))},
        "segments ((0, 4), (3, 4)) of 3 tokens",
    ),
    "segments out of order": (
        {"segments": ((0, 4), (2, 4), (1, 4))},
        "segments ((0, 4), (2, 4), (1, 4)) of 3 tokens",
    ),
    "two segments at one place": (
        {"segments": ((0, 4), (1, 4), (1, 4))},
        "segments ((0, 4), (1, 4), (1, 4)) of 3 tokens",
    ),
    "weights of the future": (
        {"segments": ((0, 4), (1, 5))},
        "tokens of versions [4, 5], which cannot be older than {oldest} or newer than 4",
    ),
    "weights from before admission": (
        {"segments": ((0, 1), (1, 4))},
        "tokens of versions [1, 4], which cannot be older than {oldest} or newer than 4",
    ),
    "weights that went back": (
        {"segments": ((0, 4), (1, 3))},
        "tokens of versions [4, 3], which cannot be older than {oldest} or newer than 4",
    ),
}


@pytest.mark.parametrize(("lie", "words"), OF_COMPLETIONS.values(), ids=OF_COMPLETIONS)
def test_a_completion_that_cannot_be_is_refused(lie: dict[str, Any], words: str) -> None:
    told = fault(progress(msgspec.structs.replace(HONEST, **lie)))
    assert told == f"sample 1 of group 3: {words.format(oldest=ADMITTED)}"


@pytest.mark.parametrize(("lie", "words"), OF_COMPLETIONS.values(), ids=OF_COMPLETIONS)
def test_an_evaluation_with_one_is_refused_too(lie: dict[str, Any], words: str) -> None:
    """There, all tokens are of one version."""
    honest = msgspec.structs.replace(HONEST, segments=((0, NEWEST),))
    told = judged(evaluated(make_completion(3, 0), msgspec.structs.replace(honest, **lie)))
    assert told == f"evaluation of step 7, completion 1 of 3: {words.format(oldest=NEWEST)}"


def replaced(**changes: Any) -> Progress:
    return progress(msgspec.structs.replace(HONEST, **changes))


def counted(generated: int, in_flight: int) -> Progress:
    counters = Counters(tokens_generated=generated, tokens_in_flight=in_flight)
    return msgspec.structs.replace(progress(HONEST), counters=counters)


OF_PROGRESS = {
    "a version of the future": (
        progress(HONEST, version=5),
        "weights version 5, and the newest is 4",
    ),
    "tokens that were never sampled": (
        counted(9, 0),
        f"counters that went back: {counted(9, 0).counters} after {BEFORE}",
    ),
    "fewer than none in flight": (
        counted(12, -1),
        f"counters that went back: {counted(12, -1).counters} after {BEFORE}",
    ),
    "a group to come": (replaced(group=5), "sample 1 of group 5, which nobody asked for"),
    "a negative group": (replaced(group=-1), "sample 1 of group -1, which nobody asked for"),
    "a sample too many": (replaced(sample=2), "sample 2 of group 3, which nobody asked for"),
    "a negative sample": (replaced(sample=-1), "sample -1 of group 3, which nobody asked for"),
    "a token too few": (counted(13, 5), "3 tokens in completions, but counters that speak of 2"),
    "a token too many": (counted(15, 5), "3 tokens in completions, but counters that speak of 4"),
    "one counted twice": (
        msgspec.structs.replace(progress(HONEST, HONEST), counters=counted(17, 5).counters),
        "3 tokens in completions, but counters that speak of 6",
    ),
}


@pytest.mark.parametrize(("message", "words"), OF_PROGRESS.values(), ids=OF_PROGRESS)
def test_a_progress_that_cannot_be_is_refused(message: Progress, words: str) -> None:
    assert fault(message) == words


def evaluated(*completions: Completion, step: int = 7, version: int = NEWEST) -> Evaluated:
    at = tuple(
        msgspec.structs.replace(c, segments=((0, NEWEST),)) if c.segments == ((0, 0),) else c
        for c in completions
    )
    return Evaluated(step=step, version=version, completions=at, seconds=0.0, counters=Counters())


ASKED = Evaluate(
    step=7,
    requests=tuple(Request(group=3, sample=s, prompt_ids=(1,), seed=s) for s in range(2)),
)
BOTH = make_completion(3, 0), make_completion(3, 1)


def judged(message: Evaluated, asked: Evaluate | None = ASKED) -> str | None:
    return fault_in_evaluation(message, asked, NEWEST, VOCABULARY)


def test_an_evaluation_in_any_order_is_believed() -> None:
    assert judged(evaluated(*BOTH)) is None
    assert judged(evaluated(*reversed(BOTH))) is None


OTHERS = "an evaluation of step 7 with other completions than asked for"
OF_EVALUATIONS = {
    "of another step": (
        evaluated(*BOTH, step=8),
        "an evaluation of step 8, which nobody asked for",
    ),
    "at another version": (evaluated(*BOTH, version=3), "an evaluation at version 3, not 4"),
    "with one missing": (evaluated(BOTH[0]), OTHERS),
    "with one twice": (evaluated(*BOTH, BOTH[1]), OTHERS),
    "with one in the place of another": (evaluated(BOTH[0], BOTH[0]), OTHERS),
    "of another prompt": (evaluated(BOTH[0], make_completion(2, 1)), OTHERS),
    "of older weights": (
        evaluated(BOTH[0], make_completion(3, 1, segments=((0, 3),))),
        "evaluation of step 7, completion 1 of 3: tokens of versions [3], which cannot be older "
        "than 4 or newer than 4",
    ),
}


@pytest.mark.parametrize(("message", "words"), OF_EVALUATIONS.values(), ids=OF_EVALUATIONS)
def test_an_evaluation_that_cannot_be_is_refused(message: Evaluated, words: str) -> None:
    assert judged(message) == words


def test_an_evaluation_that_nobody_asked_for_is_refused() -> None:
    told = judged(evaluated(*BOTH), asked=None)
    assert told == "an evaluation of step 7, which nobody asked for"


# The same in a run: the liar is replaced, and nothing of the lie is trained.


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"token_ids": (32, 5, 5)}, "token 32, which is not in the vocabulary"),
        ({"logp_gen": (-1.0,)}, "3 tokens, 1 log-probs and 3 mask entries"),
        ({"segments": ((0, 10**6),)}, "tokens of versions [1000000], which cannot be"),
        ({"sample": 99}, "which nobody asked for"),
    ],
    ids=["vocabulary", "log-probs", "version", "sample"],
)
def test_a_liar_with_honest_counters_is_replaced_and_not_believed(
    lie: dict[str, Any], words: str
) -> None:
    told: list[Completion] = []

    def mischief(fleet: FakeFleet) -> list[tuple[int, Word]]:
        rollouts = world.rollouts
        owed = [p for p in rollouts.pending.values() if p.generator == 0 and p.missing]
        if told or world.version < 3 or not owed:
            return []
        honest = make_completion(owed[0].index, owed[0].missing[0], segments=((0, world.version),))
        told.append(msgspec.structs.replace(honest, **lie))
        before = rollouts.counters[0]
        counters = msgspec.structs.replace(before, tokens_generated=before.tokens_generated + 3)
        return [(0, Progress(completions=tuple(told), version=world.version, counters=counters))]

    world = World(
        FakeFleet(2, mischief=mischief), regime=Pipeline(k=2), restarts=1, vocabulary=VOCABULARY
    )
    world.run()
    [warning] = world.warnings
    assert warning.startswith("generator 0 answered garbage: sample ")
    assert words in warning
    assert world.fleet.restarted == [0]
    trained = [s.completion for step in world.trained for g in step for s in g.completions]
    assert len(trained) == 40
    assert not set(trained) & set(told)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_an_evaluation_with_a_token_of_no_vocabulary_is_asked_for_again(token: int) -> None:
    """Its text is decoded with the trainer's tokenizer."""
    world = World(FakeFleet(1), regime=Pipeline(k=2), restarts=1, vocabulary=VOCABULARY)
    world.begin()
    world.step()
    world.rollouts.evaluate(1, [Request(group=9, sample=0, prompt_ids=(1,), seed=3)])
    honest = make_completion(9, 0, segments=((0, 1),))
    lie = msgspec.structs.replace(honest, token_ids=(5, token, 5))
    lies = [(0, msgspec.structs.replace(evaluated(lie), step=1, version=1))]
    world.fleet._mischief = lambda fleet: [lies.pop()] if lies else []
    [done] = world.rollouts.evaluations(wait=True)
    assert done.completions == (honest,)
    assert world.fleet.restarted == [0]
    assert f"token {token}, which is not in the vocabulary" in world.warnings[0]
