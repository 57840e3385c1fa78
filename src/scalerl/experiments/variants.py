"""Variants of a study: a recipe plus one named change each, written out, ready-made, or a grid.

leave_one_out   one axis of `scalerl` back to the baseline's choice        (paper 4, Fig. 7)
forward         one axis of `base` at a time to another choice             (paper 3.2)
recipes         the other recipes of the paper's comparison                (paper, Fig. 2)
axes            batch, completions a prompt, generation budget, model size (paper 5)
precision       the body in bfloat16, with and without an FP32 head        (paper 3.2)
replicates      nothing changed: only seeds, for the spread between runs   (paper, Fig. 8a)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scalerl.config import Config, recipe_names
from scalerl.config.axes import Interruption

Tree = dict[str, Any]
SETS = ("leave_one_out", "forward", "recipes", "axes", "precision", "replicates")
SHORTER, LONGER = 0.7, 1.4
"""Generation budgets of `axes`, as multiples of the base's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One named change of the base, not yet validated."""

    name: str
    settings: Tree
    """Laid over the base; `recipe` inside it changes the recipe."""
    about: str = ""
    from_grid: bool = False
    """A cell of a grid that is the base itself stands for it, and is no fault."""


def ready_made(name: str, base: Config) -> list[Change]:
    """The changes of one ready-made set, for this base."""
    match name:
        case "leave_one_out":
            return _leave_one_out(base)
        case "forward":
            return _forward(base)
        case "recipes":
            return [
                Change(name=r, settings={"recipe": r}, about=f"the recipe {r}")
                for r in recipe_names()
                if r != base.recipe
            ]
        case "axes":
            return _axes(base)
        case "precision":
            return _precision()
        case "replicates":
            return []
    raise AssertionError(name)


def grid(name: str, choices: Mapping[str, list[Any]]) -> list[Change]:
    """Every combination of the choices; `choices` maps dotted keys to their values."""
    cells: list[Change] = []
    for values in itertools.product(*choices.values()):
        settings: Tree = {}
        for key, value in zip(choices, values, strict=True):
            put(settings, key, value)
        label = "-".join([name, *(_word(v) for v in values)])
        cells.append(Change(name=label, settings=settings, from_grid=True))
    return cells


def put(tree: Tree, key: str, value: Any) -> None:
    """`put(tree, "loss.type", "dapo")` sets tree["loss"]["type"]."""
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


def dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a tree under their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("ppo_off_policy", "off").replace("/", "_")


def _change(name: str, about: str, **settings: Any) -> Change:
    """`_change("dapo", "…", loss__type="dapo")`: two underscores stand for the dot."""
    tree: Tree = {}
    for key, value in settings.items():
        put(tree, key.replace("__", "."), value)
    return Change(name=name, settings=tree, about=about)


def _leave_one_out(base: Config) -> list[Change]:
    limit = base.sampling.max_new_tokens
    half = _change("no_fp32_head", "LM head as the body: bfloat16", model__fp32_head=False)
    if base.model.weights == "float32":  # the head of a float32 model is FP32 anyway
        half = _change(
            "no_fp32_head",
            "body and head in bfloat16: with a float32 body the head would be FP32 anyway",
            model__fp32_head=False,
            model__weights="bfloat16",
        )
    k = getattr(base.regime, "k", 8)
    return [
        _change(
            "prompt_advantage",
            "advantages divided by the SD of their own prompt",
            algorithm__advantage="prompt",
        ),
        _change(
            "length_penalty",
            "a length penalty in place of interruptions",
            length__type="penalty",
            length__limit=limit,
            length__cache=max(1, limit // 6),
        ),
        _change(
            "keep_zero_variance",
            "groups without variance stay in the batch",
            algorithm__zero_variance="keep",
        ),
        _change(
            "off_policy",
            f"PPO-off-policy with k = {k} in place of streaming",
            regime__type="ppo_off_policy",
            regime__k=max(1, k),
        ),
        half,
        _change("sample_average", "every completion counts alike", algorithm__aggregation="sample"),
        _change("dapo", "DAPO's loss", loss__type="dapo"),
        _change("uniform_sampling", "no curriculum", curriculum__type="uniform"),
    ]


def _forward(base: Config) -> list[Change]:
    k = getattr(base.regime, "k", 8)
    return [
        _change("pipeline", f"streaming, k = {k}", regime__type="pipeline", regime__k=k),
        _change("cispo", "CISPO's loss", loss__type="cispo"),
        _change("gspo", "GSPO's loss", loss__type="gspo"),
        _change("fp32_head", "LM head in FP32 on both sides", model__fp32_head=True),
        _change("prompt_average", "every prompt counts alike", algorithm__aggregation="prompt"),
        _change("token_average", "every token counts alike", algorithm__aggregation="token"),
        _change(
            "batch_advantage",
            "advantages divided by the SD of the batch",
            algorithm__advantage="batch",
        ),
        _change("plain_advantage", "advantages not divided", algorithm__advantage="none"),
        _change(
            "filter_zero_variance",
            "groups without variance leave the batch",
            algorithm__zero_variance="filter",
        ),
        _change(
            "no_positive_resampling",
            "prompts passed at .9 or more are retired",
            curriculum__type="no_positive_resampling",
        ),
    ]


def _axes(base: Config) -> list[Change]:
    prompts, completions = base.batch.prompts, base.batch.completions
    changes = [
        _change("batch_half", "half the prompts a step", batch__prompts=max(1, prompts // 2)),
        _change("batch_double", "twice the prompts a step", batch__prompts=prompts * 2),
        _change(
            "completions_half",
            "half the completions a prompt, twice the prompts",
            batch__completions=max(2, completions // 2),
            batch__prompts=prompts * 2,
        ),
        _change(
            "completions_double",
            "twice the completions a prompt, half the prompts",
            batch__completions=completions * 2,
            batch__prompts=max(1, prompts // 2),
        ),
        _budget(base, "budget_short", SHORTER),
        _budget(base, "budget_long", LONGER),
    ]
    if base.model.path:
        return changes
    tiny = base.model.tiny
    for name, about, factor in (
        ("model_small", "half as wide", 0.5),
        ("model_large", "twice as wide", 2),
    ):
        changes.append(
            _change(
                name,
                about,
                model__tiny__hidden=int(tiny.hidden * factor),
                model__tiny__feed_forward=int(tiny.feed_forward * factor),
            )
        )
    return changes


def _budget(base: Config, name: str, factor: float) -> Change:
    """Another length limit, with the thinking budget moved along."""
    old = base.sampling.max_new_tokens
    new = max(2, round(old * factor))
    change = _change(name, f"{new} tokens a completion in place of {old}")
    put(change.settings, "sampling.max_new_tokens", new)
    if isinstance(base.length, Interruption):
        put(change.settings, "length.low", max(1, base.length.low + new - old))
        put(change.settings, "length.high", max(1, base.length.high + new - old))
    elif base.length.type == "penalty":
        put(change.settings, "length.limit", max(1, base.length.limit + new - old))
    return change


def _precision() -> list[Change]:
    return [
        _change(
            "bfloat16_body",
            "body in bfloat16, head in FP32",
            model__weights="bfloat16",
            model__fp32_head=True,
        ),
        _change(
            "bfloat16_all",
            "body and head in bfloat16",
            model__weights="bfloat16",
            model__fp32_head=False,
        ),
    ]
