"""The names of `verifiers.v1` that an adapter and a plain taskset use, with the same meaning."""

import importlib
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field

DataT, TaskT, ConfigT = TypeVar("DataT"), TypeVar("TaskT"), TypeVar("ConfigT")


class UserMessage(BaseModel):
    role: str = "user"
    content: Any


class SystemMessage(UserMessage):
    role: str = "system"


class AssistantMessage(UserMessage):
    role: str = "assistant"
    reasoning_content: str | None = None


class TaskData(BaseModel):
    model_config = ConfigDict(frozen=True)
    idx: int | None = None
    prompt: str | list[UserMessage] | None = None
    system_prompt: str | None = None
    image: str | None = None
    skills: list[str] = Field(default_factory=list)
    artifacts: list[str] = Field(default_factory=list)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TaskConfig(Closed):
    judges: list[Any] = Field(default_factory=list)


class TasksetConfig(Closed):
    id: str = ""
    task: TaskConfig = TaskConfig()


def reward(func=None, weight=1.0, priority=0):
    def mark(f):
        f.reward, f._vf_weight = True, weight
        return f

    return mark if func is None else mark(func)


def stop(func):
    func.stop = True
    return func


def _argument(cls: type, bound: type) -> Any:
    for klass in cls.__mro__:
        for base in getattr(klass, "__orig_bases__", ()):
            for arg in get_args(base):
                if isinstance(arg, type) and issubclass(arg, bound):
                    return arg
    return bound


class Task(Generic[DataT]):
    NEEDS_CONTAINER = False

    def __init__(self, data, config=None):
        self.data, self.config = data, config or TaskConfig()
        self.key = self.hash = "h"

    async def setup(self, trace, runtime): ...
    async def finalize(self, trace, runtime): ...
    async def stage_verifier(self, trace, runtime): ...
    def runtime_env(self): ...

    def hooks(self, attr):
        named = (getattr(self, name) for name in dir(type(self)))
        return [f for f in named if getattr(f, attr, None) is True]

    async def score(self, trace, runtime=None):
        for f in self.hooks("reward"):
            trace.rewards.append(f._vf_weight * await f(trace))

    @classmethod
    def data_type(cls):
        return _argument(cls, TaskData)

    @classmethod
    def toolsets(cls, config):
        return []


class Taskset(Generic[TaskT, ConfigT]):
    INFINITE = False

    def __init__(self, config):
        self.config = config

    def __iter__(self):
        for i, task in enumerate(self.load()):
            task.data = task.data.model_copy(update={"idx": i})
            yield task

    @property
    def bounded(self):
        return not self.INFINITE

    @classmethod
    def task_type(cls):
        return _argument(cls, Task)

    @classmethod
    def toolsets(cls, config):
        return []


class Env:
    pass


class SingleAgentEnv(Env):
    pass


class Harness:
    pass


@dataclass(kw_only=True)
class MessageNode:
    parent: int | None
    message: Any
    sampled: bool


@dataclass(kw_only=True)
class Trace:
    task: Any
    state: Any
    agent: Any
    nodes: list[MessageNode]
    calls: list[Any]
    is_completed: bool
    ok: bool
    rewards: list[float] = field(default_factory=list)

    @property
    def reward(self):
        return sum(self.rewards)

    @property
    def assistant_messages(self):
        return [n.message for n in self.nodes if n.sampled]

    @property
    def last_reply(self):
        return self.assistant_messages[-1].content.strip()


class TraceTask(BaseModel):
    type: str
    data: Any
    key: str
    hash: str


class AgentConfig(BaseModel):
    pass


class AgentInfo(BaseModel):
    config: Any


class ModelCall(BaseModel):
    node: int
    finish_reason: str


def import_taskset(name):
    return importlib.import_module(name.replace("-", "_"))


def _exported(name, kind):
    module = import_taskset(name)
    classes = (getattr(module, n) for n in module.__all__)
    return next((c for c in classes if issubclass(c, kind)), None)


def taskset_config_type(name):
    return _argument(_exported(name, Taskset), TasksetConfig)


def load_taskset(config):
    return _exported(config.id, Taskset)(config)


def task_type(name):
    return _exported(name, Taskset).task_type()


def environment_class(name):
    return _exported(name, Env) or SingleAgentEnv


def default_harness_id(name):
    return name if _exported(name, Harness) else "bash"
