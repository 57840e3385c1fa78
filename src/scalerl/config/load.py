"""From recipe, files and command line to one validated `Config`.

    defaults < recipe < files, in order < --section.key VALUE

A layer that changes the `type` of an axis drops what lower layers set for the old type, so that
each form starts from its own defaults.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from scalerl.config.schema import Config
from scalerl.errors import InputError

Tree = dict[str, Any]

# What other trainers call it: only used to name the nearest key in an error message.
ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "max_steps": "steps",
    "num_generations": "batch.completions",
    "group_size": "batch.completions",
    "batch_size": "batch.prompts",
    "train_batch_size": "batch.prompts",
    "max_tokens": "sampling.max_new_tokens",
    "max_completion_length": "sampling.max_new_tokens",
    "temperature": "sampling.temperature",
    "epsilon": "loss.clip_low",
    "loss_type": "loss.type",
    "model_name_or_path": "model.path",
}


def recipe_names() -> list[str]:
    files = resources.files("scalerl.recipes").iterdir()
    return sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml"))


def recipe_text(name: str) -> str:
    """The recipe's TOML, comments and all."""
    if name not in recipe_names():
        raise InputError(
            f"no recipe named {name!r}{nearest(name, recipe_names())}; "
            f"there are: {', '.join(recipe_names())}"
        )
    return resources.files("scalerl.recipes").joinpath(f"{name}.toml").read_text("utf-8")


def load_config(
    files: Sequence[str | Path] = (),
    *,
    recipe: str | None = None,
    overrides: Sequence[str] = (),
) -> Config:
    """Validate all layers together.

    Args:
        files: TOML files, later ones win.
        recipe: a name of `recipe_names()`; a file's own `recipe` key is used when this is None.
        overrides: command-line words, `--section.key value` or `--section.key=value`.

    Raises:
        InputError: every fault of every layer in one message, each with its dotted key and source.
    """
    layers: list[tuple[str, Tree]] = [(str(f), read_toml(Path(f))) for f in files]
    layers.append(("command line", parse_overrides(overrides)))
    named = recipe or next(
        (tree["recipe"] for _, tree in reversed(layers) if "recipe" in tree), "scalerl"
    )
    if not isinstance(named, str):
        raise InputError(f"recipe: must be a name, not {named!r}")
    base = tomllib.loads(recipe_text(named))
    layers = [(f"recipe {named}", base), *layers]
    tree: Tree = {}
    sources: dict[str, str] = {}
    for source, layer in layers:
        merge(tree, layer, source, sources)
    tree["recipe"] = named
    return validated(tree, sources)


def validated(tree: Mapping[str, Any], sources: Mapping[str, str]) -> Config:
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(e, sources, tree) for e in error.errors(include_url=False)]
        count = f"{len(lines)} faults in the configuration" if len(lines) > 1 else "configuration"
        raise InputError(f"{count}:\n  " + "\n  ".join(lines)) from None


