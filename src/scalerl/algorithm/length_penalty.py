"""The soft penalty on long answers, an alternative to interrupting them."""

from __future__ import annotations

from dataclasses import dataclass

from scalerl.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthPenalty:
    """Where the penalty begins and is full, in generated tokens, forced ones included.

    Errors: InputError unless 0 < ``length_cache`` ≤ ``length_max``.
    """

    length_max: int  # L_max: at this length and beyond, the penalty is −1
    length_cache: int  # L_cache: the penalty begins this many tokens before

    def __post_init__(self) -> None:
        if not 0 < self.length_cache <= self.length_max:
            raise InputError(
                f"length penalty: length_cache = {self.length_cache} must be positive and at most "
                f"length_max = {self.length_max}"
            )


def length_penalty(length: int, *, length_max: int, length_cache: int) -> float:
    """What a correct completion of that length loses; 0 up to L_max − L_cache, −1 from L_max on.

        clip((L_max − |y|) / L_cache − 1, −1, 0)

    Paper: arXiv 2503.14476 (DAPO), equation 13; arXiv 2510.13786 as the length control that
    ScaleRL replaces by interruptions. Units: tokens in, reward out.
    Deviations: the caller adds it to correct completions only, as arXiv 2510.13786 does; DAPO
    adds it to all.
    """
    return min(0.0, max(-1.0, (length_max - length) / length_cache - 1.0))
