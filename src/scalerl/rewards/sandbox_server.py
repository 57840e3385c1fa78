"""The warm worker: waits inside the sandbox and forks a process, closed in further, per program.

    Sandbox ──request, descriptors→ server ──the same→ program (first of its process namespace)
            ←──────reply────────────  └─fork→ keeper ─fork┘     kinds without one: no keeper

The process of the next program is made ready while nobody waits for it. The server never reads a
program, its input or its output: they go through descriptors that it only hands on, so nothing of
one program is left for the next. It ends what it started at the program's end, at the deadline, at
the word of `Sandbox`, and when `Sandbox` is gone.

Runs inside the sandbox, where nothing but the standard library is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any, NamedTuple, NoReturn

from scalerl.rewards import sandbox_kernel as kernel
from scalerl.rewards import sandbox_program as program
from scalerl.rewards.sandbox_seccomp import seccomp_filter

PROGRAM, STATUS, FAILED = "P", "S", "F"  # what a report says: its pid, its end, or why it is not
_RECORD = 256  # bytes of a report; a pipe passes so few whole
RLIMITS = ("memory_bytes", "cpu_s", "file_bytes", "open_files", "tasks")


class Spare(NamedTuple):
    """A process made ready for the next program."""

    pid: int  # of the keeper, where there is one
    channel: socket.socket  # takes the request and its descriptors
    reports: int  # pipe of what went wrong or, from a keeper, of the program's pid and end


def serve(channel: socket.socket, setup: dict[str, Any]) -> None:
    """Take requests until the other side is gone."""
    os.umask(0o077)
    if setup["mount_proc"]:
        kernel.mount_proc()
    if setup["uid"]:
        kernel.become(setup["uid"], keep_reading=setup["keep_reading"])
    if setup["kind"] != "bubblewrap":
        os.setsid()
        kernel.die_with_parent()  # after the change of user, which would undo it
        kernel.adopt_orphans()
        os.chdir("/")
    names = program.prelude()
    for processes in (False, True):
        _filter(setup, processes)  # made here, every program finds it ready
    gc.collect()
    gc.freeze()
    spare = _prepare(channel, setup, names)
    channel.send(b"ready")
    alone = False
    while not alone:
        message, handles, _, _ = socket.recv_fds(channel, 1 << 16, 8)
        if message == b"kill":  # came after the program had ended
            continue
        if message:
            with contextlib.suppress(OSError):  # it has ended: its reports say why
                socket.send_fds(spare.channel, [message], handles)
        spare.channel.close()  # without a request, it ends
        for handle in handles:
            os.close(handle)
        deadline_s = json.loads(message)["deadline_s"] if message else 0.0
        reply, alone = _watch(channel, spare, setup["kind"], deadline_s)
        os.close(spare.reports)
        if not alone:
            channel.send(json.dumps(reply).encode())
        with contextlib.suppress(ChildProcessError):  # without a keeper, `_watch` has waited
            os.waitpid(spare.pid, 0)
        if not alone:
            spare = _prepare(channel, setup, names)


def _prepare(channel: socket.socket, setup: dict[str, Any], names: dict[str, Any]) -> Spare:
    reports, tell = os.pipe()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        os.close(reports)
        channel.close()
        ours.close()
        _child(setup, theirs, tell, names)
    os.close(tell)
    theirs.close()
    return Spare(pid=pid, channel=ours, reports=reports)


def _watch(
    channel: socket.socket, spare: Spare, kind: str, deadline_s: float
) -> tuple[dict[str, Any], bool]:
    """Wait for the program's end, or bring it about; (reply, whether the other side is gone).

    With a keeper, all is over when it reports the status: it only has to end itself.
    """
    end_at = time.monotonic() + deadline_s
    handle = os.pidfd_open(spare.pid)
    poll = select.poll()
    for source in (handle, channel, spare.reports):
        poll.register(source, select.POLLIN)
    killed = alone = False
    said: dict[str, str] = {}
    while STATUS not in said:
        left_ms = None if killed else max(0, int((end_at - time.monotonic()) * 1000) + 1)
        ready = {number for number, _ in poll.poll(left_ms)}
        if spare.reports in ready:
            if not _hear(spare.reports, said):
                poll.unregister(spare.reports)
            continue
        if handle in ready:
            break
        if channel.fileno() in ready:
            alone = channel.recv(16) == b""
            if alone:
                poll.unregister(channel)
        if not killed:
            killed = True
            _kill(spare, kind, said)
    os.close(handle)
    status = int(said[STATUS]) if STATUS in said else os.waitpid(spare.pid, 0)[1]
    if kind == "none":
        _end_orphans()
    if FAILED in said or (kind == "bubblewrap" and STATUS not in said):
        return {"broken": said.get(FAILED, f"the keeper ended with {status}")}, alone
    return {"status": os.waitstatus_to_exitcode(status), "killed": killed}, alone


def _kill(spare: Spare, kind: str, said: dict[str, str]) -> None:
    """SIGKILL for the program; its keeper says which it is."""
    if kind == "none":
        with contextlib.suppress(ProcessLookupError):  # it has not made its group yet, or is gone
            os.killpg(spare.pid, signal.SIGKILL)
    if kind != "bubblewrap":
        os.kill(spare.pid, signal.SIGKILL)
        return
    while PROGRAM not in said and _hear(spare.reports, said):
        pass
    if PROGRAM in said:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
            os.kill(int(said[PROGRAM]), signal.SIGKILL)


def _report(tell: int, tag: str, text: str) -> None:
    os.write(tell, (tag + text).encode("ascii", "replace")[:_RECORD].ljust(_RECORD))


def _hear(reports: int, said: dict[str, str]) -> bool:
    """Read one report; False at the end of file."""
    record = os.read(reports, _RECORD).decode()
    if record:
        said[record[0]] = record[1:].rstrip()
    return bool(record)


def _end_orphans() -> None:
    """End every process that is left of a program without a process namespace."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:  # none is left
            return


