r"""What kind of answer it is, and when two of a kind are equal.

    formula      the same value
    values       `1, 2`, `\{2, 1\}`, `1 or 2`, `\pm 1`, a union: the same members in any order
    sequence     `(1, 2)`, `[2, 5)`, `\langle 1, 2\rangle`: same brackets, members in order
    matrix       same shape, the same entries
    relation     `x = 5`, `x > 2`, `2x + y = 3`: the same statement up to a constant factor

Members are compared by the same rules down to formulas, which the caller compares. The rules are
written out in docs/rewards.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scalerl.rewards.tokens import is_letter, is_word

Tokens = tuple[str, ...]
Equal = Callable[[Tokens, Tokens], bool]  # of two formulas
SameStatement = Callable[[Tokens, Tokens, bool], bool]  # differences, whether the sign matters

MOST_MEMBERS = 40
DEEPEST = 6

_OPEN = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", "{": "}"}
_CLOSE = frozenset(_OPEN.values())
_RELATIONS = frozenset(["=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\approx", r"\equiv"])
_SEPARATORS = frozenset([",", ";", '"and', '"or'])
_FLIPPED = {">": "<", r"\ge": r"\le"}
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "array"])
_REALS: Tokens = ("(", "-", r"\infty", ",", r"\infty", ")")


@dataclass(frozen=True, slots=True)
class Formula:
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Values:
    members: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Ordered:
    brackets: str
    members: tuple[Answer, ...]
    variable: str = ""  # of the inequality that the interval was written as


@dataclass(frozen=True, slots=True)
class Matrix:
    kind: str
    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True)
class Relation:
    sign: str
    left: Tokens
    right: Tokens


Answer = Formula | Values | Ordered | Matrix | Relation


class Unstructured(Exception):
    """No kind of answer known here: it equals only what is written the same."""


def read(tokens: Tokens, depth: int = 0) -> Answer:
    """The kind of an answer. Raises Unstructured."""
    if depth > DEEPEST or not tokens:
        raise Unstructured
    written = " ".join(tokens)
    if written == '"R':
        tokens = _REALS
    if written in (r"\emptyset", r"\{ \}"):
        return Values(())
    tokens = _without_membership(tokens)
    if r"\ldots" in tokens:  # a pattern is not taken apart
        raise Unstructured
    if parts := _split(tokens, _SEPARATORS):
        members = [read(part, depth + 1) for part in parts]
        if '"and' in tokens and any(isinstance(m, Ordered) and m.variable for m in members):
            raise Unstructured  # x > 1 and x < 5 says less than each; x < 1 or x > 5 is a union
        return _values(members)
    if parts := _split(tokens, frozenset([r"\cup"])):
        return _values([read(part, depth + 1) for part in parts])
    if relation := _relation(tokens, depth):
        return relation
    if tokens[0] == r"\{" and _closing(tokens) == len(tokens) - 1:
        inside = tokens[1:-1]
        if "|" in inside or ":" in inside:  # a set given by a condition
            raise Unstructured
        members = _split(inside, frozenset([",", ";"])) or [inside]
        return _values([read(part, depth + 1) for part in members])
    if sequence := _sequence(tokens, depth):
        return sequence
    if tokens[0].startswith(r"\begin:"):
        return _matrix(tokens, depth)
    if r"\pm" in tokens or r"\mp" in tokens:
        return _values([Formula(_signed(tokens, sign)) for sign in ("+", "-")])
    return Formula(tokens[1:] if tokens[0] == "+" and len(tokens) > 1 else tokens)


def _without_membership(tokens: Tokens) -> Tokens:
    """`x \\in A` as A."""
    named = len(tokens) > 2 and is_letter(tokens[0]) and tokens[1] == r"\in"
    return tokens[2:] if named else tokens


def equal(gold: Answer, answer: Answer, same: Equal, statement: SameStatement) -> bool:
    """Whether the two answers are equal, formulas by `same`, equations by `statement`."""

    def members(a: Sequence[Answer], b: Sequence[Answer]) -> bool:
        return len(a) == len(b) and all(
            equal(x, y, same, statement) for x, y in zip(a, b, strict=True)
        )

    gold, answer = _bare(gold, answer)
    match gold, answer:
        case Formula(a), Formula(b):
            return same(a, b)
        case Values(a), Values(b):
            return _same_members(a, b, lambda x, y: equal(x, y, same, statement))
        case Values(a), other:  # several ways to write one value
            return bool(a) and all(equal(x, other, same, statement) for x in a)
        case other, Values(b):
            return bool(b) and all(equal(other, x, same, statement) for x in b)
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
        case Relation("=", left, _) if _is_name(left):
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
            return Values(tuple(_without_name(member) for member in members))
        case _:
            return answer


def _is_name(tokens: Tokens) -> bool:
    """`x`, `f(x)`, `f^{-1}(x)`, `\\text{area}`, `(x, y)`."""
    first, *rest = tokens
    if not rest:
        return is_letter(first) or is_word(first)
    if first == "(" and tokens[-1] == ")":  # (x, y) = …
        return all(is_letter(t) or t == "," for t in tokens[1:-1])
    call = len(tokens) >= 4 and tokens[-3] == "(" and is_letter(tokens[-2]) and tokens[-1] == ")"
    return call and is_letter(first)


def _same_members(
    a: Sequence[Answer], b: Sequence[Answer], same: Callable[[Answer, Answer], bool]
) -> bool:
    if max(len(a), len(b)) > MOST_MEMBERS:
        return False
    return all(any(same(x, y) for y in b) for x in a) and all(any(same(x, y) for x in a) for y in b)


def _values(members: Sequence[Answer]) -> Answer:
    """Members of members are members: {1, ±2} is {1, 2, −2}."""
    flat: list[Answer] = []
    for member in members:
        flat += member.members if isinstance(member, Values) else [member]
    return Values(tuple(flat))


def _split(tokens: Tokens, separators: frozenset[str]) -> list[Tokens]:
    """Parts between separators outside all brackets; empty where there is no separator."""
    parts: list[Tokens] = []
    start = 0
    for i, token in _outside(tokens):
        if token in separators:
            if i > start:
                parts.append(tokens[start:i])
            elif not (token.startswith('"') and i):  # ", and": one separator
                raise Unstructured
            start = i + 1
    if not parts:
        return []
    if start == len(tokens):
        raise Unstructured
    return [*parts, tokens[start:]]


def _outside(tokens: Tokens) -> Iterator[tuple[int, str]]:
    """Tokens outside all brackets, with their positions."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token in _OPEN or token.startswith(r"\begin:")) - (
            token in _CLOSE or token.startswith(r"\end:")
        )
        if depth == 0 and token not in _CLOSE:
            yield i, token


