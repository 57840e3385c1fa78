"""STUDY.toml: what it may say, and its variants resolved to whole configurations.

base settings ─┬─ variants, sets, grids ─▶ one Config a variant, compared with the base
               └─ seeds, budget, evaluation plan, stages, race
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, ValidationError, field_validator, model_validator

from scalerl.config import Config, differences, recipe_names, recipe_text
from scalerl.config.load import merge, nearest, read_toml, validated
from scalerl.config.section import Section
from scalerl.errors import InputError
from scalerl.experiments import variants as v

STARTS = "starts"
"""Folder of the start models, which all runs of a study share."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=+-]*")
PLANNED = {
    "steps": "budget.steps",
    "seed": "seeds",
    "recipe": "base.recipe",
    "evaluation.every": "evaluation.points",
    "evaluation.completions": "evaluation.completions",
}
"""Settings of a run that a study plans, and the study's key for each."""

Units = Literal["flops", "device_hours", "tokens_generated", "tokens_trained", "step"]


class Base(Section):
    recipe: str = Field(default="scalerl", description="recipe that the variants start from")
    name: str = Field(default="", description="what the base is called; default: its recipe")
    seeds: tuple[int, ...] | None = Field(
        default=None, description="seeds of the base, where it has others than the variants"
    )
    settings: dict[str, Any] = Field(default={}, description="laid over the recipe, for every run")


class Budget(Section):
    steps: PositiveInt = Field(description="optimiser steps of a run of the base")
    equal: Literal["steps", "completions"] = Field(
        default="completions",
        description="what a variant with another batch has as many of as the base",
    )
    tokens: int = Field(
        default=0, ge=0, description="a run also ends once it has generated so many; 0: no limit"
    )


class Plan(Section):
    points: PositiveInt = Field(default=20, description="held-out evaluations within the budget")
    completions: PositiveInt = Field(default=16, description="completions a held-out prompt")


class Stages(Section):
    fit_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="share of a run's compute that is fitted where nothing is extended",
    )
    extend_to: int = Field(
        default=0, ge=0, description="optimiser steps of the base's extended runs; 0: none"
    )
    extend: Literal["contenders", "all"] | tuple[str, ...] = Field(
        default="contenders",
        description="who is extended: those that may have the best ceiling, all, or names",
    )


class Race(Section):
    rounds: tuple[float, ...] = Field(
        default=(0.4, 0.6, 0.8, 1.0), description="shares of the budget after which it is decided"
    )
    bound: float = Field(
        default=0.05,
        gt=0,
        lt=0.5,
        description="a variant stops when the probability that it has the best ceiling is below",
    )

    @field_validator("rounds")
    @classmethod
    def _rising(cls, rounds: tuple[float, ...]) -> tuple[float, ...]:
        if len(rounds) < 2 or rounds[-1] != 1 or rounds[0] <= 0:
            raise ValueError("takes two shares or more, above 0, the last of them 1")
        if any(b <= a for a, b in itertools.pairwise(rounds)):
            raise ValueError("shares must rise")
        return rounds


