"""`scalerl data check`: all that is wrong with prompt files, in one go."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalerl.config.tasks import Source
from scalerl.data.candidates import Candidate
from scalerl.data.columns import SHAPES
from scalerl.data.contamination import near_problems
from scalerl.data.overlap import overlaps
from scalerl.data.problems import Problem, report
from scalerl.data.sources import check_sources
from scalerl.data.template import Tokenizer
from scalerl.errors import InputError
from scalerl.rewards.gold_check import gold_fault

HELP = """Check prompt files: counts, duplicates, contradicting, missing and unreadable answers,
prompts that are too long, wrong encodings, overlap with benchmarks. Ends with 2 where there are
errors, with 0 where there are none; the report goes to standard output."""

UNLIMITED = 1 << 60


class _Characters:
    """Stands in for a tokenizer where none was given: every character can be encoded."""

    bos_token_id = None
    chat_template = None

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Any) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["check"], help="what to do")
    parser.add_argument("files", nargs="+", metavar="FILE", help=".jsonl, .parquet, .csv, hub:…")
    parser.add_argument(
        "--columns", default="", help=f"published shape of the rows: {', '.join(SHAPES)}"
    )
    parser.add_argument("--prompt", default="", help="column of the prompt")
    parser.add_argument("--answer", default="", help="column of the answer")
    parser.add_argument("--reward", default="", help="math, exact or code; default: the shape's")
    parser.add_argument("--tokenizer", default="", help="model folder, to count tokens by")
    parser.add_argument(
        "--max-prompt-tokens", type=int, default=2048, help="with the chat template (2048)"
    )
    parser.add_argument(
        "--against", action="append", default=[], help="file of a benchmark; may be repeated"
    )
    parser.add_argument("--show", type=int, default=20, help="problems shown of each kind (20)")


def run(arguments: argparse.Namespace) -> int:
    tokenizer = _tokenizer(arguments.tokenizer)
    limit = arguments.max_prompt_tokens if arguments.tokenizer else UNLIMITED
    sources = [_source(path, arguments) for path in arguments.files]
    candidates, kept, problems = check_sources(sources, tokenizer, limit)
    for candidate in kept:
        for gold in candidate.golds:
            if fault := gold_fault(candidate.reward, gold):
                level = "error" if candidate.reward == "code" else "warning"
                problems.append(candidate.problem(level, "unreadable answer", fault))
    problems += _contamination(kept, arguments, tokenizer)
    if problems:
        print(report(problems, show=arguments.show))
        print()
    errors = sum(problem.level == "error" for problem in problems)
    refused = len({p.where for p in problems if p.level == "error"})
    lengths = sorted(len(c.prompt.token_ids) for c in kept)
    unit = "tokens" if arguments.tokenizer else "characters"
    longest = f"; longest prompt {lengths[-1]} {unit}" if lengths else ""
    print(
        f"{len(candidates)} readable rows, {len(kept)} different prompts"
        f"{longest}; {errors} errors in {refused} places, {len(problems) - errors} warnings"
    )
    if not arguments.tokenizer:
        print("lengths in tokens were not checked: give --tokenizer MODEL")
    if not kept:
        print("no usable prompt")
    return 2 if errors or not kept else 0


def _source(path: str, arguments: argparse.Namespace) -> Source:
    return Source(
        path=path,
        columns=arguments.columns,
        prompt=arguments.prompt,
        answer=arguments.answer,
        reward=arguments.reward,
    )


def _tokenizer(path: str) -> Tokenizer:
    if not path:
        return _Characters()
    from scalerl.model.load import load_tokenizer

    return load_tokenizer(Path(path))  # type: ignore[return-value]


def _contamination(
    kept: Sequence[Candidate], arguments: argparse.Namespace, tokenizer: Tokenizer
) -> list[Problem]:
    problems: list[Problem] = []
    texts = [c.prompt.text for c in kept]
    for path in arguments.against:
        name = Path(path).stem
        source = Source(path=path, columns=name if name in SHAPES else arguments.columns)
        _, benchmark, faults = check_sources([source], tokenizer, UNLIMITED)
        if not benchmark:
            raise InputError(f"{path}: no usable prompt to compare with\n{report(faults)}")
        found = overlaps(texts, [c.prompt.text for c in benchmark])
        for overlap in (o for o in found if o.kind == "exact"):
            text = f"is in {benchmark[overlap.other].where}: remove it"
            problems.append(kept[overlap.index].problem("error", "exact overlap", text))
        problems += near_problems(kept, benchmark, found, "near overlap")
    return problems
