"""Which sandbox works here: a small hostile program is run in each kind, and must be refused."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from scalerl.errors import InputError
from scalerl.rewards.sandbox import Kind, Limits, Sandbox, SandboxBroken

_KINDS: tuple[Kind, ...] = ("bubblewrap", "landlock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a real try of one kind of sandbox on this machine showed."""

    kind: Kind
    works: bool
    detail: str  # why not, where it does not


_HOSTILE = """
import ctypes, os, socket, threading
def refused(name, action):
    try:
        if action() == -1:
            return
    except BaseException:
        return
    print(name)
refused("reading a file of the user", lambda: open({secret!r}).read())
refused("writing beside it", lambda: open({secret!r} + ".new", "w"))
refused("a new process", os.fork)
refused("the network", lambda: socket.socket())
refused("a namespace", lambda: ctypes.CDLL(None).unshare(0x10000000))
refused("a signal to its parent", lambda: os.kill({pid}, 0))
refused("memory beyond the limit", lambda: bytearray(1 << 31))
thread = threading.Thread(target=print, args=("in order",))
thread.start()
thread.join()
"""


@functools.cache
def try_kind(kind: Kind) -> Trial:
    """Run a program that tries what no program may, and see that it is refused. Once a process."""
    if not sys.platform.startswith("linux"):
        return Trial(kind=kind, works=False, detail="needs Linux")
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        os.chmod(folder, 0o755)
        source = _HOSTILE.format(secret=str(secret), pid=os.getpid())
        try:
            with Sandbox(kind=kind, limits=Limits(time_s=10)) as sandbox:
                run = sandbox.run_script(source, b"", expected_bytes=1)
        except SandboxBroken as error:
            return Trial(kind=kind, works=False, detail=str(error))
    said = run.stdout.decode(errors="replace").split("\n")
    if run.end == "exit" and run.status == 0 and said == ["in order", ""]:
        return Trial(kind=kind, works=True, detail="a program was held as it should be")
    if run.end == "exit" and run.status == 0:
        return Trial(kind=kind, works=False, detail=f"it did not refuse {', '.join(said[:-2])}")
    line = run.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return Trial(kind=kind, works=False, detail=f"{run.end} {run.status} {line}")


def choose_kind(*, allow_unsandboxed: bool = False) -> Kind:
    """The best kind that a real try shows to work; InputError where none does, unless programs may
    run with rlimits alone."""
    trials: list[Trial] = []
    for kind in _KINDS:
        trials.append(try_kind(kind))
        if trials[-1].works:
            return kind
    if allow_unsandboxed:
        return "none"
    why = "; ".join(f"{t.kind}: {t.detail}" for t in trials)
    raise InputError(
        f"code answers need a sandbox and none works here ({why}). Install bubblewrap, or use "
        "Linux 6.2 or later; or run model-written code unprotected by "
        "--rewards.allow_unsandboxed_code true"
    )