class StudyFile(Section):
    """The file as written."""

    name: str = Field(default="", description="default: the file's name")
    about: str = ""
    sets: tuple[str, ...] = Field(default=(), description="ready-made variants, by name")
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1, description="one run a seed")
    compute: Units = Field(
        default="flops",
        description="x-axis of every fit; FLOPs do not depend on what else the machine does",
    )
    target: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="pass rate to which computes are compared; default: at three quarters of what "
        "the base has gained",
    )
    jobs: PositiveInt = Field(default=1, description="runs at once; --jobs has the last word")
    base: Base = Base()
    budget: Budget
    evaluation: Plan = Plan()
    stages: Stages = Stages()
    race: Race | None = None
    variants: dict[str, dict[str, Any]] = Field(
        default={}, description="name → settings laid over the base, `recipe` and `about`"
    )
    grid: dict[str, dict[str, Any]] = Field(
        default={}, description="name → settings whose values are lists: every combination"
    )

    @field_validator("sets")
    @classmethod
    def _known(cls, sets: tuple[str, ...]) -> tuple[str, ...]:
        for name in sets:
            if name not in v.SETS:
                raise ValueError(
                    f"no set {name!r}{nearest(name, v.SETS)}; there are: {', '.join(v.SETS)}"
                )
        return sets

    @model_validator(mode="after")
    def _fits_together(self) -> StudyFile:
        if self.stages.extend_to and self.stages.extend_to <= self.budget.steps:
            raise ValueError(
                f"stages.extend_to ({self.stages.extend_to}) is not above budget.steps "
                f"({self.budget.steps})"
            )
        for seeds, key in ((self.seeds, "seeds"), (self.base.seeds or (), "base.seeds")):
            if len(set(seeds)) < len(seeds) or any(s < 0 for s in seeds):
                raise ValueError(f"{key}: each seed once, none below 0 (given: {list(seeds)})")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant, resolved. Its runs differ from `config` in their seed only."""

    name: str
    about: str
    config: Config
    """With the steps of the budget and the evaluations of the plan."""
    changed: dict[str, tuple[Any, Any]]
    """Dotted keys in which it differs from the base, with both values; empty for the base."""
    seeds: tuple[int, ...]
    extended_steps: int
    """Steps of an extended run; those of the budget where nothing is extended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study ready to run; the base is its first variant."""

    file: Path
    name: str
    plan: StudyFile
    variants: tuple[Variant, ...]
    notes: tuple[str, ...]

    @property
    def base(self) -> Variant:
        return self.variants[0]

    def variant(self, name: str) -> Variant:
        return next(x for x in self.variants if x.name == name)


def load_study(path: Path) -> Study:
    """Read, expand and check a study.

    Raises:
        InputError: every fault of the file and of its variants in one message, by dotted key; a
            variant equal to the base or to another; a name used twice.
    """
    plan = _parse(path, read_toml(path))
    faults: list[str] = []
    _check_planned(plan, faults)
    base = _try(faults, lambda: _resolve(plan, None))
    if base is None:
        raise _all(path, faults)
    changes = _changes(plan, base, faults)
    resolved: dict[str, Config] = {}
    abouts: dict[str, str] = {}
    notes: list[str] = []
    for change in changes:
        config = _try(faults, lambda change=change: _resolve(plan, change))
        if config is None:
            continue
        twin = next((n for n, c in resolved.items() if same(c, config)), None)
        if same(base, config):
            if change.from_grid:
                notes.append(f"the grid's cell {change.name} is the base, which stands for it")
            else:
                faults.append(f"variants.{change.name}: it is equal to the base; change something")
        elif twin is not None and change.from_grid:
            notes.append(f"the grid's cell {change.name} is {twin}, which stands for it")
        elif twin is not None:
            faults.append(f"variants.{change.name}: it is equal to the variant {twin!r}")
        else:
            resolved[change.name] = config
            abouts[change.name] = change.about
    called = plan.base.name or base.recipe
    if isinstance(plan.stages.extend, tuple):
        unknown = [n for n in plan.stages.extend if n != called and n not in resolved]
        faults += [f"stages.extend: no variant {n!r}{nearest(n, resolved)}" for n in unknown]
    alone = not resolved and "replicates" not in plan.sets
    if alone and not faults:
        faults.append("there is no variant: give [variants.NAME], [grid.NAME] or sets = [...]")
    if faults:
        raise _all(path, faults)
    named = {called: base, **resolved}
    return Study(
        file=path,
        name=plan.name or path.stem,
        plan=plan,
        variants=tuple(
            _variant(plan, name, config, abouts.get(name, ""), base)
            for name, config in named.items()
        ),
        notes=tuple(notes),
    )


def same(a: Config, b: Config) -> bool:
    """Whether two configurations compute the same: all but the recipe's name, length and plan."""
    return not changed_keys(a, b)


