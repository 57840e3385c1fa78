"""Kernel doors the sandbox closes: namespaces, Landlock, seccomp, capabilities, rlimits.

Thin calls through ctypes; no root is needed for any of them. Every failure raises OSError with the
step's name. This module also runs inside the sandbox, where nothing but the standard library is
there.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from collections.abc import Sequence

LANDLOCK_NEEDED = 3  # ABI from which truncation is held too (Linux 6.2)

_NEWNS, _NEWIPC, _NEWUSER, _NEWPID = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_NOSUID, _NODEV, _NOEXEC = 2, 4, 8
_CAPABILITY_VERSION = 0x20080522
_DAC_READ_SEARCH = 2
_READ_FILE, _READ_DIR, _WRITE_FILE, _EXECUTE, _TRUNCATE = 1 << 2, 1 << 3, 1 << 1, 1 << 0, 1 << 14

# PyDLL: the interpreter's lock is kept, as there is one thread and some calls end in a new process.
_libc = ctypes.PyDLL(None, use_errno=True)


def _check(step: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
    return result


def _prctl(step: str, option: int, value: int = 0, pointer: object = 0) -> None:
    _check(step, _libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0))


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that started it ends."""
    _prctl("die with parent", 1, 9)


def adopt_orphans() -> None:
    """Descendants whose parent ends become this process's children, so that it can end them."""
    _prctl("adopt orphans", 36, 1)


def no_new_privileges() -> None:
    _prctl("no new privileges", 38, 1)


def become(uid: int, *, keep_reading: bool = False) -> None:
    """From root to a user that owns nothing; `keep_reading` keeps the right to read any file, for
    Landlock to narrow where the interpreter lies in a folder that only root may enter."""
    if keep_reading:
        _prctl("keep capabilities", 8, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _capabilities(1 << _DAC_READ_SEARCH if keep_reading else 0)
    _prctl("stay readable to itself", 4, 1)


def drop_capabilities() -> None:
    _capabilities(0)


def _capabilities(mask: int) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    data = struct.pack("=6I", mask, mask, 0, 0, 0, 0)
    _check("set capabilities", _libc.capset(header, data))


def new_namespaces() -> None:
    """User, process, mount and IPC namespaces; the next child is the first of its process
    namespace, and everything in it ends with that child."""
    uid, gid = os.geteuid(), os.getegid()
    _check("new namespaces", _libc.unshare(_NEWUSER | _NEWPID | _NEWNS | _NEWIPC))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"65534 {uid} 1"),
        ("gid_map", f"65534 {gid} 1"),
    ):
        handle = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(handle, text.encode())
        os.close(handle)


def mount_private(file_bytes: int) -> None:
    """An empty file system of this size at /tmp, and a /proc that shows this namespace only."""
    options = f"size={file_bytes},mode=700,nr_inodes=4096".encode()
    flags = ctypes.c_ulong(_NOSUID | _NODEV)
    _check("mount /tmp", _libc.mount(b"tmpfs", b"/tmp", b"tmpfs", flags, options))
    mount_proc(b"subset=pid")
    os.chdir("/tmp")


def mount_proc(options: bytes = b"") -> None:
    flags = ctypes.c_ulong(_NOSUID | _NODEV | _NOEXEC)
    _check("mount /proc", _libc.mount(b"proc", b"/proc", b"proc", flags, options))


def landlock_abi() -> int:
    """Version of the kernel's Landlock; 0 where it has none."""
    return max(0, _libc.syscall(ctypes.c_long(444), None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def landlock(readable: Sequence[str]) -> None:
    """Only what lies under `readable` can be opened, only for reading (and /dev/null written); no
    TCP, no abstract sockets and no signals to the outside where the kernel's version has that."""
    abi = landlock_abi()
    if abi < LANDLOCK_NEEDED:
        raise OSError(
            f"Landlock ABI {LANDLOCK_NEEDED} is needed (Linux 6.2), this kernel has {abi}"
        )
    rights = (1 << (16 if abi >= 5 else 15)) - 1
    network, scopes = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0)
    attributes = struct.pack("=QQQ", rights, network, scopes)[
        : 24 if abi >= 6 else 16 if abi >= 4 else 8
    ]
    ruleset = _check(
        "Landlock ruleset",
        _libc.syscall(
            ctypes.c_long(444), attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
        ),
    )
    for path in readable:
        if not os.path.exists(path):
            continue
        allowed = _READ_FILE | (_READ_DIR | _EXECUTE if os.path.isdir(path) else 0)
        if path == os.devnull:
            allowed |= _WRITE_FILE | _TRUNCATE
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed, handle)
        _check(
            f"Landlock rule for {path}",
            _libc.syscall(ctypes.c_long(445), ruleset, 1, rule, ctypes.c_uint32(0)),
        )
        os.close(handle)
    no_new_privileges()
    _check("Landlock", _libc.syscall(ctypes.c_long(446), ruleset, ctypes.c_uint32(0)))
    os.close(ruleset)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def seccomp(code: bytes) -> None:
    """Refuse every system call the filter does not name, in this process and all it starts."""
    no_new_privileges()
    program = _Filter(len(code) // 8, code)
    _prctl("seccomp", 22, 2, ctypes.byref(program))


def set_rlimits(
    *, memory_bytes: int, cpu_s: int, file_bytes: int, open_files: int, tasks: int
) -> None:
    for name, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_NPROC, tasks),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))
