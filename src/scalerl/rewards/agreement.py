"""When two answers of a kind are equal: formulas as the caller says, members one by one.

    values       the same members in any order; a set among members is one member
    sequence     the same brackets, members in order
    matrix       the same shape and kind, the same entries
    relation     the same statement up to a constant factor, a positive one for inequalities

The rules are written out in docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from scalerl.rewards.inequality import without_points
from scalerl.rewards.structure import (
    Answer,
    Formula,
    Matrix,
    Ordered,
    Relation,
    Tokens,
    Values,
    interval,
    is_name,
    read,
)
from scalerl.rewards.tokens import is_letter

Equal = Callable[[Tokens, Tokens], bool]  # of two formulas
SameStatement = Callable[[Tokens, Tokens, bool], bool]  # differences, whether the sign matters

MOST_MEMBERS = 40


def equal(gold: Answer, answer: Answer, same: Equal, statement: SameStatement) -> bool:
    """Whether the two answers are equal, formulas by `same`, equations by `statement`."""

    def member(a: Answer, b: Answer) -> bool:  # {1} among members is not 1
        return _is_set(a) == _is_set(b) and equal(a, b, same, statement)

    def members(a: Sequence[Answer], b: Sequence[Answer]) -> bool:
        return len(a) == len(b) and all(member(x, y) for x, y in zip(a, b, strict=True))

    gold, answer = _bare(gold, answer)
    gold, answer = _punctured(gold, answer), _punctured(answer, gold)
    match gold, answer:
        case Formula(a), Formula(b):
            return same(a, b)
        case Values(a, how), Values(b, other):
            if {how, other} == {"set", "union"} and any(isinstance(x, Ordered) for x in (*a, *b)):
                return False  # points against intervals
            return _same_members(a, b, member)
        case Values(a), other:  # several ways to write one value
            return bool(a) and all(member(x, other) for x in a)
        case other, Values(b):
            return bool(b) and all(member(other, x) for x in b)
        case Ordered(brackets, a, name), Ordered(others, b, other):
            named_alike = name == other or not (name and other)
            return brackets == others and named_alike and members(a, b)
        case Matrix(kind, a), Matrix(other, b):
            return (
                kind == other
                and len(a) == len(b)
                and all(members(x, y) for x, y in zip(a, b, strict=True))
            )
        case Relation(sign, a, b), Relation(other, c, d):
            if sign != other:
                return False
            if same(a, c) and same(b, d):
                return True
            return statement(_difference(a, b), _difference(c, d), sign != "=")
        case _:
            return False


def _difference(left: Tokens, right: Tokens) -> Tokens:
    return ("(", *left, ")", "-", "(", *right, ")")


def _bare(gold: Answer, answer: Answer) -> tuple[Answer, Answer]:
    """Without a name that only one of the two states: `x = 5` answers `5`, `x=1, x=2` answers
    `1, 2`. Two names stay and must agree."""
    if _names(gold) and not _names(answer) and not isinstance(answer, Relation):
        return _without_name(gold), answer
    if _names(answer) and not _names(gold) and not isinstance(gold, Relation):
        return gold, _without_name(answer)
    return gold, answer


def _names(answer: Answer) -> set[str]:
    """The variable that `x = …` or all of `x = …, x = …` define; empty where there is none."""
    match answer:
        case Relation("=", left, _) if is_name(left):
            return {" ".join(left)}
        case Values(members) if members:
            names = [_names(member) for member in members]
            return names[0] if all(n == names[0] for n in names) else set()
        case _:
            return set()


def _without_name(answer: Answer) -> Answer:
    match answer:
        case Relation("=", _, right):
            return read(right)
        case Values(members):
            return replace(answer, members=tuple(_without_name(member) for member in members))
        case _:
            return answer


def _same_members(
    a: Sequence[Answer], b: Sequence[Answer], same: Callable[[Answer, Answer], bool]
) -> bool:
    if max(len(a), len(b)) > MOST_MEMBERS:
        return False
    return all(any(same(x, y) for y in b) for x in a) and all(any(same(x, y) for x in a) for y in b)


def _is_set(answer: Answer) -> bool:
    return isinstance(answer, Values) and answer.written == "set"


def _punctured(answer: Answer, other: Answer) -> Answer:
    """x ≠ 0 as the union that it stands for, against another answer made of intervals."""
    match answer:
        case Relation(r"\ne", (name,), point) if is_letter(name) and isinstance(other, Values):
            found = without_points([point], name)
            return Values(tuple(interval(span) for span in found)) if found else answer
        case _:
            return answer