def changed_keys(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    aside = ("recipe", "steps", "evaluation.every")  # a name, and what follows from the batch
    return {k: pair for k, pair in differences(a, b).items() if k not in aside}


def _variant(plan: StudyFile, name: str, config: Config, about: str, base: Config) -> Variant:
    own = plan.base.seeds if config is base and plan.base.seeds else plan.seeds
    extended = plan.stages.extend_to
    return Variant(
        name=name,
        about=about or (f"the recipe {config.recipe}" if config is base else ""),
        config=config,
        changed=changed_keys(base, config),
        seeds=own,
        extended_steps=_steps(plan, extended, config, base) if extended else config.steps,
    )


def _steps(plan: StudyFile, steps: int, config: Config, base: Config) -> int:
    """As many steps as give the base's number of completions, if that is what is held equal."""
    if plan.budget.equal == "steps":
        return steps

    def size(c: Config) -> int:
        return c.batch.groups * c.batch.completions

    return max(1, round(steps * size(base) / size(config)))


def _resolve(plan: StudyFile, change: v.Change | None) -> Config:
    """Recipe < what a study runs with < base.settings < the variant's change; None: the base."""
    where = f"variants.{change.name}" if change else "base"
    settings = dict(change.settings) if change else {}
    recipe = settings.pop("recipe", plan.base.recipe)
    if not isinstance(recipe, str) or recipe not in recipe_names():
        known = recipe_names()
        near = nearest(str(recipe), known)
        raise InputError(
            f"{where}.recipe: no recipe {recipe!r}{near}; there are: {', '.join(known)}"
        )
    tree: dict[str, Any] = {}
    sources: dict[str, str] = {}
    merge(tree, tomllib.loads(recipe_text(recipe)), f"recipe {recipe}", sources)
    merge(tree, {"execution": {"mode": "interleaved", "threads": 1}}, "study", sources)
    merge(tree, plan.base.settings, "base.settings", sources)
    merge(tree, settings, where, sources)
    tree |= {"recipe": recipe, "steps": plan.budget.steps}
    tree["evaluation"] = {"completions": plan.evaluation.completions}
    config = validated(tree, sources)
    if change and plan.budget.equal == "completions":
        tree["steps"] = _steps(plan, plan.budget.steps, config, _resolve(plan, None))
    tree["evaluation"]["every"] = max(1, round(tree["steps"] / plan.evaluation.points))
    return validated(tree, sources)


def _changes(plan: StudyFile, base: Config, faults: list[str]) -> list[v.Change]:
    """Every change of the file, ready-made ones first."""
    changes = [c for name in plan.sets for c in v.ready_made(name, base)]
    for name, settings in plan.variants.items():
        about = settings.get("about", "")
        rest = {k: value for k, value in settings.items() if k != "about"}
        if not rest:
            faults.append(f"variants.{name}: it changes nothing")
            continue
        changes.append(v.Change(name=name, settings=rest, about=str(about)))
    for name, settings in plan.grid.items():
        choices = dict(v.dotted(settings))
        bad = [k for k, value in choices.items() if not isinstance(value, list) or not value]
        faults += [f"grid.{name}.{k}: give a list of values" for k in bad]
        if not bad:
            changes += v.grid(name, choices)
    names = [c.name for c in changes]
    for name in dict.fromkeys(names):
        if name == (plan.base.name or base.recipe) or names.count(name) > 1:
            faults.append(f"variants.{name}: the name is used twice")
        elif not NAME.fullmatch(name) or name == STARTS:
            faults.append(f"variants.{name}: a name is a folder: letters, digits and . _ = + -")
    return changes


def _check_planned(plan: StudyFile, faults: list[str]) -> None:
    """A run's length, seed and evaluations are the study's to say."""
    given = {"base.settings": plan.base.settings}
    given |= {f"variants.{n}": s for n, s in plan.variants.items()}
    given |= {f"grid.{n}": s for n, s in plan.grid.items()}
    for where, settings in given.items():
        for key, _ in v.dotted(settings):
            allowed = key == "recipe" and where.startswith(("variants.", "grid."))
            if key in PLANNED and not allowed:
                faults.append(f"{where}.{key}: a study sets it: give {PLANNED[key]}")


def _parse(path: Path, tree: Mapping[str, Any]) -> StudyFile:
    try:
        return StudyFile.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(e) for e in error.errors(include_url=False)]
        raise _all(path, lines) from None


def _explain(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        section, _, last = key.rpartition(".")
        names = _keys_of(section)
        return f"unknown key {key!r}{nearest(last, names)}; there are: {', '.join(names)}"
    message = error["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(error["input"], Mapping) else f" (given: {error['input']!r})"
    return f"{key + ': ' if key else ''}{message}{shown}"


def _keys_of(section: str) -> list[str]:
    sections: dict[str, type[Section]] = {
        "base": Base, "budget": Budget, "evaluation": Plan, "stages": Stages, "race": Race,
    }  # fmt: skip
    return list(sections.get(section, StudyFile).model_fields)


def _try(faults: list[str], make: Any) -> Config | None:
    """The configuration, or its faults added, each once."""
    try:
        return make()
    except InputError as error:
        lines = str(error).split("\n  ")
        found = lines[1:] if len(lines) > 1 else lines
        faults += [line for line in found if line not in faults]
        return None


def _all(path: Path, faults: list[str]) -> InputError:
    count = f"{len(faults)} faults in the study:\n  " if len(faults) > 1 else ""
    return InputError(f"{path}: {count}" + "\n  ".join(faults))
