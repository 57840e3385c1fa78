"""Runs one Python program after the other where it can do no harm; see docs/sandbox.md.

with Sandbox(kind=choose_kind(), limits=Limits()) as sandbox:
    run = sandbox.run_script(source, b"3\n", expected_bytes=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

Kind = Literal["bubblewrap", "landlock", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run of a program may use."""

    time_s: float = 6.0  # wall time of one test (of loading and the first call, for functions)
    total_s: float = 60.0  # wall time of all tests of a program together
    memory_bytes: int = 1 << 30  # address space of a process
    output_bytes: int = 16 << 20  # most that is ever read of what a program prints
    file_bytes: int = 64 << 20  # size of the private file system; in `landlock` no file is written
    tasks: int = 64  # threads (and processes, where there may be any) at a time
    open_files: int = 64
    processes: bool = False  # the program may start processes; bubblewrap only


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How one run ended, and what it said."""

    end: Literal["exit", "timeout", "output"]  # "output": it printed more than was allowed
    status: int  # exit status, or minus the signal that ended it
    completed: bool  # the program came to its end, by itself or by sys.exit(0)
    stdout: bytes
    stderr: bytes  # the last few kilobytes
    values: tuple[Any, ...]  # of the calls that returned, in order
    wall_s: float


class SandboxBroken(RuntimeError):
    """The sandbox itself ended or fell silent; the next run starts a new one."""


def choose_kind(*, allow_unsandboxed: bool = False) -> Kind:
    """The best kind that a real try on this machine shows to work; InputError where none does."""
    raise NotImplementedError


class Sandbox:
    """One warm sandbox; not to be shared by threads."""

    def __init__(self, *, kind: Kind, limits: Limits) -> None:
        self.kind, self.limits = kind, limits

    def run_script(
        self, source: str, stdin: bytes, *, expected_bytes: int, wall_s: float | None = None
    ) -> Run:
        """Run a whole program on `stdin`."""
        raise NotImplementedError

    def run_calls(
        self, source: str, function: str, arguments: Sequence[list[Any]], *, expected_bytes: int
    ) -> Run:
        """Load a program and call one of its functions with each of `arguments`."""
        raise NotImplementedError

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
