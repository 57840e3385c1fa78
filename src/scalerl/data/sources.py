"""From sources to prompts: read, check, split, mix. Every fault is reported, none passed over.

files, hub, generators, tasksets ─→ candidates ─→ one each ─→ training | held out ─→ mixed
                                 └───────┴── problems ──┘
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scalerl.config.tasks import Source
from scalerl.data.candidates import Candidate, read_rows
from scalerl.data.contamination import near_problems
from scalerl.data.generators import CHAIN, GYM, read_chain, read_reasoning_gym
from scalerl.data.overlap import is_heldout, overlaps
from scalerl.data.problems import Problem, report
from scalerl.data.template import Tokenizer, opens_thinking
from scalerl.data.verifiers import VERIFIERS, read_taskset
from scalerl.errors import InputError
from scalerl.messages import Prompt

OWN_ONLY = (GYM[:-1], VERIFIERS[:-1])  # rewards that need an entry of their own source


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReward:
    """How the answers of a task are checked."""

    reward: str  # math, exact, code, reasoning_gym, verifiers, or package.module:function
    threshold: float = 1.0  # a score of at least this is correct


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Prompts ready for a run, and all that was found wrong on the way."""

    training: list[Prompt]
    heldout: list[Prompt]
    tasks: dict[str, TaskReward]
    details: dict[str, dict[str, Any]]  # by prompt id: what a reward needs beside the gold answer
    problems: list[Problem] = field(default_factory=list)
    rows: int = 0
    thinking_open: bool = False  # the chat template ends inside the thinking


def load_prompts(
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    *,
    heldout_share: float,
    max_prompt_tokens: int,
    refuse: bool = True,
) -> Loaded:
    """All prompts of all sources.

    A prompt that occurs again is used once and counted; one that occurs with other answers is an
    error. Held-out prompts are chosen by content; one that is among the training prompts is an
    error, one that nearly is a warning.

    Args:
        heldout_share: share of each source with `use = "both"` that is held out.
        max_prompt_tokens: longest prompt, chat template included; a longer one is an error.
        refuse: raise where there are errors; else leave those rows out, and report them.

    Raises:
        InputError: a source that cannot be read, no prompts, or errors with `refuse`.
    """
    candidates, problems = _read(sources, tokenizer, max_prompt_tokens)
    sides: dict[bool, list[Candidate]] = {False: [], True: []}
    for candidate in candidates:
        sides[_side(candidate, heldout_share)].append(candidate)
    training, heldout = (_one_each(sides[side], problems) for side in (False, True))
    training = _apart(training, heldout, problems)
    errors = sum(problem.level == "error" for problem in problems)
    if errors and refuse:
        raise InputError(
            f"{errors} errors in the data; mend them, or leave those rows out with "
            f"data.on_error = 'drop':\n{report(problems)}"
        )
    training = _mixed(training, sources)
    used = [*training, *heldout]
    if not training:
        raise InputError(f"no training prompts are left\n{report(problems)}".strip())
    return Loaded(
        training=[c.prompt for c in training],
        heldout=[c.prompt for c in heldout],
        tasks=_tasks(used),
        details={c.prompt.id: c.detail for c in used if c.detail},
        problems=problems,
        rows=len(candidates) + errors,
        thinking_open=opens_thinking(tokenizer),
    )


def check_sources(
    sources: Sequence[Source], tokenizer: Tokenizer, max_prompt_tokens: int
) -> tuple[list[Candidate], list[Candidate], list[Problem]]:
    """Every readable row, one candidate a prompt, and all problems of all sources together.

    Raises:
        InputError: a source cannot be read at all.
    """
    candidates, problems = _read(sources, tokenizer, max_prompt_tokens)
    return candidates, _one_each(candidates, problems), problems


def _read(
    sources: Sequence[Source], tokenizer: Tokenizer, max_prompt_tokens: int
) -> tuple[list[Candidate], list[Problem]]:
    candidates: list[Candidate] = []
    problems: list[Problem] = []
    for source in sources:
        for item in _read_source(source, tokenizer, max_prompt_tokens):
            if isinstance(item, Problem):
                problems.append(item)
            else:
                candidates.append(item)
    return candidates, problems


def _read_source(
    source: Source, tokenizer: Tokenizer, max_prompt_tokens: int
) -> Iterator[Candidate | Problem]:
    """Candidates and problems of a source, in its own order.

    Raises:
        InputError: the source as a whole cannot be read.
    """
    if source.reward in OWN_ONLY and not source.path.startswith(f"{source.reward}:"):
        raise InputError(
            f"{source.path}: reward {source.reward!r} scores nothing but {source.reward}:… sources"
            ": choose another"
        )
    if source.path.partition("?")[0] == CHAIN:
        found: Iterator[Candidate | Problem] = read_chain(source, tokenizer)
    elif source.path.startswith(GYM):
        found = read_reasoning_gym(source, tokenizer)
    elif source.path.startswith(VERIFIERS):
        found = read_taskset(source, tokenizer)
    else:
        found = read_rows(source, tokenizer)
    for item in found:
        if isinstance(item, Candidate) and len(item.prompt.token_ids) > max_prompt_tokens:
            text = (
                f"{len(item.prompt.token_ids)} tokens with the chat template, the limit is "
                f"{max_prompt_tokens}: remove it or raise data.max_prompt_tokens (a question is "
                "never cut: without its end it is another)"
            )
            yield item.problem("error", "prompt too long", text)
        else:
            yield item


