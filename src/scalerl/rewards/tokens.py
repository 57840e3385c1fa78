r"""An answer as a list of tokens: the normal form in which answers are compared.

Spacing, size commands, fonts and synonyms vanish here (`\dfrac12`, `\frac{1}{2}`; `\leq`, `<=`,
`≤`), and nothing else does: digits that a space parts stay apart, a word is one token, and a
character nobody knows is a token of its own. So equal tokens mean equal answers.

A token is a number (`12.50`), a letter, `\name` of a command, a sign, or a word (`"word`).
"""

from __future__ import annotations

import re
from functools import lru_cache

CHARACTERS = {
    "−": "-", "–": "-", "×": r"\cdot ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*", "÷": "/",
    "⁄": "/", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ", "√": r"\sqrt ", "∅": r"\emptyset ",
    "°": r"\degree ", "º": r"\degree ", "…": r"\ldots ", "′": "'", "’": "'", "（": "(", "）": ")",
    "，": ",", "：": ":", "．": ".", "＝": "=", "＋": "+", "－": "-", "％": "%", "⟨": r"\langle ",
    "⟩": r"\rangle ", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "ℝ": r"\mathbb{R}", "π": r"\pi ", "θ": r"\theta ",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "μ": r"\mu ",
    "φ": r"\phi ", "ω": r"\omega ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "",
    "£": r"\text{pound}", "€": r"\text{euro}",
}  # fmt: skip
_RAISED = {"⁰": "0", "¹": "1", "²": "2", "³": "3", "⁴": "4", "⁵": "5", "⁶": "6", "⁷": "7",
           "⁸": "8", "⁹": "9", "⁻": "-"}  # fmt: skip
_LOWERED = {chr(0x2080 + i): str(i) for i in range(10)}
_TRANSLATE = str.maketrans(CHARACTERS | {chr(0xFF10 + i): str(i) for i in range(10)})


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IGNORED = words(
    r"\left \right \big \Big \bigl \bigr \Bigl \Bigr \bigg \Bigg \displaystyle \textstyle "
    r"\limits \nolimits \mathstrut \quad \qquad \, \; \: \! \> \/ "
    r"\boxed \fbox \underline \bf \rm \it \bfseries \large \Large \LARGE \huge \Huge \small"
) | {"\\ "}
SYNONYMS = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\cdot": "*", r"\times": "*",
    r"\ast": "*", r"\div": "/", r"\leq": r"\le", r"\leqslant": r"\le", r"\geq": r"\ge",
    r"\geqslant": r"\ge", r"\lt": "<", r"\gt": ">", r"\neq": r"\ne", r"\varnothing": r"\emptyset",
    r"\dbinom": r"\binom", r"\tbinom": r"\binom", r"\dots": r"\ldots", r"\cdots": r"\ldots",
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\vert": "|",
    r"\lvert": "|", r"\rvert": "|", r"\mid": "|", r"\circ": r"\degree", r"\%": "%",
    r"\varphi": r"\phi", r"\varepsilon": r"\epsilon", r"\lparen": "(", r"\rparen": ")",
    r"\colon": ":", r"\arcsin": r"\asin", r"\arccos": r"\acos", r"\arctan": r"\atan",
    r"\prime": "'", r"\backslash": r"\setminus", r"\land": '"and', r"\lor": '"or',
    r"\bigcup": r"\cup", r"\bigcap": r"\cap", r"\gcd": '"gcd', r"\lcm": '"lcm', r"\max": '"max',
    r"\min": '"min',
}  # fmt: skip
FONTS = words(
    r"\text \textbf \textit \textrm \texttt \mathrm \mathbf \mathit \mathsf \mbox \operatorname "
    r"\textnormal \boldsymbol \bm \emph"
)
FUNCTIONS = words("sin cos tan cot sec csc asin acos atan sinh cosh tanh ln log exp sqrt")
GREEK = words("pi theta alpha beta gamma delta lambda mu phi omega infty infinity")
WORDS = words("yes no true odd even not and or none in cm mm km kg ft mph cup lbs gcd lcm max min")

