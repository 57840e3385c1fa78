r"""Tokens of one formula as a tree, read to the last token or not at all.

    tree = ("num", Fraction) | ("var", name) | ("const", "e" | "i" | "pi")
         | ("add" | "mul" | "div" | "pow", left, right) | ("neg" | "abs" | "fact", x)
         | ("root", degree, x) | ("log", base or None, x) | ("call", name, x) | ("binom", n, k)
         | ("gcd" | "lcm" | "max" | "min", x, y, …)

Nothing is evaluated here, and no part of a formula stands for the whole: what cannot be read
completely is None. Reading is bounded by `LONGEST` tokens, `DEEPEST` nesting and `MOST_LEVELS`, so
that who walks over a tree stays within Python's stack.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from scalerl.rewards.tokens import FUNCTIONS, is_digits, is_letter, is_number, is_word

Tree = tuple[Any, ...]

LONGEST = 400  # tokens of a formula
DEEPEST = 80  # nested groups and their operands
MOST_LEVELS = 220  # of a tree
MOST_DIGITS = 4_000  # of a number
LARGEST_EXPONENT = 10_000  # of a number in scientific notation

SCALES = {
    "hundred": Fraction(100),
    "thousand": Fraction(1000),
    "million": Fraction(10**6),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
    "percent": Fraction(1, 100),
    "dozen": Fraction(12),
}
_NAMED = FUNCTIONS - {"sqrt", "log", "ln", "exp"}
_OF_SEVERAL = frozenset(['"gcd', '"lcm', '"max', '"min'])
_CLOSES = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}


class _Unreadable(Exception):
    """The tokens are no formula of this grammar."""


def parse(tokens: tuple[str, ...]) -> Tree | None:
    """The tree of all of the tokens, or None."""
    if not tokens or len(tokens) > LONGEST:
        return None
    parser = _Parser(tokens)
    try:
        tree = parser.group()
        return tree if parser.peek() == "" and _levels(tree) <= MOST_LEVELS else None
    except _Unreadable:
        return None


def _levels(tree: Tree) -> int:
    level, deepest = [tree], 0
    while level:
        level = [part for node in level for part in node[1:] if isinstance(part, tuple)]
        deepest += 1
    return deepest


def number(token: str) -> Fraction | None:
    """The exact value of a number token: 12, 033, 1.50, .5, 1e-7, 0.(3); None where too long."""
    if len(token) > MOST_DIGITS:
        return None
    if "(" in token:
        head, _, period = token.rstrip(")").partition("(")
        whole, _, decimals = head.partition(".")
        start = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
        return start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(decimals))
    mantissa, _, exponent = token.lower().partition("e")
    if exponent and abs(int(exponent)) > LARGEST_EXPONENT:
        return None
    whole, _, decimals = mantissa.partition(".")
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    return value * Fraction(10) ** int(exponent) if exponent else value


class _Parser:
    """Recursive descent. `bars` counts open |…|, inside which a bar closes."""

    def __init__(self, tokens: tuple[str, ...]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        if not token:
            raise _Unreadable
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise _Unreadable

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Unreadable
        tree = self._signed(self.product)
        while self.peek() in ("+", "-"):
            tree = ("add", tree, self._signed(self.product))
        self.depth -= 1
        return tree

    def group(self) -> Tree:
        r"""A sum, or the two of a `\over` or `\choose`, which divide the whole group."""
        tree = self.sum()
        if self.peek() in (r"\over", r"\choose"):
            kind = "div" if self.take() == r"\over" else "binom"
            tree = (kind, tree, self.sum())
        return tree

    def _signed(self, read: Callable[[], Tree]) -> Tree:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        tree = read()
        return ("neg", tree) if negative else tree

    def product(self) -> Tree:
        tree = last = self._mixed_number() or self.factor()
        while True:
            token = self.peek()
            if token in ("*", "/"):
                self.take()
                last = self._signed(self.factor)
                tree = ("mul" if token == "*" else "div", tree, last)
            elif self._begins_factor(token) and (
                not is_number(token) or last[0] in ("pow", "fact")  # 2^3 5^2, 3! 7!
            ):
                last = self.factor()
                tree = ("mul", tree, last)
            else:
                return tree

    def _mixed_number(self) -> Tree | None:
        r"""3\frac{1}{2} and 3 1/2 are three and a half."""
        whole = self.peek()
        if not is_digits(whole):
            return None
        if self.peek(1) == r"\frac":
            top, bottom, length = self.peek(2), self.peek(3), 4
        elif self.peek(2) == "/":
            top, bottom, length = self.peek(1), self.peek(3), 4
        else:
            return None
        if not (is_digits(top) and is_digits(bottom) and 0 < int(top[:9]) < int(bottom[:9])):
            return None
        if len(top) > 9 or len(bottom) > 9:
            return None
        self.at += length
        return self._postfix(("num", int(whole) + Fraction(int(top), int(bottom))))

    def _begins_factor(self, token: str) -> bool:
        if not token or (token == "|" and self.bars):
            return False
        return (
            is_number(token)
            or is_letter(token)
            or is_word(token)
            or token in _CLOSES
            or token in ("|", r"\frac", r"\binom", r"\pi", r"\sqrt", r"\ln", r"\log", r"\exp")
            or token[1:] in _NAMED
        )

    def factor(self) -> Tree:
        """A base with what stands behind it: powers, factorials, percent, degrees."""
        tree = self.base()
        while True:
            token = self.peek()
            if token == "^" and self.peek(1) == r"\degree":
                self.at += 2
                tree = ("mul", tree, ("div", ("const", "pi"), ("num", Fraction(180))))
            elif token == r"\degree":
                self.take()
                tree = ("mul", tree, ("div", ("const", "pi"), ("num", Fraction(180))))
            elif token == "^":
                self.take()
                return self._postfix(("pow", tree, self.exponent()))
            elif token in ("!", "%"):
                tree = self._postfix(tree)
            else:
                return tree

    def _postfix(self, tree: Tree) -> Tree:
        while self.peek() in ("!", "%"):
            if self.take() == "!":
                if self.peek() == "!":  # a double factorial is another function
                    raise _Unreadable
                tree = ("fact", tree)
            else:
                tree = ("mul", tree, ("num", Fraction(1, 100)))
        return tree

    def exponent(self) -> Tree:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Unreadable
        tree = self._signed(self._tower)
        self.depth -= 1
        return tree

    def _tower(self) -> Tree:
        tree = self.base()
        if self.peek() == "^":
            self.take()
            tree = ("pow", tree, self.exponent())
        return tree

    def argument(self) -> Tree:
        """What a TeX command takes: a group in braces or one token."""
        if self.peek() in ("{", "(", r"\frac", r"\sqrt"):
            return self.base()
        token = self.take()
        return self._number(token) if is_number(token) else self._atom(token)

    def base(self) -> Tree:
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Unreadable
        tree = self._base(self.take())
        self.depth -= 1
        return tree

    def _base(self, token: str) -> Tree:
        if is_number(token):
            return self._number(token)
        if token in _CLOSES:
            tree = self.sum_between(_CLOSES[token])
            match token:
                case r"\lfloor":
                    return ("call", "floor", tree)
                case r"\lceil":
                    return ("call", "ceil", tree)
                case _:
                    return tree
        match token:
            case "|":
                self.bars += 1
                tree = self.sum()
                self.expect("|")
                self.bars -= 1
                return ("abs", tree)
            case r"\frac":
                return ("div", self.argument(), self.argument())
            case r"\binom":
                return ("binom", self.argument(), self.argument())
            case r"\sqrt":
                return self._root()
            case r"\ln" | r"\log" | r"\exp":
                return self._logarithm(token)
        if token[1:] in _NAMED and token[0] == "\\":
            return self._function(token[1:])
        return self._atom(token)

    def sum_between(self, closing: str) -> Tree:
        bars, self.bars = self.bars, 0
        tree = self.group() if closing == "}" else self.sum()
        self.expect(closing)
        self.bars = bars
        return tree

    def _number(self, token: str) -> Tree:
        value = number(token)
        if value is None:
            raise _Unreadable
        return ("num", value)

    def _atom(self, token: str) -> Tree:
        if is_word(token) and token[1:] in SCALES:
            return ("num", SCALES[token[1:]])
        if token in _OF_SEVERAL:
            return (token[1:], *self._arguments())
        if token == r"\pi":
            return ("const", "pi")
        if token in ("e", "i"):
            return ("const", token)
        if is_letter(token):
            if token in ("f", "g", "h") and self.peek() == "(":  # an unknown function
                raise _Unreadable
            return ("var", token)
        raise _Unreadable

    def _arguments(self) -> list[Tree]:
        """`(x, y, …)`, two or more."""
        bars, self.bars = self.bars, 0
        self.expect("(")
        found = [self.sum()]
        while self.peek() == ",":
            self.take()
            found.append(self.sum())
        self.expect(")")
        self.bars = bars
        if len(found) < 2:
            raise _Unreadable
        return found

    def _root(self) -> Tree:
        degree: Tree = ("num", Fraction(2))
        if self.peek() == "[":
            self.take()
            degree = self.sum_between("]")
        return ("root", degree, self.argument())

    def _logarithm(self, token: str) -> Tree:
        if token == r"\exp":
            return ("pow", ("const", "e"), self._operand())
        base: Tree | None = ("const", "e") if token == r"\ln" else None
        if token == r"\log" and self.peek() == "_":
            self.take()
            base = self.argument()
        power = self._power_before_operand()
        tree: Tree = ("log", base, self._operand())
        return ("pow", tree, power) if power else tree

    def _function(self, name: str) -> Tree:
        power = self._power_before_operand()
        if power == ("neg", ("num", Fraction(1))):  # sin^{-1} is the inverse
            if name not in ("sin", "cos", "tan"):
                raise _Unreadable
            name, power = f"a{name}", None
        tree: Tree = ("call", name, self._operand())
        return ("pow", tree, power) if power else tree

    def _power_before_operand(self) -> Tree | None:
        if self.peek() != "^":
            return None
        self.take()
        return self.exponent()

    def _operand(self) -> Tree:
        """sin(…) takes the parentheses; sin 2x takes the product of numbers, letters, fractions."""
        if self.peek() in ("(", "{", "|", r"\frac", r"\sqrt"):
            return self.factor() if self.peek() != "(" else self.base()
        tree = self.factor()
        while (token := self.peek()) and (
            is_letter(token) or token in (r"\pi", r"\frac", r"\sqrt")
        ):
            tree = ("mul", tree, self.factor())
        if self.peek() == "/" and is_number(self.peek(1)):  # sin pi/6
            self.take()
            tree = ("div", tree, self.factor())
        return tree
