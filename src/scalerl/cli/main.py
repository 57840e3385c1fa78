"""`scalerl COMMAND …`: finds the command, runs it, and turns every end into an exit code.

    0 success   1 a run failed   2 bad usage or bad input   130 Ctrl-C   143 SIGTERM

A command's module is imported only when it is the one asked for: `scalerl fit` never loads torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from scalerl import __version__
from scalerl.errors import InputError, RunError

COMMANDS = {
    "train": "train by reinforcement learning; a run directory with a curve comes out",
    "sft": "make the start model: the supervised stage before RL",
    "eval": "mean@k and pass@k of a model on the held-out prompts",
    "fit": "fit a compute curve, with intervals, a verdict and forecasts",
    "compare": "compare the ceilings and speeds of two or more curves",
    "study": "many runs as one experiment: variants, seeds, a race, a verdict on each axis",
    "report": "one self-contained page about a run, or about several",
    "data": "check prompt files: everything that is wrong with them in one go",
    "recipes": "what each recipe sets, and why",
    "simulate": "idle shares, staleness and throughput of a split of devices, without them",
    "doctor": "what this machine can run",
    "demo": "the whole road on a laptop: train, fit half, check the forecast, report",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the console script exits with what this returns."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        print(f"scalerl {__version__}")
        return 0
    command = words[0]
    if command not in COMMANDS:
        return _fail(f"no command {command!r}; there are: {', '.join(COMMANDS)}", 2)
    try:
        module = importlib.import_module(f"scalerl.cli.{command}")
        parser = argparse.ArgumentParser(
            prog=f"scalerl {command}",
            description=module.HELP,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(parser)
        if hasattr(module, "parse"):
            arguments = module.parse(parser, words[1:])
        else:
            arguments = parser.parse_args(words[1:])
        return int(module.run(arguments))
    except InputError as error:
        return _fail(str(error), 2)
    except RunError as error:
        return _fail(str(error), 1)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("scalerl"):
            raise
        return _fail(
            f"`scalerl {command}` needs the package {error.name}: pip install 'scalerl[train]'", 2
        )
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "scalerl: reinforcement learning of language models, and forecasts of where a run ends",
            "",
            "usage: scalerl COMMAND [...]        scalerl COMMAND --help",
            "",
            *lines,
        ]
    )


def _fail(message: str, code: int) -> int:
    print(f"scalerl: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
