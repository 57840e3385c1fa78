"""Tasks of a `verifiers` taskset as prompts; its own rewards judge them (`rewards.verifiers`).

    verifiers:TASKSET?num_tasks=100&task.tolerance=0.1     settings of the taskset, by dotted key

One question, one answer in text: tasksets that need more (tools, a runtime, other agents, a judge
model) are refused as a whole, because a reward that cannot run would be left out in silence.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from scalerl.config.tasks import Source
from scalerl.data.candidates import Candidate, make_candidate, messages_of_row, row_problem
from scalerl.data.columns import Columns
from scalerl.data.generators import query_settings
from scalerl.data.golds import gold_answers
from scalerl.data.problems import Problem
from scalerl.data.records import Row
from scalerl.data.template import Tokenizer
from scalerl.errors import InputError

VERIFIERS = "verifiers:"
ANSWER = "answer"  # field of a task with its right answer, where the source names none
HOOKS = ("setup", "finalize", "stage_verifier", "runtime_env")  # of a task that needs a runtime
NOT_TEXT = ("image", "skills", "artifacts")  # fields of a task that are more than a question
COLUMNS = Columns(prompt="messages", answer=ANSWER, reward="exact")


def read_taskset(source: Source, tokenizer: Tokenizer) -> Iterator[Candidate | Problem]:
    """The tasks of an installed taskset, in its order, as far as `limit`.

    A task without a known right answer has the answer "", and cannot be tried before the run.

    Raises:
        InputError: `verifiers` or the taskset is missing, refuses its settings, or is of a kind
            that one answer in text cannot be scored for; says which.
    """
    vf = _package(source.path)
    name = source.path.removeprefix(VERIFIERS).partition("?")[0]
    settings = _nested(query_settings(source.path))
    try:
        config = vf.taskset_config_type(name).model_validate({"id": name, **settings})
        taskset = vf.load_taskset(config)
        fault = _taskset_fault(vf, name, taskset, source.limit)
        tasks = [] if fault else list(itertools.islice(taskset, source.limit or None))
        fault = fault or (_scoring_fault(vf, tasks[0]) if tasks else "has no tasks")
    except Exception as error:  # noqa: BLE001  the taskset's own code may raise anything
        raise InputError(
            f"{source.path}: the taskset does not load ({type(error).__name__}: {error}): install "
            "its package beside verifiers, or mend its settings"
        ) from None
    if fault:
        raise InputError(
            f"{source.path}: {fault}; only tasksets of one question and one answer in text can be "
            "used"
        )
    unknown = 0
    for line, task in enumerate(tasks, start=1):
        made = _candidate(source, name, settings, line, task, tokenizer)
        unknown += isinstance(made, Candidate) and not made.prompt.answer
        yield made
    if unknown:
        text = (
            f"{unknown} tasks have no field {ANSWER!r}, so that nobody knows whether a right "
            "answer scores: name the field with `answer`, if there is one"
        )
        yield Problem(file=source.path, line=0, level="warning", kind="no known answer", text=text)


def _package(path: str) -> Any:
    try:
        import verifiers.v1 as vf  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        vf = None
    if not hasattr(vf, "SingleAgentEnv"):
        raise InputError(
            f"{path}: needs verifiers 0.4 or later: pip install 'scalerl[verifiers]'"
        ) from None
    return vf


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"task.tolerance": 1} → {"task": {"tolerance": 1}}"""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return nested


def _taskset_fault(vf: Any, name: str, taskset: Any, limit: int) -> str | None:
    """Why the taskset as a whole is of another kind; None for one question, one answer."""
    task = type(taskset).task_type()
    if (environment := vf.environment_class(name)) is not vf.SingleAgentEnv:
        return f"has an environment of its own ({environment.__name__})"
    if vf.default_harness_id(name) == name:
        return "has a harness of its own"
    if type(taskset).toolsets(taskset.config) or task.toolsets(taskset.config.task):
        return "gives the model tools"
    if task.NEEDS_CONTAINER:
        return "needs a container"
    if hook := next((h for h in HOOKS if getattr(task, h) is not getattr(vf.Task, h)), None):
        return f"prepares a runtime (`{hook}`)"
    marked = (n for n in dir(task) for mark in ("stop", "intercept") if _has(task, n, mark))
    if method := next(marked, None):
        return f"steers the conversation (`{method}`)"
    if not taskset.bounded and not limit:
        return "never ends: set `limit` of the source"
    return None


def _has(task: type, name: str, mark: str) -> bool:
    return getattr(inspect.getattr_static(task, name, None), mark, None) is True


def _scoring_fault(vf: Any, task: Any) -> str | None:
    """Why the rewards of a task cannot all run on a text alone."""
    if type(task).score is not vf.Task.score:
        return "scores in a way of its own (`score`)"
    if task.config.judges:
        return "asks a judge model"
    rewards = task.hooks("reward")
    if not rewards:
        return "has no reward"
    for reward in rewards:
        needed = inspect.signature(reward).parameters.get("runtime")
        if needed is not None and needed.default is inspect.Parameter.empty:
            return f"needs a runtime to score (`{reward.__name__}`)"
    return None


def _candidate(
    source: Source,
    name: str,
    settings: dict[str, Any],
    line: int,
    task: Any,
    tokenizer: Tokenizer,
) -> Candidate | Problem:
    data = task.data.model_dump(mode="json")
    row = Row(file=source.path, line=line, fields={"messages": _messages(data)})
    try:
        if not data.get("prompt"):
            raise InputError("no prompt: the other side opens the conversation; remove it")
        if more := [key for key in NOT_TEXT if data.get(key)]:
            raise InputError(f"more than a question: it has {', '.join(more)}; remove it")
        if type(task).data_type().model_validate(data) != task.data:
            raise InputError("its data do not survive being written down, so it cannot be scored")
        plain = source.model_copy(update={"prompt": ""})
        messages = messages_of_row(row, plain, COLUMNS)
        golds = _golds(data, source.answer)
    except InputError as error:
        return row_problem(row, "error", "bad task", str(error))
    made = make_candidate(row, source, COLUMNS, messages, golds, tokenizer)
    if isinstance(made, Problem):
        return made
    return dataclasses.replace(
        made,
        prompt=msgspec.structs.replace(made.prompt, task=source.task or name),
        reward=source.reward or VERIFIERS[:-1],
        detail={**made.detail, "taskset": name, "settings": settings, "data": data},
    )


def _golds(data: Mapping[str, Any], wanted: str) -> tuple[str, ...]:
    """The right answers: of the field `wanted`, or this text with fields in braces."""
    try:
        if "{" in wanted:
            return gold_answers(wanted.format_map(data))
        value = data[wanted] if wanted else data.get(ANSWER)
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(
            f"`answer` = {wanted!r} cannot be filled ({type(error).__name__}: {error}); there are "
            f"the fields {', '.join(data)}"
        ) from None
    return gold_answers(value) if wanted or value is not None else ("",)


def _messages(data: Mapping[str, Any]) -> Any:
    """The system prompt and the question as chat messages; content in parts as one text."""
    prompt = data.get("prompt")
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []
    system = data.get("system_prompt")
    messages = [{"role": "system", "content": system}] if system else []
    return [*messages, *({**message, "content": _text(message)} for message in asked)]


def _text(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return content