_GREEK_LETTERS = (GREEK - {"pi", "infty", "infinity"}) | words(
    "epsilon zeta eta kappa nu xi rho sigma tau chi psi Delta Gamma Omega Phi Psi Sigma Theta"
)
_ACCENTS = words(r"\hat \vec \bar \tilde \dot")
_THOUSANDS = re.compile(r"(?<!,)\d{1,3}(?:(?:\{,\}|,\\!|\\,|,)\d{3})+(?!,?\d)(?:\.\d+)?", re.ASCII)
_SPACED = re.compile(r"[1-9]\d{0,2}(?:(?:\\ | )\d{3})+(?! ?\d)(?:\.\d+)?", re.ASCII)
_REPEATING = re.compile(r"(\d*\.\d*)\\(?:overline|bar|dot)(?:\{(\d+)\}|(\d))", re.ASCII)
_NUMBER = re.compile(r"(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)", re.DOTALL)
_LETTERS = re.compile(r"[a-zA-Z]+")
_GROUP = re.compile(r"\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_CHOICES = re.compile(r"\(?[A-Z]\)?(?:(?:, ?(?:and |or )?| and | or )\(?[A-Z]\)?)+")
_CLOCK = re.compile(
    r"(\d:\d\d)(?:\s|~|\\[ ,;:])*(?:([ap])\.?m|\\(?:text|mathrm)\{\s*([ap])\.?m\.?\s*\})\Z",
    re.IGNORECASE,
)
_TRAILING = re.compile(r"(?:\\[,;:!> ]|\\q?quad|(?<!\\)~|(?<![.\\])[.,;])\Z")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_INTEGER = re.compile(r"-?\d+", re.ASCII)
_DIGRAPHS = {"<=": r"\le", ">=": r"\ge", "!=": r"\ne", "**": "^", "==": "="}
_OPENING = {"(", "[", r"\{"}
_CLOSING = {")", "]", r"\}"}


@lru_cache(maxsize=4096)
def tokenize(text: str) -> tuple[str, ...]:
    """The normal form of an answer. Every text has one."""
    text = unwrapped(text)
    if _INTEGER.fullmatch(text):
        return ("-", text[1:]) if text[0] == "-" else (text,)
    text = _CLOCK.sub(r"\1\\text{\2\3m}", text)
    tokens = _without_braces(_raw_tokens(_characters(text)))
    return tuple(tokens[1:] if tokens[:1] == ["="] else tokens)


def unwrapped(text: str) -> str:
    """Without the mathematics delimiters around it, and space, full stop or comma after it."""
    while True:
        text = text.strip()
        before = text
        if trailing := _TRAILING.search(text, max(0, len(text) - 6)):
            text = text[: trailing.start()].rstrip()
        for opening, closing in _WRAPPERS:
            inner = text[len(opening) : len(text) - len(closing)]
            if (
                len(text) >= len(opening) + len(closing)
                and text.startswith(opening)
                and text.endswith(closing)
                and opening not in inner
                and closing not in inner
            ):
                text = inner
        if text == before:
            return text


def is_number(token: str) -> bool:
    return is_digits(token[:1]) or (token[:1] == "." and len(token) > 1)


def is_digits(token: str) -> bool:
    """ASCII digits: `①`, `²` and digits of other scripts have no value here."""
    return token.isascii() and token.isdigit()


def is_word(token: str) -> bool:
    return token.startswith('"')


def is_letter(token: str) -> bool:
    """One letter or a Greek one, perhaps with an index: `x`, `x_1`, `\\theta`."""
    letter = token.partition("_")[0]
    return (len(letter) == 1 and letter.isalpha()) or letter[1:] in _GREEK_LETTERS


def _characters(text: str) -> str:
    """Characters of other alphabets as the LaTeX they stand for; powers and indices as such."""
    text = text.replace("{.}", ".")
    if text.isascii():
        return text
    text = re.sub(
        f"[{''.join(_RAISED)}]+", lambda m: "^{" + "".join(_RAISED[c] for c in m[0]) + "}", text
    )
    text = re.sub(
        f"[{''.join(_LOWERED)}]+", lambda m: "_{" + "".join(_LOWERED[c] for c in m[0]) + "}", text
    )
    return text.translate(_TRANSLATE)


def _raw_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at, depth = 0, 0
    while at < len(text):
        character = text[at]
        if character.isspace() or character in "$~":
            at += 1
            continue
        if character in "0123456789.":
            found, at = _number(text, at, depth, tokens)
        elif character == "\\":
            found, at = _command(text, at)
        elif _LETTERS.match(character):
            found, at = _letters(text, at)
        elif text[at : at + 2] in _DIGRAPHS:
            found, at = [_DIGRAPHS[text[at : at + 2]]], at + 2
        else:
            found, at = [character], at + 1
        for token in found:
            depth += (token in _OPENING) - (token in _CLOSING)
        tokens += found
    return tokens


def _number(text: str, at: int, depth: int, before: list[str]) -> tuple[list[str], int]:
    if before and before[-1] == r"\frac":  # TeX: \frac12 is one half
        return [text[at]], at + 1
    if len(before) > 1 and before[-2] == r"\frac" and is_number(before[-1]):
        return [text[at]], at + 1
    if repeating := _REPEATING.match(text, at):
        digits = repeating[2] or repeating[3]
        return [f"{repeating[1]}({digits})"], repeating.end()
    if depth == 0:
        for pattern in (_THOUSANDS, _SPACED):
            if (grouped := pattern.match(text, at)) and not (before and is_number(before[-1])):
                return [re.sub(r"[^\d.]", "", grouped[0])], grouped.end()
    plain = _NUMBER.match(text, at)
    return ([plain[0]], plain.end()) if plain else ([text[at]], at + 1)


def _command(text: str, at: int) -> tuple[list[str], int]:
    match = _COMMAND.match(text, at)
    name = match[0] if match else "\\"
    end = match.end() if match else at + 1
    if name in IGNORED:
        if name in (r"\left", r"\right") and text[end : end + 1] == ".":
            end += 1
        return [], end
    if name in FONTS and (group := _GROUP.match(text, end)):
        return _font(name, group[1]), group.end()
    if name in (r"\color", r"\textcolor") and (group := _GROUP.match(text, end)):
        return [], group.end()
    if name in (r"\begin", r"\end") and (group := _GROUP.match(text, end)):
        return [f"{name}:{group[1].strip()}"], group.end()
    if name in (r"\mathbb", r"\mathcal") and (group := _GROUP.match(text, end)):
        return [f'"{group[1].strip()}'], group.end()
    if name == r"\$":
        return ['"$'], end
    name = SYNONYMS.get(name, name)
    return [name], end


def _font(name: str, inside: str) -> list[str]:
    """Upright text: letters and numbers in it mean what they mean outside, words are words."""
    inside = re.sub(r"\\[ ,;:!]|~", " ", inside).strip()
    if choice := re.fullmatch(r"\(?([A-Z])\)?", inside):
        return [choice[1]]
    if celsius := re.fullmatch(r"(?:\\degree|\^?\\circ) ?([CF])", inside):
        return [r"\degree", celsius[1]]
    if _CHOICES.fullmatch(inside):
        return _raw_tokens(inside.replace("(", "").replace(")", ""))
    if inside in ("e", "i", "d") and name != r"\text":
        return [inside]
    if inside in FUNCTIONS:
        return ["\\" + inside]
    if not re.search(r"[a-zA-Z]", inside) or name in (r"\mathbf", r"\boldsymbol", r"\bm"):
        return _raw_tokens(inside)
    tokens: list[str] = []
    for word in inside.casefold().split():
        if not re.search("[a-z]", word):
            tokens += _raw_tokens(word)
            continue
        unit, _, power = word.partition("^")  # cm^2
        tokens.append('"' + unit.rstrip("."))
        tokens += ["^", *_raw_tokens(power)] if power else []
    return tokens


def _letters(text: str, at: int) -> tuple[list[str], int]:
    match = _LETTERS.match(text, at)
    run = match[0] if match else text[at]
    end = at + len(run)
    lower = run.casefold()
    if run in FUNCTIONS:
        return ["\\" + run], end
    if run in ("arcsin", "arccos", "arctan"):
        return ["\\a" + run[3:]], end
    if run in GREEK:
        return [r"\infty" if run == "infinity" else "\\" + run], end
    if lower in WORDS or len(run) >= 4 or re.fullmatch(r"[A-Z][a-z]{2,}", run):
        return ['"' + lower], end
    return list(run), end


def _without_braces(tokens: list[str]) -> list[str]:
    """`{` token `}` → token, so that x^{2} and x^2 are one; indices join their letter."""
    out: list[str] = []
    for token in tokens:
        if token == "}" and len(out) >= 2 and out[-2] == "{" and out[-1] not in "{}":
            out[-2:] = [out[-1]]
        else:
            out.append(token)
    if out and out[0] == "{" and out[-1] == "}" and _closes_last(out):
        out = out[1:-1]
    joined: list[str] = []
    for token in out:
        index = is_number(token) or is_letter(token)
        if index and len(joined) >= 2 and joined[-1] == "_" and is_letter(joined[-2]):
            joined[-2:] = [f"{joined[-2]}_{token}"]
        elif token in ("o", '"o') and joined[-1:] == ["^"]:  # 90^o
            joined.append(r"\degree")
        elif joined and joined[-1] in _ACCENTS and is_letter(token):
            joined[-1] = f"{token}_{joined[-1][1:]}"
        else:
            joined.append(token)
    return joined


def _closes_last(tokens: list[str]) -> bool:
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token == "{") - (token == "}")
        if depth == 0:
            return i == len(tokens) - 1
    return False
