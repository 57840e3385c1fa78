"""Units behind a number: `5 cm`, `90°`, `\\$12`, `7 apples`.

A unit is upright text or a word of four letters or more, never a letter of a formula. Units are
compared where both answers state one, and no unit is converted into another.
"""

from __future__ import annotations

import re

from scalerl.rewards.expression import SCALES
from scalerl.rewards.tokens import is_letter, is_number, is_word, words

Tokens = tuple[str, ...]

MOST_WORDS = 3
_NO_UNIT = frozenset(SCALES) | words(
    "or and not is are if less more least most than mod modulo base per between about none no to "
    "approximately minus plus times yes true false even odd negative squared cubed factorial "
    "doubled tripled inverse reciprocal point below bc bce prime complement transpose transposed "
    "conjugate over choose divided except gcd lcm max wrong "
    "half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth "
    "eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths millionth "
    "millionths zero one two three four five six seven eight nine ten eleven twelve fifteen "
    "twenty thirty forty fifty sixty seventy eighty ninety tens hundreds thousands millions "
    "billions trillions dozens score gross lakh crore"
)
_CURRENCIES = {'"$': "dollar", '"euro': "euro", '"pound': "pound"}
_WORD = re.compile(r"[a-z./ ]+")


def without_unit(tokens: Tokens) -> tuple[Tokens, str]:
    """A number and the unit behind it (or currency before it): `5 cm^2` → `5`, `cm2`.

    A unit is a word; letters of mathematics italics are variables, never units.
    """
    sign = 1 if "-" in tokens[:1] else 0
    if len(tokens) > sign + 1 and tokens[sign] in _CURRENCIES:
        return tokens[:sign] + tokens[sign + 1 :], _CURRENCIES[tokens[sign]]
    if len(tokens) > 2 and tokens[-2:] == ("^", r"\degree"):
        return tokens[:-2], "degree"
    if len(tokens) > 1 and tokens[-1] == r"\degree":
        return tokens[:-1], "degree"
    end, power, per = len(tokens), "", ""
    if len(tokens) > 3 and tokens[-2] == "/" and is_word(tokens[-3]):  # 60 km/h
        if is_number(tokens[-1]):
            return tokens, ""
        end, per = end - 2, "/" + tokens[-1].lstrip('"')
    elif len(tokens) > 3 and tokens[-2] == "^" and is_number(tokens[-1]):
        end, power = len(tokens) - 2, tokens[-1]
    if end > 1 and is_word(tokens[end - 1]):
        start = end - 1
        while start > 1 and is_word(tokens[start - 1]):
            start -= 1
        words = " ".join(token[1:] for token in tokens[start:end]).split()
        if is_letter("".join(tokens[:start])) and _unit("".join(words)) not in _UNITS.values():
            return tokens, ""  # a choice and a word: `A only`
        if len(words) <= MOST_WORDS and not _NO_UNIT.intersection(words) and _plain(words):
            return tokens[:start], _unit("".join(words)) + power + per
    return tokens, ""


_UNITS = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km",
    "kilometre": "km", "millimeter": "mm", "inch": "in", "inche": "in", "feet": "ft", "foot": "ft",
    "gram": "g", "kilogram": "kg", "second": "s", "sec": "s", "minute": "min", "hour": "h",
    "hr": "h", "liter": "l", "litre": "l", "dollar": "dollar", "usd": "dollar", "deg": "degree",
    "unit": "unit", "squareunit": "unit2", "sq.unit": "unit2", "cubicunit": "unit3",
    "mile": "mi", "yard": "yd", "milesperhour": "mph", "squarecentimeter": "cm2",
    "squareinche": "in2", "squarefeet": "ft2", "squaremeter": "m2", "cubicinche": "in3",
    "cubicfeet": "ft3", "cubiccentimeter": "cm3",
}  # fmt: skip


def without_letter(tokens: Tokens, unit: str) -> Tokens:
    """`5 m` as 5 where the other answer says that m is a unit."""
    return tokens[:-1] if len(tokens) > 1 and tokens[-1] == unit else tokens


def _plain(words: list[str]) -> bool:
    return all(_WORD.fullmatch(word) for word in words)


def _unit(word: str) -> str:
    word = word.removesuffix("s") if len(word) > 2 else word
    return _UNITS.get(word, word)
