r"""Whether two answers are equal, by all rules. Runs in a worker that can be killed.

    same tokens → kind of answer (`structure`) → formulas: exact value → value to 50 digits
                → math-verify, for sums, integrals, limits and unknown functions only

math-verify's own word is never enough: it reads fragments and rounds. It is asked about formulas
made of known signs only, and its yes must survive evaluation at several points.
"""

from __future__ import annotations

import random
from typing import Any

from scalerl.rewards.agreement import equal
from scalerl.rewards.expression import LONGEST, parse
from scalerl.rewards.numeric import proportional, same_value, variables
from scalerl.rewards.rational import exact_value
from scalerl.rewards.structure import Unstructured, read
from scalerl.rewards.tokens import is_letter, is_number, is_word, tokenize, words
from scalerl.rewards.units import without_letter, without_unit

Tokens = tuple[str, ...]

_BEYOND = frozenset([r"\sum", r"\int", r"\prod", r"\lim"])
_ARGUMENTS = {r"\frac": 2, r"\sqrt": 1, "^": 1, "_": 1}
_KNOWN_SIGNS = _BEYOND | words(
    r"+ - * / ^ _ ( ) { } = ! \frac \sqrt \pi \to \infty \sin \cos \tan \ln \exp"
)


def equal_answers(gold: str, answer: str) -> bool:
    """Whether the answer equals the gold one. Never raises on any text."""
    a, b = tokenize(gold), tokenize(answer)
    if a == b:
        return bool(a)
    if max(len(a), len(b)) > LONGEST:
        return False
    try:
        return equal(read(a), read(b), _same_formula, _same_statement)
    except Unstructured:
        return False


def _same_formula(gold: Tokens, answer: Tokens) -> bool:
    if gold == answer or _same_value(gold, answer):
        return True
    (bare_gold, unit), (bare_answer, other) = without_unit(gold), without_unit(answer)
    if not unit and not other:
        return False
    if not unit or not other:  # `5 m` against `5 \text{ m}`
        bare_gold, bare_answer = without_letter(bare_gold, other), without_letter(bare_answer, unit)
    return (unit == other or not unit or not other) and (
        bare_gold == bare_answer or _same_value(bare_gold, bare_answer)
    )


def _same_value(gold: Tokens, answer: Tokens) -> bool:
    a, b = exact_value(gold), exact_value(answer)
    if a is not None and b is not None:
        return a == b
    left, right = parse(gold), parse(answer)
    if left is not None and right is not None:
        return bool(same_value(left, right))
    return _by_math_verify(gold, answer)


def _same_statement(gold: Tokens, answer: Tokens, positive: bool) -> bool:
    left, right = parse(gold), parse(answer)
    if left is None or right is None or not (variables(left) and variables(right)):
        return False
    return bool(proportional(left, right, positive=positive))


def _by_math_verify(gold: Tokens, answer: Tokens) -> bool:
    r"""Sums, products, integrals and limits, where both sides are made of known signs only."""
    signs = {*gold, *answer}
    if not signs & _BEYOND or any(not _known(token) for token in signs):
        return False
    try:
        from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
        from math_verify import verify
    except ModuleNotFoundError:  # the extra `math` is not installed: written alike or not equal
        return False
    config = ConversionConfig(lowercase_symbols=False)
    try:
        left: Any
        right: Any
        left, right = (latex2sympy(_latex(t), conversion_config=config) for t in (gold, answer))
        agreed = verify(left, right, timeout_seconds=None)
        return bool(agreed) and _survives(left, right)
    except Exception:  # noqa: BLE001 its parser raises bare Exception on what it cannot read
        return False


def _known(token: str) -> bool:
    return is_number(token) or (is_letter(token) and not is_word(token)) or token in _KNOWN_SIGNS


def _latex(tokens: Tokens) -> str:
    """The tokens as LaTeX with every argument in braces."""
    out: list[str] = []
    open_groups: list[int] = []  # arguments still to come when each group began
    arguments = 0
    for token in tokens:
        if token == "{":
            open_groups.append(max(0, arguments - 1))
            arguments = 0
        elif token == "}":
            arguments = open_groups.pop() if open_groups else 0
        elif token in _ARGUMENTS:
            if arguments:  # a command as an argument without braces
                raise ValueError
            arguments = _ARGUMENTS[token]
        elif arguments:
            token, arguments = f"{{{token}}}", arguments - 1
        out.append(token)
    return " ".join(out)


def _survives(left: Any, right: Any) -> bool:
    """Whether the two sides agree to 30 digits at three points."""
    import sympy

    difference, rng = (left - right).doit(), random.Random("math-verify")
    symbols = sorted(difference.free_symbols, key=str)
    for _ in range(3):
        point = {s: sympy.Integer(rng.randrange(2, 30)) for s in symbols}
        size = sympy.N(abs(left.doit().subs(point)), 40)
        gap = sympy.N(abs(difference.subs(point)), 40)
        if not (gap.is_number and size.is_number and gap <= sympy.Float("1e-30") * (1 + size)):
            return False
    return True


def equal_to_any(golds: list[str], answer: str) -> bool:
    return any(equal_answers(gold, answer) for gold in golds)