def read_toml(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None


def parse_overrides(words: Iterable[str]) -> Tree:
    """`['--loss.type', 'gspo', '--steps=5']` → `{'loss': {'type': 'gspo'}, 'steps': 5}`.

    A value is read as TOML (`5`, `1e-3`, `true`, `"text"`, `[1, 2]`); what is not TOML is text.
    """
    tree: Tree = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise InputError(f"command line: {word!r} is neither a file nor a --section.key")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or (rest[0].startswith("--") and not _is_number(rest[0])):
                raise InputError(f"command line: --{key} needs a value")
            value = rest.pop(0)
        node = tree
        *path, last = key.replace("-", "_").split(".")
        for part in path:
            node = node.setdefault(part, {})
        node[last] = _toml_value(value)
    return tree


def merge(tree: Tree, layer: Tree, source: str, sources: dict[str, str], prefix: str = "") -> None:
    """Lay `layer` over `tree` in place; `sources` learns where each dotted key came from."""
    for key, value in layer.items():
        path = f"{prefix}{key}"
        old = tree.get(key)
        if isinstance(value, dict):
            retyped = isinstance(old, dict) and value.get("type", old.get("type")) != old.get(
                "type"
            )
            if not isinstance(old, dict) or retyped:
                tree[key] = {}
            merge(tree[key], value, source, sources, f"{path}.")
        else:
            tree[key] = value
            sources[path] = source


def dump_toml(config: BaseModel) -> str:
    """The whole resolved configuration as TOML that `load_config` reads back to the same."""
    lines: list[str] = []
    _dump(config.model_dump(), "", lines)
    return "\n".join(lines).lstrip() + "\n"


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted keys whose values differ, with both values (None where a key is missing)."""
    before, after = flatten(old.model_dump()), flatten(new.model_dump())
    keys = dict.fromkeys([*before, *after])
    return {k: (before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nearest(word: str, names: Iterable[str]) -> str:
    """` (nearest: 'name')`, or nothing when no name is near."""
    found = difflib.get_close_matches(word, list(names), n=1, cutoff=0.5)
    return f" (nearest: {found[0]!r})" if found else ""


def known_keys() -> list[str]:
    """Every dotted key that some form of some axis has."""
    keys: list[str] = []
    _walk(Config, "", keys)
    return keys


def _walk(model: type[BaseModel], prefix: str, keys: list[str]) -> None:
    for name, field in model.model_fields.items():
        forms = _sections_of(field.annotation)
        for form in forms:
            _walk(form, f"{prefix}{name}.", keys)
        if not forms:
            keys.append(f"{prefix}{name}")


def _sections_of(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [s for part in getattr(annotation, "__args__", ()) for s in _sections_of(part)]


def _explain(error: Any, sources: Mapping[str, str], tree: Mapping[str, Any]) -> str:
    path = _dotted(error["loc"], tree)
    near = (
        s
        for k, s in sources.items()
        if path and (k.startswith(f"{path}.") or path.startswith(f"{k}."))
    )
    source = sources.get(path) or next(near, "configuration")
    if error["type"] == "extra_forbidden":
        return f"{source}: unknown key {path!r}{_hint(path, tree)}"
    message = error["msg"].removeprefix("Value error, ")
    given = error["input"]
    shown = "" if isinstance(given, Mapping | BaseModel) else f" (given: {given!r})"
    return f"{source}: {path + ': ' if path else ''}{message}{shown}"


def _hint(path: str, tree: Mapping[str, Any]) -> str:
    section, _, last = path.rpartition(".")
    if path in known_keys():
        form = tree.get(section, {}).get("type", "the chosen type")
        return f": it is no setting of {section}.type = {form!r}"
    if last in ELSEWHERE:
        return f" (nearest: {ELSEWHERE[last]!r})"
    same = [k for k in known_keys() if k.rpartition(".")[2] == last]
    return f" (nearest: {same[0]!r})" if same else nearest(path, known_keys())


def _dotted(loc: Sequence[Any], tree: Mapping[str, Any]) -> str:
    """The key the user wrote: pydantic adds the chosen form of a union to it; leave that out."""
    parts: list[str] = []
    node: Any = tree
    for item in loc:
        if isinstance(node, Mapping) and item not in node and item == node.get("type"):
            continue
        parts.append(str(item))
        node = node.get(item) if isinstance(node, Mapping) else None
    return ".".join(parts)


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _is_number(text: str) -> bool:
    return isinstance(_toml_value(text), int | float)


def _dump(tree: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    plain = {k: v for k, v in tree.items() if not isinstance(v, Mapping)}
    if prefix and plain:
        lines.append(f"\n[{prefix}]")
    lines.extend(f"{k} = {_literal(v)}" for k, v in plain.items() if v is not None)
    for key, value in tree.items():
        if isinstance(value, Mapping):
            _dump(value, f"{prefix}.{key}" if prefix else key, lines)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = (f"{k} = {_literal(v)}" for k, v in value.items() if v is not None)
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(v) for v in value) + "]"
    return repr(value)
