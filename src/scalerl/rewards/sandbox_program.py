"""Runs one program as `__main__`, as `python program.py` would, or calls one of its functions.

Runs inside the sandbox, in a process that is the program's own. Nothing here is secret: no
expected output ever comes in, so a program that takes this code apart only forges its own answers.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import json
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

NAME = "program.py"

# What starter code of function tasks takes for granted. Programs with main code import their own.
_PRELUDE = """
import bisect, collections, copy, datetime, decimal, fractions, functools, heapq, itertools, json
import math, operator, random, re, statistics, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from string import *
from typing import *
from builtins import *
"""


def prelude() -> dict[str, Any]:
    """Names for function tasks; also loads, once for all programs, what they import most."""
    names: dict[str, Any] = {}
    exec(compile(_PRELUDE, "prelude", "exec"), names)  # noqa: S102  our own text
    import array
    import io
    import queue
    import time
    import traceback

    del names["__builtins__"], array, io, queue, time, traceback
    return names


def run_script(source: str, result_fd: int, nonce: bytes) -> NoReturn:
    """Run the program, then do what the interpreter does at its end: wait for threads, run exit
    handlers, let go of what the program held, write out buffers.

    The mark of completion is written last of all, and only if nothing failed.
    """
    failed: list[bool] = []
    crash = threading.excepthook

    def note(args: Any) -> None:
        failed.append(True)
        crash(args)

    threading.excepthook = note
    main = _module("__main__", {}, source)
    status = 0
    try:
        exec(compile(source, NAME, "exec"), main.__dict__)  # noqa: S102  in the sandbox
    except SystemExit as end:
        status = _status(end)
    except BaseException as error:  # noqa: BLE001  any exception is the program's own, and its end
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    status = _finish(main, status)
    if status == 0 and not failed:
        os.write(result_fd, nonce + b"\n")
    os._exit(status)


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _finish(main: types.ModuleType, status: int) -> int:
    """The interpreter's own end in short: taking every module apart would cost milliseconds."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    sys.last_traceback = sys.last_value = None
    main.__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001  the program's own stream object may do anything
            status = status or 120
    return status


def run_calls(
    source: str,
    function: str,
    calls: Iterable[list[Any]],
    names: dict[str, Any],
    result_fd: int,
    nonce: bytes,
) -> NoReturn:
    """Write one line for each call that returns: the nonce, then the value as JSON."""
    module = _module("program", names, source)
    exec(compile(source, NAME, "exec"), module.__dict__)  # noqa: S102  in the sandbox
    for arguments in calls:
        value = _function(module.__dict__, function)(*arguments)
        text = json.dumps(value, default=_plain, separators=(",", ":"))
        _write(result_fd, nonce + text.encode() + b"\n")
    os._exit(0)


def _module(name: str, names: dict[str, Any], source: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(names)
    module.__dict__.update(__builtins__=builtins, __file__=NAME)
    sys.modules[name] = module
    sys.argv = [NAME]
    linecache = sys.modules["linecache"]
    linecache.cache[NAME] = (len(source), None, source.splitlines(True), NAME)
    return module


def _function(names: dict[str, Any], function: str) -> Callable[..., Any]:
    solution = names.get("Solution")
    if isinstance(solution, type) and hasattr(solution, function):
        return getattr(solution(), function)
    return names[function]


def _plain(value: Any) -> Any:
    """A JSON value for what is one in all but type: any iterable but a set is a list."""
    if isinstance(value, set | frozenset) or not isinstance(value, Iterable):
        raise TypeError(f"{type(value).__name__} is no JSON value")
    return list(value)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
