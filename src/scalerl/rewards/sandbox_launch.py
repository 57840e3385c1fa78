"""Starts the warm worker in the right kind of box: bubblewrap's command line, or none."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
from importlib import resources
from pathlib import Path
from typing import Any, Literal

Kind = Literal["bubblewrap", "landlock", "none"]

_UNPRIVILEGED = 2_000_000_000  # user ids from here on own nothing on any machine
_ID_SPAN = 1 << 28
_NEW_TASKS = 512  # threads the user may start beside, later, without harm to a program's own
_INSIDE = ("sandbox_seccomp", "sandbox_kernel", "sandbox_program", "sandbox_server")

# The worker's modules come through its socket, so no file of this package is needed inside.
_BOOTSTRAP = """
import json, socket, sys, types
channel = socket.socket(fileno=int(sys.argv[1]))
start = json.loads(channel.recv(1 << 20))
package = sys.modules["scalerl"] = sys.modules["scalerl.rewards"] = types.ModuleType("scalerl")
for name, text in start["modules"].items():
    module = sys.modules["scalerl.rewards." + name] = types.ModuleType(name)
    setattr(package, name, module)
    exec(compile(text, name, "exec"), module.__dict__)
module.serve(channel, start["setup"])
"""

_ENVIRONMENT = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/python/bin", "PYTHONHASHSEED": "0"}
_FLAGS = ("-P", "-s", "-S", "-B", "-X", "utf8")
_LIBRARIES = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")


def launch(kind: Kind, channel: socket.socket) -> subprocess.Popen[bytes]:
    """Start a worker that listens on `channel`, and tell it what it is."""
    flags = [*_FLAGS, "-c", _BOOTSTRAP, str(channel.fileno())]
    if kind == "bubblewrap":
        command = [*_bubblewrap(), *flags]
        environment = None
    else:
        command = [interpreter(), *flags]
        environment = {**_ENVIRONMENT, "HOME": "/", "PATH": ""}
    return subprocess.Popen(
        command,
        pass_fds=(channel.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        cwd="/",
    )


def first_message(kind: Kind, file_bytes: int) -> bytes:
    """Modules and set-up, for `launch`'s worker to read."""
    package = resources.files("scalerl.rewards")
    modules = {name: (package / f"{name}.py").read_text(encoding="utf-8") for name in _INSIDE}
    uid = _spare_uid()
    setup: dict[str, Any] = {
        "kind": kind,
        "file_bytes": file_bytes,
        "uid": uid,
        "mount_proc": bool(uid) and kind == "bubblewrap",
        "other_tasks": 0 if uid or kind == "bubblewrap" else _tasks_of_user() + _NEW_TASKS,
        "keep_reading": kind != "bubblewrap",
        "readable": _readable(),
    }
    return json.dumps({"modules": modules, "setup": setup}).encode()


def _spare_uid() -> int:
    """For root, an id to become that owns nothing, another for each worker so that its threads are
    counted apart; 0 for others, and where root has no second id (some containers)."""
    if os.geteuid() != 0:
        return 0
    rows = Path("/proc/self/uid_map").read_text().splitlines()
    last = max(first + count - 1 for first, _, count in (map(int, row.split()) for row in rows))
    if last >= _UNPRIVILEGED + _ID_SPAN:
        return _UNPRIVILEGED + secrets.randbelow(_ID_SPAN)
    return last - secrets.randbelow(min(last, 1000)) if last else 0


def _tasks_of_user() -> int:
    """Threads of this user now: without a namespace the kernel counts a program's among them."""
    count = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                if folder.stat().st_uid == os.geteuid():
                    count += len(os.listdir(folder / "task"))
    return count


def interpreter() -> str:
    """The interpreter itself, not a link in a virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _library() -> Path:
    """Folder that holds the standard library's folder."""
    return Path(os.path.realpath(sysconfig.get_path("stdlib"))).parent


def _readable() -> list[str]:
    """What a program may open where the whole file system is in sight."""
    devices = [f"/dev/{name}" for name in ("null", "zero", "random", "urandom")]
    return [
        *dict.fromkeys([str(_library()), *map(os.path.realpath, _LIBRARIES)]),
        "/etc/ld.so.cache",
        "/usr/share/zoneinfo",
        *devices,
    ]


def _bubblewrap() -> list[str]:
    """A root that holds the interpreter, its library and four devices, all read-only."""
    found = shutil.which("bwrap")
    if found is None:
        raise FileNotFoundError("bwrap is not installed")
    if _spare_uid():
        # No user namespace here: the worker gives up root for a user id that owns nothing.
        # It mounts /proc before: bubblewrap's has covers, under which the kernel allows no other.
        privileges = ["--cap-drop", "ALL", "--dir", "/proc"]
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SYS_ADMIN"):
            privileges += ["--cap-add", capability]
    else:
        privileges = ["--unshare-user", "--proc", "/proc"]
    words = [found, *privileges, "--die-with-parent", "--new-session"]
    words += [f"--unshare-{name}" for name in ("pid", "net", "ipc", "uts", "cgroup-try")]
    words += ["--hostname", "sandbox", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    for folder in ("/usr", "/python", "/python/bin", "/etc", "/dev", "/tmp"):
        words += ["--perms", "0755", "--dir", folder]
    for folder in _LIBRARIES:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            words += ["--ro-bind", folder, folder]
    words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    words += ["--ro-bind-try", "/usr/share/zoneinfo", "/usr/share/zoneinfo"]
    for name in ("null", "zero", "random", "urandom"):
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        words += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    words += ["--symlink", "/proc/self/fd", "/dev/fd"]
    words += _bound_library()
    python = f"/python/bin/{Path(interpreter()).name}"
    words += ["--ro-bind", interpreter(), python]
    words += ["--remount-ro", "/", "--chdir", "/"]
    return [*words, python]


def _bound_library() -> list[str]:
    """The standard library at /python, without the packages installed beside it."""
    library, name = _library(), Path(os.path.realpath(sysconfig.get_path("stdlib"))).name
    inside = f"/python/{sys.platlibdir}"
    if str(library) in map(os.path.realpath, _LIBRARIES):  # the system's own Python
        words = ["--perms", "0755", "--dir", inside]
        words += ["--ro-bind", str(library / name), f"{inside}/{name}"]
    else:
        words = ["--ro-bind", str(library), inside, "--setenv", "LD_LIBRARY_PATH", inside]
    for packages in ("site-packages", "dist-packages"):
        if (library / name / packages).is_dir():
            words += ["--tmpfs", f"{inside}/{name}/{packages}"]
            words += ["--remount-ro", f"{inside}/{name}/{packages}"]
    return words
