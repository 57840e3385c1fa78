"""A jump of the wall clock changes nothing, because nobody looks at it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import scalerl

SOURCE = Path(scalerl.__file__).parent

# What may be used of the modules that know the time.
FINE = {
    "time": {
        *("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"),  # they never jump
        *("process_time", "process_time_ns", "thread_time", "thread_time_ns"),
        "sleep",  # waits by the monotonic clock
    },
    "datetime": {"timedelta", "timezone", "UTC"},  # lengths of time and names of zones, no clock
}
# Attributes that are clocks by their names, whatever they are taken from.
CLOCKS = {
    *("now", "utcnow", "today", "fromtimestamp", "utcfromtimestamp", "time_ns", "datetime64"),
    *("clock_gettime", "clock_gettime_ns", "localtime", "gmtime", "ctime", "asctime"),
}
# File under src/scalerl → the words in it that look like a clock and are none.
ALLOWED = {
    "pipeline/simulate.py": {"self.now"},  # the simulation's own time, which it moves itself
    "rewards/sandbox_program.py": {"time"},  # imported ahead of a program's own import, not read
}


def wall_clocks(source: str) -> Iterator[tuple[int, str]]:
    """Every place of a module that could read the wall clock: line and words."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    known = {
        alias.asname or alias.name: alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in FINE
    }
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        found = False
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module in FINE:
                found = any(alias.name not in FINE[module] for alias in names)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in known:
                found = name not in FINE[known[owner]]
            case ast.Attribute(attr=name):
                found = name in CLOCKS
            case ast.Name(id=name):  # the module itself is handed on
                found = name in known and id(node) not in owners
            case ast.Call(
                func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                found = module in FINE
            case _:
                pass
        if found:
            yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda f: f.stem)
def test_no_clock_but_the_monotonic_one_is_read(file: Path) -> None:
    seen = list(wall_clocks(file.read_text("utf-8")))
    allowed = ALLOWED.get(file.relative_to(SOURCE).as_posix(), set())
    assert {words for _, words in seen} == allowed, seen


@pytest.mark.parametrize(
    "source",
    [
        "import time\nstarted = time.time()",
        "import time\nclock = time.time",
        "import time as t\nt.time_ns()",
        "import time\ntime.clock_gettime(time.CLOCK_REALTIME)",
        "import time\nread = getattr(time, 'time')",
        "from time import time",
        "from time import monotonic, time_ns as read",
        "from time import *",
        "import os\nfrom time import clock_gettime",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime",
        "from datetime import date\ndate.today()",
        "__import__('time').time()",
        "import importlib\nimportlib.import_module('time')",
        "import numpy as np\nnp.datetime64('now')",
        "import pandas\npandas.Timestamp.utcnow()",
        "import time\ntime.strftime('%Y')",
        "def f():\n    import time\n    return time.localtime()",
    ],
)
def test_every_way_to_look_at_the_wall_clock_is_found(source: str) -> None:
    assert list(wall_clocks(source))


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.sleep(1)\nwait = time.monotonic",
        "from time import monotonic, perf_counter",
        "import datetime\nWAIT = datetime.timedelta(days=7)",
        "def f(time):\n    return time.first",
        "PROGRAM = 'import time; time.time()'",
    ],
)
def test_what_measures_without_it_is_not(source: str) -> None:
    assert not list(wall_clocks(source))
