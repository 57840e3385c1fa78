r"""What kind of answer it is.

    formula      everything that is none of these
    values       `1, 2`, `\{2, 1\}`, `1 or 2`, `\pm 1`, a union
    sequence     `(1, 2)`, `[2, 5)`, `\langle 1, 2\rangle`; intervals, however they are written
    matrix       `\begin{pmatrix} … \end{pmatrix}`
    relation     `x = 5`, `a > b`, `2x + y = 3`

Formulas stay tokens here. `agreement` says when two of a kind are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scalerl.rewards.inequality import FLIPPED, Span, spans, without_points
from scalerl.rewards.tokens import is_letter, is_number, is_word, words

Tokens = tuple[str, ...]

DEEPEST = 6

_OPEN = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", "{": "}"}
_CLOSE = frozenset(_OPEN.values())
_RELATIONS = frozenset(["=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\approx", r"\equiv"])
_SEPARATORS = frozenset([",", ";", '"and', '"or'])
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "array"])
_REALS: Tokens = ("(", "-", r"\infty", ",", r"\infty", ")")
_NAMES_OF_REALS = frozenset(['"R', '"all "real "numbers', '"all "reals', '"real "numbers'])
_CALLED = words("f g h p q A E F G H N P Q S T V")  # in front of a parenthesis: a function


@dataclass(frozen=True, slots=True)
class Formula:
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Values:
    members: tuple[Answer, ...]
    written: Literal["list", "set", "union"] = "list"


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
    if written in _NAMES_OF_REALS:
        tokens = _REALS
    if written in (r"\emptyset", r"\{ \}"):
        return Values((), "set")
    if r"\ldots" in tokens:  # a pattern is not taken apart
        raise Unstructured
    if parts := _split(tokens, _SEPARATORS):
        found = _values([read(part, depth + 1) for part in parts])
        if '"and' in tokens and any(isinstance(m, Ordered) and m.variable for m in found.members):
            raise Unstructured  # x > 1 and x < 5 says less than each; x < 1 or x > 5 is a union
        return found
    if tokens[2:] and is_letter(tokens[0]) and tokens[1] == r"\in":
        return _of_variable(tokens[0], read(tokens[2:], depth + 1))
    if parts := _split(tokens, frozenset([r"\cup"])):
        return _union([read(part, depth + 1) for part in parts])
    if tokens[0] == '"R' and tokens[2:] and tokens[1] in (r"\setminus", "-"):
        return _reals_without(read(tokens[2:], depth + 1))
    if tokens[2:] and is_letter(tokens[0]) and tokens[1] == "|" and tokens.count("|") == 1:
        return _by_condition(tokens, depth)  # {x | x > 1} without its braces
    if relation := _relation(tokens, depth):
        return relation
    if tokens[0] == r"\{" and _closing(tokens) == len(tokens) - 1:
        inside = tokens[1:-1]
        if "|" in inside or ":" in inside:
            return _by_condition(inside, depth)
        members = _split(inside, frozenset([",", ";"])) or [inside]
        return replace(_values([read(part, depth + 1) for part in members]), written="set")
    if tokens[0] + tokens[-1] in ("()", "[]") and _is_matrix(tokens[1:-1]):
        tokens = tokens[1:-1]
    if sequence := _sequence(tokens, depth):
        return sequence
    if tokens[0].startswith(r"\begin:"):
        return _matrix(tokens, depth)
    if _two_signs(tokens):
        return _values([Formula(_signed(tokens, sign)) for sign in ("+", "-")])
    return Formula(tokens[1:] if tokens[0] == "+" and len(tokens) > 1 else tokens)


def _of_variable(name: str, answer: Answer) -> Answer:
    """`x \\in A` as A, where A is an interval or a union of them one of x."""
    match answer:
        case Ordered(variable=""):
            return replace(answer, variable=name)
        case Values(members):
            return replace(answer, members=tuple(_of_variable(name, member) for member in members))
        case _:
            return answer


def is_name(tokens: Tokens) -> bool:
    """`x`, `f(x)`, `f^{-1}(x)`, `f(2)`, `P(A)`, `\\text{area}`, `(x, y)`, `AB`, `\\angle ABC`."""
    first, *rest = tokens
    if not rest:
        return is_letter(first) or is_word(first)
    if first == "(" and tokens[-1] == ")":  # (x, y) = …
        return all(is_letter(t) or t == "," for t in tokens[1:-1])
    if first == r"\angle" or tokens[:2] == ("m", r"\angle"):
        return all(is_letter(t) for t in tokens if t != r"\angle")
    if len(tokens) <= 4 and all(len(t) == 1 and t.isupper() for t in tokens):  # a segment, a figure
        return True
    if first in _CALLED and rest[0] == "(" and _closing(tuple(rest)) == len(rest) - 1:
        return all(is_letter(t) or is_number(t) or t in (",", "-", "=") for t in rest[1:-1])
    call = len(tokens) >= 4 and tokens[-3] == "(" and is_letter(tokens[-2]) and tokens[-1] == ")"
    return call and is_letter(first)


def _values(members: Sequence[Answer]) -> Values:
    """Members of members are members: {1, ±2} is {1, 2, −2}; but {{1, 2}, 3} has two."""
    flat: list[Answer] = []
    for member in members:
        if isinstance(member, Values) and member.written != "set":
            flat += member.members
        else:
            flat.append(member)
    return Values(tuple(flat))


def _union(parts: Sequence[Answer]) -> Values:
    opened = [replace(part, written="list") if isinstance(part, Values) else part for part in parts]
    return replace(_values(opened), written="union")


def _reals_without(points: Answer) -> Answer:
    """The union that is left of the reals. Raises Unstructured."""
    if not isinstance(points, Values) or not all(isinstance(p, Formula) for p in points.members):
        raise Unstructured
    found = without_points([p.tokens for p in points.members if isinstance(p, Formula)])
    if not found:
        raise Unstructured
    return _union([interval(span) for span in found])


def _by_condition(inside: Tokens, depth: int) -> Answer:
    """{x | x > 1} and {x | x < 1 or x > 5} as intervals. Raises Unstructured."""
    bar = next(i for i, token in enumerate(inside) if token in ("|", ":"))
    head, body = inside[:bar], inside[bar + 1 :]
    if head[1:] not in ((), (r"\in", '"R')) or {",", ";", '"and'} & {*body}:
        raise Unstructured
    found = read(body, depth + 1)
    match found:
        case Relation(r"\ne", (name,), point) if (name,) == head[:1]:
            return _reals_without(Values((Formula(point),)))
        case Ordered():
            pieces: tuple[Answer, ...] = (found,)
        case Values(members):
            pieces = members
        case _:
            raise Unstructured
    bare = [replace(p, variable="") for p in pieces if isinstance(p, Ordered)]
    if any(not isinstance(p, Ordered) or (p.variable,) != head[:1] for p in pieces):
        raise Unstructured
    return bare[0] if len(bare) == 1 else _union(bare)


def interval(span: Span, depth: int = 0) -> Ordered:
    ends = (read(span.low, depth + 1), read(span.high, depth + 1))
    return Ordered(span.brackets, ends, span.variable)


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


def _is_matrix(tokens: Tokens) -> bool:
    return len(tokens) > 1 and tokens[0].startswith(r"\begin:") and r"\end:" in tokens[-1]


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
    if found := [interval(span, depth) for span in spans(sides, signs)]:
        return found[0] if len(found) == 1 else Values(tuple(found))
    if len(sides) != 2:
        if set(signs) == {"="} and is_name(sides[0]):  # x = 2 + 3 = 5: every part is the value
            return Values(tuple(Relation("=", sides[0], side) for side in sides[1:]))
        raise Unstructured
    left, right, sign = sides[0], sides[1], signs[0]
    if sign in FLIPPED:
        left, right, sign = right, left, FLIPPED[sign]
    if sign == "=" and _two_signs(tokens):
        return _values([read(_signed(tokens, each), depth + 1) for each in ("+", "-")])
    if sign == "=" and is_name(right) and not is_name(left):
        left, right = right, left
    return Relation(sign, left, right)


def _two_signs(tokens: Tokens) -> bool:
    """Whether it stands for two values. Raises Unstructured: ±1 ± 2 may mean two or four."""
    if tokens.count(r"\pm") > 1 or tokens.count(r"\mp") > 1:
        raise Unstructured
    return r"\pm" in tokens or r"\mp" in tokens


def _signed(tokens: Tokens, sign: str) -> Tokens:
    other = "-" if sign == "+" else "+"
    return tuple({r"\pm": sign, r"\mp": other}.get(token, token) for token in tokens)
