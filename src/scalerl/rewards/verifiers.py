"""The rewards of a `verifiers` task on one answer in text, as a score in [0, 1].

Runs in a worker: the rewards are other people's code. The taskset is not loaded again; the task is
made from the data that its prompt carries.
"""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=16)
def _kind(name: str, settings: str) -> tuple[Any, Any]:
    """The class of the tasks of a taskset, and what their rewards are configured with."""
    import verifiers.v1 as vf  # type: ignore[import-not-found]

    config = vf.taskset_config_type(name).model_validate({"id": name, **json.loads(settings)})
    return vf.task_type(name), config.task


def warm(name: str) -> None:
    """Import a taskset's package, so that no check is charged for it."""
    import verifiers.v1 as vf  # type: ignore[import-not-found]

    vf.import_taskset(name)


def task_score(detail: dict[str, Any], thinking: str, answer: str) -> float:
    """The weighted sum of a task's rewards, clipped to [0, 1].

    Args:
        detail: `taskset`, `settings` and `data`, as `data.verifiers` wrote them.
        thinking: what was written before the answer; rewards see it as reasoning.
        answer: all that follows the thinking, as the reply of the model.
    """
    kind, config = _kind(detail["taskset"], json.dumps(detail["settings"], sort_keys=True))
    task = kind(kind.data_type().model_validate(detail["data"]), config)
    trace = _trace(task, thinking, answer)
    asyncio.run(task.score(trace))
    return min(1.0, max(0.0, float(trace.reward)))


def _trace(task: Any, thinking: str, answer: str) -> Any:
    """A conversation of one turn: what was asked, and the reply that ended it."""
    import verifiers.v1 as vf  # type: ignore[import-not-found]
    from verifiers.v1.state import state_cls  # type: ignore[import-not-found]

    data = task.data
    asked = [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt
    system = [vf.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    reply = vf.AssistantMessage(content=answer, reasoning_content=thinking or None)
    messages = [*system, *asked, reply]
    nodes = [
        vf.MessageNode(parent=i - 1 if i else None, message=message, sampled=message is reply)
        for i, message in enumerate(messages)
    ]
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
        calls=[vf.ModelCall(node=len(nodes) - 1, finish_reason="stop")],
        is_completed=True,
        ok=True,
    )
