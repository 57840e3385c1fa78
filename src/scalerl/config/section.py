"""What every section of the settings is: typed, frozen, without unknown keys, and of one mind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, model_validator


class Conflict(NamedTuple):
    """Settings that are fine one by one and do not go together."""

    keys: tuple[str, ...]  # dotted, from the section that says so; the most likely culprit first
    reason: str


class Conflicts(ValueError):
    """All conflicts of one section; the loader adds the files."""

    def __init__(self, found: Sequence[Conflict]) -> None:
        super().__init__("; ".join(conflict.reason for conflict in found))
        self.found = tuple(found)


class Section(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )

    def conflicts(self) -> Iterator[Conflict]:
        """What does not go together in this section."""
        return iter(())

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if found := list(self.conflicts()):
            raise Conflicts(found)
        return self

    @model_validator(mode="before")
    @classmethod
    def _numbers_are_numbers(cls, given: object) -> object:
        """true is not 1, and "3" is not 3."""
        found: list[Conflict] = []
        for key, value in given.items() if isinstance(given, Mapping) else ():
            field = cls.model_fields.get(key)
            values = value if isinstance(value, list | tuple) else [value]
            wrong = any(isinstance(v, bool | str) for v in values)
            if wrong and field and _is_number(field.annotation):
                found.append(Conflict((key,), f"must be a number (given: {value!r})"))
        if found:
            raise Conflicts(found)
        return given


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(_is_number(part) for part in get_args(annotation))