def _side(candidate: Candidate, share: float) -> bool:
    match candidate.use:
        case "train":
            return False
        case "heldout":
            return True
        case _:
            return is_heldout(candidate.prompt.id, share)


def _one_each(candidates: Iterable[Candidate], problems: list[Problem]) -> list[Candidate]:
    """The first of each prompt; of contradicting ones none."""
    same: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        same[candidate.prompt.id].append(candidate)
    kept: list[Candidate] = []
    files: dict[str, list[list[Candidate]]] = defaultdict(list)
    for copies in same.values():
        first = copies[0]
        answers = Counter(c.golds for c in copies)
        if len(answers) > 1:
            shown = ", ".join(repr(" | ".join(golds)) for golds in list(answers)[:4])
            lines = ", ".join(c.where for c in copies[:6])
            text = f"the same prompt with answers {shown} ({lines}): keep the right one"
            problems.append(first.problem("error", "conflicting answers", text))
            continue
        kept.append(first)
        files[first.file].append(copies)
    for file, prompts in files.items():
        problems += _duplicates(file, prompts)
    return kept


def _duplicates(file: str, prompts: list[list[Candidate]]) -> Iterable[Problem]:
    """What is said about the copies of a file: a line each, or one where all are alike."""
    repeated = [copies for copies in prompts if len(copies) > 1]
    if not repeated:
        return
    first, counts = repeated[0][0], sorted({len(copies) for copies in prompts})
    text = ""
    if not first.compared:
        count = sum(len(copies) - 1 for copies in repeated)
        text = f"{count} entries had been generated before, each is used once"
    elif first.use == "heldout" and counts[0] > 1:
        times = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        text = (
            f"each of its {len(prompts)} prompts occurs {times} times, as files for mean@k are "
            "written, and is used once: evaluation.completions says how often it is sampled"
        )
    if text:
        yield Problem(file=file, line=0, level="warning", kind="duplicate prompt", text=text)
        return
    for copies in repeated:
        one, *others = copies
        lines = ", ".join(c.where for c in others[:4]) + (" …" if len(others) > 4 else "")
        text = f"occurs {len(copies)} times, used once (again: {lines})"
        yield one.problem("warning", "duplicate prompt", text)


def _apart(
    training: list[Candidate], heldout: list[Candidate], problems: list[Problem]
) -> list[Candidate]:
    """Training prompts without those that are held out; what is nearly held out is reported."""
    tested = [c for c in heldout if c.compared]
    written = [c for c in training if c.compared]
    ids = {c.prompt.id: c for c in heldout}
    for candidate in training:
        if other := ids.get(candidate.prompt.id):
            text = f"is also held out ({other.where}): remove it from one of the two"
            problems.append(candidate.problem("error", "held-out prompt in training", text))
    found = overlaps([c.prompt.text for c in written], [c.prompt.text for c in tested])
    problems += near_problems(written, tested, found, "nearly a held-out prompt")
    return [c for c in training if c.prompt.id not in ids]


def _mixed(training: list[Candidate], sources: Sequence[Source]) -> list[Candidate]:
    """By the weights of the sources; which prompts stay is decided by their content."""
    weights = {i: s.weight for i, s in enumerate(sources) if s.use != "heldout"}
    if all(weight is None for weight in weights.values()):
        return training
    if None in weights.values():
        raise InputError("data.sources: give every training source a weight, or none")
    groups: dict[int, list[Candidate]] = {
        i: [c for c in training if sources[i].path == c.path] for i in weights
    }
    scale = min(len(groups[i]) / float(weights[i] or 1) for i in weights)
    kept: set[str] = set()
    for i, weight in weights.items():
        count = round(scale * float(weight or 1))
        chosen = sorted(groups[i], key=lambda c: c.prompt.id)[:count]
        kept.update(c.prompt.id for c in chosen)
    return [c for c in training if c.prompt.id in kept]


def _tasks(candidates: Iterable[Candidate]) -> dict[str, TaskReward]:
    tasks: dict[str, TaskReward] = {}
    for candidate in candidates:
        reward = TaskReward(reward=candidate.reward, threshold=candidate.threshold)
        known = tasks.setdefault(candidate.prompt.task, reward)
        if known != reward:
            raise InputError(
                f"data.sources: task {candidate.prompt.task!r} is checked in two ways "
                f"({known.reward} and {reward.reward}): give the sources different task names"
            )
    return tasks


def tasks_of(prompts: Iterable[Prompt]) -> Mapping[str, int]:
    """How many prompts each task has, in order of appearance."""
    return Counter(prompt.task for prompt in prompts)
