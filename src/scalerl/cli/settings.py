"""Command lines that mix files, options and `--section.key value` settings."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

SETTINGS_HELP = """
Settings come in layers: defaults < recipe < CONFIG files in order < --section.key VALUE.
Any setting can be given on the command line, for example --steps 50 --loss.type gspo
--optimizer.lr=1e-3. A run writes all of them, resolved, to config.toml, which is a CONFIG itself.
"""


def parse_with_settings(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> argparse.Namespace:
    """Parse the options that `parser` knows; the other `--key value` words become
    `arguments.settings`, in order."""
    takes_value = {
        option: action.nargs != 0 for action in parser._actions for option in action.option_strings
    }
    known: list[str] = []
    settings: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word.partition("=")[0]
        mine = settings if word.startswith("--") and name not in takes_value else known
        mine.append(word)
        if mine is known and not takes_value.get(name, False):
            continue
        if "=" not in word and rest:
            mine.append(rest.pop(0))
    arguments = parser.parse_intermixed_args(known)
    arguments.settings = settings
    return arguments
