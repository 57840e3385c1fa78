"""Chained arithmetic with labelled steps: the task of the embedded default.

    prompt   3a+8b-4c*7=
    trace    <think>a+8=1b-4=7c*7=9</think><answer>9</answer>

Digits, + − × modulo 10; the label of a step makes "find the next operand" a look-up that two layers
can learn. A chain of n operations has 3n + 2 prompt tokens and 5n + 6 completion tokens (end of
text included).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from scalerl.errors import InputError
from scalerl.messages import Prompt

TASK = "chain"
OPERATORS = "+-*"
LABELS = "abcdefghijkl"

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """One problem: a first digit, then operations applied from left to right."""

    first: int
    steps: tuple[tuple[str, int], ...]  # (operator, operand)

    @property
    def text(self) -> str:
        labelled = zip(LABELS, self.steps, strict=False)
        return f"{self.first}" + "".join(f"{a}{op}{x}" for a, (op, x) in labelled) + "="

    @property
    def answer(self) -> str:
        value = self.first
        for operator, operand in self.steps:
            value = apply(operator, value, operand)
        return str(value)


def apply(operator: str, left: int, right: int) -> int:
    """left ∘ right modulo 10."""
    match operator:
        case "+":
            return (left + right) % 10
        case "-":
            return (left - right) % 10
        case "*":
            return (left * right) % 10
        case _:
            raise ValueError(f"unknown operator {operator!r}")


def parse_chain(text: str) -> Chain:
    """The chain that a prompt text states. Raises InputError where it states none."""
    body = text[1:-1]
    steps = tuple((body[i + 1], body[i + 2]) for i in range(0, len(body) - 2, 3))
    if not (
        len(text) >= 5
        and len(body) % 3 == 0
        and text[-1] == "="
        and body[::3] == LABELS[: len(steps)]
        and all(op in OPERATORS for op, _ in steps)
        and all(digit in "0123456789" for digit in (text[0], *(x for _, x in steps)))
    ):
        raise InputError(f"{text!r} is not a chain such as '3a+8b-4='")
    return Chain(first=int(text[0]), steps=tuple((op, int(x)) for op, x in steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Teacher:
    """Someone whose mistakes are systematic: each of the 300 table entries has one fixed wrong
    digit, and is worked out right with a probability of its own.

    With random mistakes a model fitted to the traces already answers right when decoded greedily,
    and RL would only sharpen it; here the likeliest digit is wrong for many entries.
    """

    wrong: dict[tuple[str, int, int], int]
    reliability: dict[tuple[str, int, int], float]

    @classmethod
    def make(cls, seed: int, *, low: float = 0.2, high: float = 1.0) -> Teacher:
        """Reliabilities are drawn uniformly from [low, high]."""
        rng = _rng(seed, "teacher")
        wrong, reliability = {}, {}
        for operator in OPERATORS:
            for left in range(10):
                for right in range(10):
                    entry = operator, left, right
                    shift = rng.randrange(1, 10)
                    wrong[entry] = (apply(operator, left, right) + shift) % 10
                    reliability[entry] = rng.uniform(low, high)
        return cls(wrong=wrong, reliability=reliability)

    def trace(self, chain: Chain, rng: random.Random) -> str:
        """A worked solution. A mistake is carried on, and the answer is the last value reached."""
        value, lines = chain.first, []
        for label, (operator, operand) in zip(LABELS, chain.steps, strict=False):
            entry = operator, value, operand
            right = rng.random() < self.reliability[entry]
            value = apply(*entry) if right else self.wrong[entry]
            lines.append(f"{label}{operator}{operand}={value}")
        return f"<think>{''.join(lines)}</think><answer>{value}</answer>"


def make_chain_prompts(
    *,
    train: int,
    heldout: int,
    seed: int,
    encode: Encode,
    operations: tuple[int, int] = (1, 6),
) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out prompts, all different, numbers of operations uniform in the range.

    The held-out ones are drawn first: they do not depend on how many training prompts there are.

    A length with few different chains (one operation: 300) runs out; further draws are then of the
    other lengths.

    Args:
        operations: fewest and most operations of a chain, both included.
        encode: text to token ids, of the tokenizer that the generator uses.

    Raises:
        InputError: a range without chains, or fewer different chains than asked for.
    """
    low, high = operations
    if not 1 <= low <= high <= len(LABELS):
        raise InputError(f"operations {low} to {high}: need 1 ≤ fewest ≤ most ≤ {len(LABELS)}")
    possible = sum(10 * (3 * 10) ** n for n in range(low, high + 1))
    if train + heldout > possible:
        raise InputError(
            f"{train} + {heldout} prompts asked for, {possible} different chains exist"
        )
    rng = _rng(seed, "prompts")
    chains: dict[str, Chain] = {}
    while len(chains) < train + heldout:
        chain = random_chain(rng, operations)
        chains.setdefault(chain.text, chain)
    prompts = [chain_prompt(chain, encode) for chain in chains.values()]
    training, validation = prompts[heldout:], prompts[:heldout]
    check_disjoint(training, validation)
    return training, validation


def check_disjoint(training: Iterable[Prompt], heldout: Iterable[Prompt]) -> None:
    """Raise InputError where a held-out prompt is among the training prompts."""
    ids = {prompt.id for prompt in training}
    common = [prompt.text for prompt in heldout if prompt.id in ids]
    if common:
        raise InputError(
            f"{len(common)} held-out prompts are also training prompts, the first {common[0]!r}"
        )


def supervised_pairs(
    *, count: int, seed: int, teacher: Teacher, exclude: Iterable[Prompt], operations=(1, 6)
) -> list[tuple[str, str]]:
    """Prompts with the teacher's traces, none of them of an excluded prompt (the held-out ones).

    Prompts repeat where a length has few chains; each occurrence is worked out afresh.
    """
    excluded = {prompt.text for prompt in exclude}
    rng = _rng(seed, "traces")
    pairs: list[tuple[str, str]] = []
    while len(pairs) < count:
        chain = random_chain(rng, operations)
        if chain.text not in excluded:
            pairs.append((chain.text, teacher.trace(chain, rng)))
    return pairs


def random_chain(rng: random.Random, operations: tuple[int, int]) -> Chain:
    """A chain with a uniformly drawn number of operations, operators and digits."""
    steps = tuple(
        (rng.choice(OPERATORS), rng.randrange(10)) for _ in range(rng.randint(*operations))
    )
    return Chain(first=rng.randrange(10), steps=steps)


def chain_prompt(chain: Chain, encode: Encode) -> Prompt:
    """The message for a chain; its id is a hash of the text."""
    return Prompt(
        id=blake2b(chain.text.encode(), digest_size=16).hexdigest(),
        text=chain.text,
        token_ids=tuple(encode(chain.text)),
        answer=chain.answer,
        task=TASK,
    )


def _rng(seed: int, purpose: str) -> random.Random:
    digest = blake2b(f"{seed}\0{purpose}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))
