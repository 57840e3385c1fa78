"""From recipe, files and command line to one validated `Config`.

    defaults < recipe < files, in order < --section.key VALUE

A layer that changes the `type` of an axis drops what lower layers set for the old type, so that
each form starts from its own defaults.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from scalerl.config.schema import Config
from scalerl.config.section import Conflict, Conflicts
from scalerl.errors import InputError

Tree = dict[str, Any]

# What other trainers call it: only used to name the nearest key in an error message.
ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "lr": "optimizer.lr",
    "warmup_steps": "optimizer.warmup_steps",
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
    """The configuration of a merged tree. `sources`: who set each dotted key, the latest last."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        faults = found = _faults(error, tree)
    while found:  # what is bad hides other faults of its section and of the whole: again without it
        bad = [key for fault in faults for key in fault.keys]
        try:
            Config.model_validate(_without(bad, tree))
            break
        except ValidationError as error:
            found = [f for f in _faults(error, tree) if not _overlap(f.keys, bad)]
            faults = faults + found
    lines = [_line(fault, sources) for fault in faults]
    count = f"{len(lines)} faults in the configuration" if len(lines) > 1 else "configuration"
    raise InputError(f"{count}:\n  " + "\n  ".join(lines))


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

    A value is read as TOML (`5`, `1e-3`, `true`, `"text"`, `[1, 2]`), and `.5` as a number; what is
    neither is text.
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
            sources.pop(path, None)  # the latest stands last
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


def _faults(error: ValidationError, tree: Mapping[str, Any]) -> list[Conflict]:
    """Every fault with the dotted keys it is about."""
    faults: list[Conflict] = []
    for e in error.errors(include_url=False):
        path = _dotted(e["loc"], tree)
        cause = e.get("ctx", {}).get("error")
        if isinstance(cause, Conflicts):
            for keys, reason in cause.found:
                full = tuple(f"{path}.{key}" if path else key for key in keys)
                faults.append(Conflict(full, reason))
        elif e["type"] == "extra_forbidden":
            faults.append(Conflict((path,), f"unknown key {path!r}{_hint(path, tree)}"))
        else:
            given = e["input"]
            shown = "" if isinstance(given, Mapping | BaseModel) else f" (given: {given!r})"
            faults.append(Conflict((path,), f"{e['msg'].removeprefix('Value error, ')}{shown}"))
    return faults


def _line(fault: Conflict, sources: Mapping[str, str]) -> str:
    """`SOURCE: KEY: reason`, of the layer that set one of the keys last."""
    source, key = "configuration", fault.keys[0]
    touched = [(k, s) for k in fault.keys for s in sources if _overlap([k], [s])]
    if touched:
        order = list(sources)
        source = sources[max((s for _, s in touched), key=order.index)]
        key = next(k for k, s in touched if sources[s] == source)
    named = fault.reason.startswith((f"{key} ", "unknown key"))
    return f"{source}: {fault.reason}" if named else f"{source}: {key}: {fault.reason}"


def _overlap(keys: Iterable[str], others: Sequence[str]) -> bool:
    """Whether a dotted key of one is, holds, or is within, one of the others."""
    pairs = [(f"{key}.", f"{other}.") for key in keys for other in others]
    return any(a.startswith(b) or b.startswith(a) for a, b in pairs)


def _without(keys: Iterable[str], tree: Mapping[str, Any]) -> Tree:
    """A copy of `tree` without these dotted keys; without a whole list for one of its entries."""
    rest = copy.deepcopy(dict(tree))
    for key in keys:
        node = rest
        *path, last = key.split(".")
        for part in path:
            if not isinstance(node.get(part), dict):
                last = part
                break
            node = node[part]
        node.pop(last, None)
    return rest


def _hint(path: str, tree: Mapping[str, Any]) -> str:
    """The nearest key, of the same section if one there is near, else of all."""
    *sections, last = (part for part in path.split(".") if not part.isdigit())
    section = ".".join(sections)
    known = known_keys()
    if path in known:
        form = tree.get(section, {}).get("type", "the chosen type")
        return f": it is no setting of {section}.type = {form!r}"
    inside = f"{section}." if section else ""
    here = [k.removeprefix(inside).split(".")[0] for k in known if k.startswith(inside)]
    near = {name: f"{inside}{name}" for name in here}
    far = {k.rpartition(".")[2]: k for k in reversed(known)} | ELSEWHERE
    choices = [(near, 0.6), (far, 0.6), (near or far, 0.0)]
    if not section:
        choices.insert(0, (ELSEWHERE, 1.0))
    for names, cutoff in choices:
        if found := difflib.get_close_matches(last, names, n=1, cutoff=cutoff):
            key = names[found[0]]
            own = f"{inside}{key.rpartition('.')[2]}"
            return f" (nearest: {(own if own in known else key)!r})"
    return ""


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
        bare_point = re.fullmatch(r"[+-]?(\d+\.|\.\d+)([eE][+-]?\d+)?", text)  # .5 and 2.
        return float(text) if bare_point else text


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
