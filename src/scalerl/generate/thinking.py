"""Where thinking ends: in the text, whatever tokens the text came in.

A tokenizer with `</think>` as one token is the easy case. In others the model may write the same
text as `</` `think` `>`, or as ` </` `think` `>\\n` after a space and before a line break. So the
end is looked for in characters: a small automaton whose states are how much of it has been read,
and whose moves, one for each token, are worked out once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

Move = tuple[int, int, int]
"""(state, token, next state); a token without a move leads back to state 0."""


class EndOfThinking(msgspec.Struct, frozen=True, kw_only=True):
    """The automaton. Begins in state 0; state `size` is the end of thinking."""

    size: int
    moves: tuple[Move, ...]

    def reached(self, token_ids: Iterable[int]) -> bool:
        """Whether these tokens, from the beginning, end the thinking."""
        moves = {(state, token): after for state, token, after in self.moves}
        state = 0
        for token in token_ids:
            state = moves.get((state, token), 0)
            if state == self.size:
                return True
        return False


def ending_in_text(text: str, pieces: Sequence[str | None]) -> EndOfThinking:
    """The automaton that finds `text` in what tokens spell.

    Args:
        text: visible ASCII, which byte-level and SentencePiece vocabularies spell as it is.
        pieces: by token id, its entry in the vocabulary (`convert_ids_to_tokens`).
    """
    back = _borders(text)

    def read(state: int, piece: str) -> int:
        for character in piece:
            while state and text[state] != character:
                state = back[state]
            state += text[state] == character
            if state == len(text):
                break
        return state

    named = [(token, piece) for token, piece in enumerate(pieces) if piece is not None]
    near = [(t, piece) for t, piece in named if piece[:1] in text or text[0] in piece]
    moves = [
        (state, token, after)
        for state in range(len(text))
        for token, piece in near
        if (after := read(state, piece))
    ]
    return EndOfThinking(size=len(text), moves=tuple(moves))


def ending_in_ids(ids: Sequence[int]) -> EndOfThinking:
    """The automaton that finds these tokens in a row."""
    back = _borders(ids)
    moves: list[Move] = []
    for state in range(len(ids)):
        for token in dict.fromkeys(ids):
            at = state
            while at and ids[at] != token:
                at = back[at]
            if ids[at] == token:
                moves.append((state, token, at + 1))
    return EndOfThinking(size=len(ids), moves=tuple(moves))


def _borders(word: Sequence[object]) -> list[int]:
    """For each length of a prefix of `word`, its longest proper prefix that is also its suffix
    (Knuth, Morris and Pratt 1977)."""
    back = [0, 0]
    for i in range(1, len(word)):
        size = back[i]
        while size and word[size] != word[i]:
            size = back[size]
        back.append(size + (word[size] == word[i]))
    return back