def _child(
    setup: dict[str, Any], requests: socket.socket, tell: int, names: dict[str, Any]
) -> NoReturn:
    """Be the next program, or with namespaces its keeper. What fails before is reported."""
    try:
        _isolate(setup, tell)
        message, handles, _, _ = socket.recv_fds(requests, 1 << 16, 8)
        if not message:
            os._exit(0)
        requests.close()
        request = json.loads(message)
        job = _enter(setup, request, handles, tell)
    except BaseException as error:  # noqa: BLE001  whatever it was, no program may start
        _report(tell, FAILED, repr(error))
        os._exit(70)
    nonce, result_fd = job["nonce"].encode(), request["open_files"] - 1
    if job["calls"] is None:
        program.run_script(job["source"], result_fd, nonce)
    program.run_calls(job["source"], job["function"], job["calls"], names, result_fd, nonce)


def _isolate(setup: dict[str, Any], tell: int) -> None:
    """All that can be closed before the request is known."""
    if setup["kind"] == "bubblewrap":
        kernel.new_namespaces()
        if pid := os.fork():
            _keep(pid, tell)
        kernel.mount_private(setup["file_bytes"])
        kernel.drop_capabilities()
        return
    kernel.die_with_parent()
    if setup["kind"] == "landlock":
        kernel.landlock(setup["readable"])
    else:
        os.setsid()


def _keep(pid: int, tell: int) -> NoReturn:
    """Wait for the first process of the namespace; with its end everything in it has ended."""
    _report(tell, PROGRAM, str(pid))
    _, status = os.waitpid(pid, 0)
    _report(tell, STATUS, str(status))
    os._exit(0)


def _enter(
    setup: dict[str, Any], request: dict[str, Any], handles: list[int], tell: int
) -> dict[str, Any]:
    """Put the descriptors in place, read the job, close the last doors; the job."""
    with open(handles[0], "rb", closefd=False) as file:
        job = json.loads(file.read())
    result_fd = request["open_files"] - 1
    spare = [fcntl.fcntl(h, fcntl.F_DUPFD_CLOEXEC, result_fd + 2) for h in (*handles[1:], tell)]
    for number, handle in zip((0, 1, 2, result_fd, result_fd + 1), spare, strict=True):
        os.dup2(handle, number, inheritable=number < 3)
    os.closerange(3, result_fd)
    os.closerange(result_fd + 2, max(spare) + 1)
    _open_streams()
    limits = {name: request[name] for name in RLIMITS}
    limits["tasks"] += setup["other_tasks"]
    kernel.set_rlimits(**limits)
    if setup["kind"] != "none":
        kernel.seccomp(_filter(setup, request["processes"]))
    os.close(result_fd + 1)
    return job


def _open_streams() -> None:
    """Standard streams as a new interpreter has them, over the pipes now in place."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    errors = open(  # noqa: SIM115  all three stay open as long as the program
        2, "w", encoding="utf-8", errors="backslashreplace", closefd=False, buffering=1
    )
    sys.stderr = sys.__stderr__ = errors


def _filter(setup: dict[str, Any], processes: bool) -> bytes:
    return seccomp_filter(
        os.uname().machine,
        own_pid=os.getpid(),
        processes=processes,
        writing=setup["kind"] == "bubblewrap",
    )
