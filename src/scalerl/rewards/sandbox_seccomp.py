"""System calls a program in the sandbox may make, and the seccomp filter that refuses all others.

An allow-list: what is not named here fails with ENOSYS, so a call that the kernel will learn one
day is refused before it is known. Numbers are those of the kernel's public headers. Arguments are
looked at where a call does both harmless and harmful things (`_CHECKED`).

This module also runs inside the sandbox, where nothing but the standard library is there.
"""

from __future__ import annotations

import functools
import struct

# name: (number on x86_64, number on aarch64); None where the architecture lacks the call
_CALLS: dict[str, tuple[int | None, int | None]] = {
    # files, read and written by descriptor
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "preadv2": (327, 286),
    "pwritev2": (328, 287),
    "close": (3, 57),
    "close_range": (436, 436),
    "open": (2, None),
    "openat": (257, 56),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "lseek": (8, 62),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "flock": (73, 32),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "ftruncate": (77, 46),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "umask": (95, 166),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "sendfile": (40, 71),
    "splice": (275, 76),
    "tee": (276, 77),
    "copy_file_range": (326, 285),
    "fadvise64": (221, 223),
    # waiting
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "eventfd": (284, None),
    "eventfd2": (290, 19),
    # memory
    "mmap": (9, 222),
    "munmap": (11, 215),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "msync": (26, 227),
    # own signals and timers
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "pause": (34, None),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "timer_create": (222, 107),
    "timer_settime": (223, 110),
    "timer_gettime": (224, 108),
    "timer_getoverrun": (225, 109),
    "timer_delete": (226, 111),
    "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87),
    # clocks
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    # threads
    "futex": (202, 98),
    "futex_waitv": (449, 449),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "set_tid_address": (218, 96),
    "rseq": (334, 293),
    "membarrier": (324, 283),
    "restart_syscall": (219, 128),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "getpriority": (140, 141),
    "getcpu": (309, 168),
    # who and where it is
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getpgid": (121, 155),
    "getpgrp": (111, None),
    "getsid": (124, 156),
    "getrlimit": (97, 163),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "uname": (63, 160),
    "capget": (125, 90),
    "getrandom": (318, 278),
    "arch_prctl": (158, None),
    # its end, and its own socket pairs
    "exit": (60, 93),
    "exit_group": (231, 94),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "shutdown": (48, 210),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    "getsockopt": (55, 209),
    "setsockopt": (54, 208),
}

# By path, on the private file system; refused where there is none.
_WRITING: dict[str, tuple[int | None, int | None]] = {
    "truncate": (76, 45),
    "fallocate": (285, 47),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "link": (86, None),
    "linkat": (265, 37),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}

# Allowed for some arguments only.
_CHECKED: dict[str, tuple[int | None, int | None]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fcntl": (72, 25),
    "fork": (57, None),
    "ioctl": (16, 29),
    "kill": (62, 129),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "tgkill": (234, 131),
    "vfork": (58, None),
    "socketpair": (53, 199),
}

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH

_ALLOW, _KILL, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050000 | 38
_LOAD, _EQUAL, _GREATER_EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_NUMBER, _ARCH = 0, 4  # offsets in seccomp_data

_CLONE_THREAD, _CLONE_NEW = 0x00010000, 0x7E020000
_PRCTL = (3, 15, 16, 0x53564D41)  # get dumpable, set name, get name, name a mapping
_IOCTL = (
    0x5401,
    0x5413,
    0x541B,
    0x5421,
    0x5450,
    0x5451,
)  # is it a terminal, blocking, close-on-exec
_FCNTL_REFUSED = (8, 10, 15, 1024, 1026)  # anything that sends signals elsewhere, and leases
_AF_UNIX = 1
_PLACE = 0x7FFFFFFE  # stands for the program's own pid, which none can be
_OWN_PID = struct.pack("<HBBI", _EQUAL, 1, 0, _PLACE)

Program = list[tuple[int, int, int, int]]  # code, jump if true, jump if false, operand

_THREADS_ONLY: Program = [
    (_ANY_BIT, 0, 1, _CLONE_NEW),
    (_RETURN, 0, 0, _ENOSYS),
    (_ANY_BIT, 0, 1, _CLONE_THREAD),
    (_RETURN, 0, 0, _ALLOW),
    (_RETURN, 0, 0, _ENOSYS),
]


@functools.cache
def _filter(machine: str, processes: bool, writing: bool) -> bytes:
    return b"".join(
        struct.pack("<HBBI", *instruction) for instruction in _program(machine, processes, writing)
    )


def seccomp_filter(machine: str, *, own_pid: int, processes: bool, writing: bool) -> bytes:
    """The filter as an array of BPF instructions; made once, then only the pid is put in.

    `machine` as in `os.uname`; KeyError where its numbers are not known. `own_pid`: the only
    process that may be signalled, unless `processes` may be started (they have a process
    namespace of their own). `writing`: files may be made and changed by path.
    """
    own = struct.pack("<HBBI", _EQUAL, 1, 0, own_pid)
    return _filter(machine, processes, writing).replace(_OWN_PID, own)


def _program(machine: str, processes: bool, writing: bool) -> Program:
    column, arch = _ARCHITECTURES[machine]
    numbers = [
        n
        for calls in (_CALLS, _WRITING)
        if calls is _CALLS or writing
        for pair in calls.values()
        if (n := pair[column]) is not None
    ]
    checked = {name: pair[column] for name, pair in _CHECKED.items()}
    if processes:
        for name in ("fork", "vfork", "execve", "execveat", "setsid", "setpgid", "kill", "tgkill"):
            if (number := checked[name]) is not None:
                numbers.append(number)
    program: Program = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for low, high in _ranges(numbers):
        program += [
            (_GREATER_EQUAL, 0, 2, low),
            (_GREATER, 1, 0, high),
            (_RETURN, 0, 0, _ALLOW),
        ]
    if processes:
        program += _when(checked["clone"], 0, _refused_bits(_CLONE_NEW))
    else:
        program += _when(checked["clone"], 0, _THREADS_ONLY)
        program += _when(checked["kill"], 0, _only((_PLACE,)))
        program += _when(checked["tgkill"], 0, _only((_PLACE,)))
    program += _when(checked["prctl"], 0, _only(_PRCTL))
    program += _when(checked["prlimit64"], 0, _only((0,)))
    program += _when(checked["ioctl"], 1, _only(_IOCTL))
    program += _when(checked["fcntl"], 1, _but(_FCNTL_REFUSED))
    program += _when(checked["socketpair"], 0, _only((_AF_UNIX,)))
    program.append((_RETURN, 0, 0, _ENOSYS))
    return program


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def _when(number: int | None, argument: int, body: Program) -> Program:
    """`body` judges the low half of an argument of one call, and always returns."""
    if number is None:
        return []
    inner: Program = [(_LOAD, 0, 0, 16 + 8 * argument), *body]
    return [(_EQUAL, 0, len(inner), number), *inner]


def _only(values: tuple[int, ...]) -> Program:
    tests: Program = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*tests, (_RETURN, 0, 0, _ENOSYS), (_RETURN, 0, 0, _ALLOW)]


def _but(values: tuple[int, ...]) -> Program:
    tests: Program = [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*tests, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ENOSYS)]


def _refused_bits(mask: int) -> Program:
    return [(_ANY_BIT, 0, 1, mask), (_RETURN, 0, 0, _ENOSYS), (_RETURN, 0, 0, _ALLOW)]
