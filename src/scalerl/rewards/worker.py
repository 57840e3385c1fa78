"""The process that checks one answer after the other, and may be killed at any moment.

    python -m scalerl.rewards.worker MEMORY_BYTES PARENT_PID [MODULE ...]    (by `workers`)

One JSON object a line comes in on standard input, one goes out on standard output for each.
Memory is limited before anything is read, and the kernel ends the process with its parent. What a
plug-in prints goes to standard error.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

Job = dict[str, Any]

NICE = 5  # training goes first where the cores are shared
TASKSET = "verifiers:"  # before the name of one that is to be imported
CPU_MARGIN_S = 5  # beyond a job's limit, after which the kernel ends the process
PR_SET_PDEATHSIG = 1


def answer(job: Job) -> dict[str, Any]:
    """The verdict on one job: {"outcome"} or {"score"}, or {"outcome": "error", "reason"}."""
    try:
        match job["kind"]:
            case "math":
                return _math(job)
            case "reasoning_gym":
                from scalerl.rewards.reasoning import entry_score

                return {"score": entry_score(job["detail"], job["answer"])}
            case "verifiers":
                from scalerl.rewards.verifiers import task_score

                return {"score": task_score(job["detail"], job["thinking"], job["answer"])}
            case "plugin":
                return _plugin(job)
            case "load":
                load_plugin(job["path"])
                return {"outcome": "correct"}
            case kind:
                return {"outcome": "error", "reason": f"no such kind of check: {kind}"}
    except MemoryError:
        return {"outcome": "error", "reason": "out of memory"}
    except RecursionError:
        return {"outcome": "error", "reason": "nested too deeply"}
    # Tolerates whatever a scorer of somebody else raises: this check's verdict is `error`, with the
    # reason, and the run counts and reports it.
    except Exception as error:  # noqa: BLE001
        return {"outcome": "error", "reason": f"{type(error).__name__}: {error}"[:300]}


def _math(job: Job) -> dict[str, Any]:
    from scalerl.rewards.symbolic import equal_to_any

    return {"outcome": "correct" if equal_to_any(job["golds"], job["answer"]) else "wrong"}


def _plugin(job: Job) -> dict[str, Any]:
    verdict = load_plugin(job["path"])(job["completion"], job["prompt"])
    if isinstance(verdict, str):
        return {"outcome": verdict}
    return {"score": float(verdict)}


def load_plugin(path: str) -> Callable[[str, dict[str, Any]], float | str]:
    """The function at `package.module:function`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def main() -> None:
    limit = int(sys.argv[1])
    _die_with(int(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)
    logging.disable(logging.WARNING)  # math-verify warns that its own timeout is off, as it must be
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for module in sys.argv[3:]:
        _load(module)
    _say(replies, {"ready": True})
    for line in sys.stdin.buffer:
        job = json.loads(line)
        _limit_cpu(job["limit_s"])
        _say(replies, {"id": job["id"], **answer(job)})


def _die_with(parent: int) -> None:
    """Have the kernel kill this process with its parent, whatever check it is in."""
    if sys.platform != "linux":
        return  # the end of its input ends it after the check
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before the line above
        os._exit(1)


def _load(module: str) -> None:
    """Import what jobs will need: a module, or a taskset as `verifiers:NAME`."""
    try:
        if module.startswith(TASKSET):
            from scalerl.rewards.verifiers import warm

            warm(module.removeprefix(TASKSET))
            return
        importlib.import_module(module)
    except ModuleNotFoundError:  # an extra that is not installed is not asked for either
        return


def _limit_cpu(limit_s: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + limit_s) + CPU_MARGIN_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _say(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