def _closing(tokens: Tokens) -> int:
    """Where the bracket that begins the tokens ends; ( and [ may close each other."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token in _OPEN) - (token in _CLOSE)
        if depth == 0:
            return i
    return -1


def _sequence(tokens: Tokens, depth: int) -> Ordered | None:
    if tokens[0] not in ("(", "[", r"\langle") or _closing(tokens) != len(tokens) - 1:
        return None
    parts = _split(tokens[1:-1], frozenset([",", ";"]))
    if not parts:
        return None
    brackets = (tokens[0] + tokens[-1]).replace(r"\langle", "(").replace(r"\rangle", ")")
    return Ordered(brackets, tuple(read(part, depth + 1) for part in parts))


def _matrix(tokens: Tokens, depth: int) -> Matrix:
    kind = tokens[0].removeprefix(r"\begin:")
    if tokens[-1] != rf"\end:{kind}" or kind not in _MATRICES | {"vmatrix"}:
        raise Unstructured
    body = tokens[1:-1]
    if kind == "array" and body and body[0] == "{":
        body = body[body.index("}") + 1 :]
    if body[-1:] == ("\\\\",):
        body = body[:-1]
    rows = _split(body, frozenset(["\\\\"]))
    cells = [_split(row, frozenset(["&"])) or [row] for row in rows or [body]]
    return Matrix(
        "matrix" if kind in _MATRICES else kind,
        tuple(tuple(read(cell, depth + 1) for cell in row) for row in cells),
    )


def _relation(tokens: Tokens, depth: int) -> Answer | None:
    sides = _split(tokens, _RELATIONS)
    if not sides:
        return None
    signs = [token for _, token in _outside(tokens) if token in _RELATIONS]
    if interval := _interval(sides, signs, depth):
        return interval
    if len(sides) != 2:
        if set(signs) == {"="} and _is_name(sides[0]):  # x = 2 + 3 = 5: every part is the value
            return Values(tuple(Relation("=", sides[0], side) for side in sides[1:]))
        raise Unstructured
    left, right, sign = sides[0], sides[1], signs[0]
    if sign in _FLIPPED:
        left, right, sign = right, left, _FLIPPED[sign]
    if sign == "=" and _is_name(right) and not _is_name(left):
        left, right = right, left
    return Relation(sign, left, right)


def _interval(sides: list[Tokens], signs: list[str], depth: int) -> Ordered | None:
    """x > 5 is (5, ∞), and 1 < x ≤ 2 is (1, 2]."""
    rising = all(sign in ("<", r"\le") for sign in signs)
    falling = all(sign in (">", r"\ge") for sign in signs)
    if not rising and not falling:
        return None
    if falling:
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    open_ = lambda sign: sign == "<"  # noqa: E731
    low: Tokens = ("-", r"\infty")
    high: Tokens = (r"\infty",)
    match sides:
        case [a, (name,), b] if is_letter(name):
            left, right, low, high = open_(signs[0]), open_(signs[1]), a, b
        case [(name,), b] if is_letter(name):
            left, right, high = True, open_(signs[0]), b
        case [a, (name,)] if is_letter(name):
            left, right, low = open_(signs[0]), True, a
        case _:
            return None
    if any(is_letter(t) and t == name for t in (*low, *high)):
        return None
    brackets = ("(" if left else "[") + (")" if right else "]")
    return Ordered(brackets, (read(low, depth + 1), read(high, depth + 1)), name)


def _signed(tokens: Tokens, sign: str) -> Tokens:
    other = "-" if sign == "+" else "+"
    return tuple({r"\pm": sign, r"\mp": other}.get(token, token) for token in tokens)
