"""Hostile programs: no reward, the machine unharmed, limits kept, nothing left running.

The programs are in `hostile_programs`; they are run in the sandbox only, but for a few that change
nothing.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hostile_programs import (
    CONTROLS,
    ESCAPES,
    FILES,
    PROCESSES,
    RUNAWAYS,
    TIMEOUTS,
    WRONG,
)

from scalerl.rewards.code import Limits, check_program
from scalerl.rewards.code import Tests as CodeTests
from scalerl.rewards.code_tests import PrintedTest
from scalerl.rewards.sandbox import Sandbox, SandboxBroken
from scalerl.rewards.sandbox_probe import try_kind

LIMITS = Limits(time_s=5.0, memory_bytes=256 << 20, file_bytes=8 << 20, tasks=32)
SHORT = replace(LIMITS, time_s=0.5)  # for programs that never end
SIX = CodeTests(printed=(PrintedTest(stdin="3\n", stdout="6\n"),))


def descendants(pid: int) -> dict[int, str]:
    """State letter of every process below `pid`."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
                continue
            parents[int(folder.name)] = (int(fields[1]), fields[0])
    below: dict[int, str] = {}
    grown = {pid}
    while grown:
        grown = {p for p, (parent, _) in parents.items() if parent in grown and p not in below}
        below.update({p: parents[p][1] for p in grown})
    return below


# Below a worker at rest: bubblewrap's first process, the server, and a keeper with the process that
# waits for the next program; without a process namespace the server's one waiting process.
AT_REST = {"bubblewrap": 4, "landlock": 1}


def at_rest(sandbox: Sandbox) -> bool:
    """Whether, within two seconds, only what belongs to a worker at rest is left, and no zombie."""
    assert sandbox._worker is not None
    end_at = time.monotonic() + 2.0
    while True:
        states = descendants(sandbox._worker.pid).values()
        if len(states) == AT_REST[sandbox.kind] and "Z" not in states:
            return True
        if time.monotonic() > end_at:
            return False
        time.sleep(0.01)


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def kind(request: pytest.FixtureRequest) -> str:
    trial = try_kind(request.param)
    if not trial.works:
        pytest.skip(f"{trial.kind} does not work here: {trial.detail}")
    return trial.kind


@pytest.fixture(scope="module")
def sandbox(kind) -> Iterator[Sandbox]:
    with Sandbox(kind=kind, limits=LIMITS) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def short(kind) -> Iterator[Sandbox]:
    with Sandbox(kind=kind, limits=SHORT) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def many(kind) -> Iterator[Sandbox]:
    """One in which programs may start processes."""
    if kind != "bubblewrap":
        pytest.skip("programs start processes only under bubblewrap")
    with Sandbox(kind=kind, limits=replace(SHORT, processes=True)) as sandbox:
        yield sandbox


def check(sandbox: Sandbox, source: str, tests: CodeTests = SIX) -> tuple[str, str]:
    """The verdict on a program, after which only the warm worker is there, nothing has grown, and
    an honest program still passes."""
    assert check_program(sandbox, answer("print(6)"), SIX, "strict")[0] == "correct"
    handles = set(os.listdir("/proc/self/fd"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    verdict = check_program(sandbox, answer(source), tests, "strict")
    assert time.monotonic() - started < sandbox.limits.time_s + 1.0
    assert at_rest(sandbox)
    assert set(os.listdir("/proc/self/fd")) <= handles  # some of an earlier test may close late
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100 << 10  # KiB
    assert check_program(sandbox, answer("print(6)"), SIX, "strict")[0] == "correct"
    return verdict


def answer(source: str) -> str:
    return f"</think>\n```python\n{source}\n```\n"


@pytest.mark.parametrize("name", TIMEOUTS)
def test_timeouts(short: Sandbox, name: str) -> None:
    assert check(short, TIMEOUTS[name])[0] == "timeout"


@pytest.mark.parametrize("name", RUNAWAYS)
def test_runaways(short: Sandbox, name: str) -> None:
    assert check(short, RUNAWAYS[name])[0] in ("wrong", "timeout")


@pytest.mark.parametrize("name", WRONG)
def test_wrong(sandbox: Sandbox, name: str) -> None:
    outcome, detail = check(sandbox, WRONG[name])
    assert outcome == "wrong", detail


@pytest.fixture(scope="module")
def treasure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """What a hostile program would like: a file anyone may change, and open doors."""
    folder = tmp_path_factory.mktemp("user")
    folder.chmod(0o777)
    for above in folder.parents:
        if above.name.startswith("pytest-") and above.stat().st_uid == os.geteuid():
            above.chmod(0o755)
    secret = folder / "secret"
    secret.write_text("6")
    secret.chmod(0o666)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as door,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        door.bind(f"{folder}/door")
        door.listen()
        os.chmod(f"{folder}/door", 0o666)
        abstract.bind(f"\0scalerl-hostile-{os.getpid()}")
        abstract.listen()
        yield {
            "secret": str(secret),
            "folder": str(folder),
            "port": server.getsockname()[1],
            "pid": os.getpid(),
        }


@pytest.mark.parametrize("name", ESCAPES)
def test_escapes(
    sandbox: Sandbox, treasure: dict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALERL_SECRET", "6")
    secret, folder = Path(treasure["secret"]), Path(treasure["folder"])
    status = secret.stat()
    source = ESCAPES[name].format(**treasure)
    outcome, detail = check(sandbox, source)
    assert outcome == "wrong", detail
    assert not any(f"{name}Error" in detail for name in ("Syntax", "Name", "Type"))
    assert secret.read_text() == "6"
    assert (secret.stat().st_mode, secret.stat().st_mtime_ns) == (
        status.st_mode,
        status.st_mtime_ns,
    )
    assert sorted(os.listdir(folder)) == ["door", "secret"]
    assert not Path("/dev/shm/scalerl-hostile").exists()
    assert not Path("/new").exists()


@pytest.mark.parametrize("name", CONTROLS)
def test_unprotected_the_same_programs_do_what_they_try(treasure: dict, name: str) -> None:
    """So that a refusal above is the sandbox's; only programs that change nothing are tried."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux")
    with Sandbox(kind="none", limits=LIMITS) as sandbox:
        run = sandbox.run_script(ESCAPES[name].format(**treasure), b"", expected_bytes=2)
        assert run.stdout in (b"6", b"6\n"), run.stderr


@pytest.mark.parametrize("name", FILES)
def test_files_are_bounded(sandbox: Sandbox, name: str) -> None:
    assert check(sandbox, FILES[name])[0] == "wrong"


def test_open_files_and_threads_are_bounded(sandbox: Sandbox) -> None:
    files = "l=[open('/dev/null') for _ in range(10_000)]\nprint(6)"
    assert check(sandbox, files)[0] == "wrong"
    threads = (
        "import threading\nthreading.stack_size(32768)\ne=threading.Event()\nn=0\ntry:\n"
        " for _ in range(5000):\n  threading.Thread(target=e.wait,daemon=True).start()\n  n+=1\n"
        "except RuntimeError: pass\ne.set()\nprint(6 if n<64 else n)"
    )
    if sandbox.kind == "bubblewrap" or os.geteuid() == 0:  # else counted with the user's others
        assert check(sandbox, threads)[0] == "correct"


@pytest.mark.parametrize("name", PROCESSES)
def test_processes_end_with_the_program(many: Sandbox, name: str) -> None:
    assert check(many, PROCESSES[name])[0] == "timeout"


def test_a_daemon_does_not_outlive_a_program_that_ends(many: Sandbox) -> None:
    source = (
        "import os,time\nif os.fork()==0:\n os.setsid()\n if os.fork(): os._exit(0)\n"
        " time.sleep(600)\nos.wait()\nprint(6)"
    )
    assert check(many, source)[0] == "correct"  # it did print 6; the daemon is gone all the same


def test_processes_are_counted(many: Sandbox) -> None:
    source = (
        "import os,time\nn=0\nfor _ in range(200):\n try:\n  if os.fork()==0:\n"
        "   time.sleep(600)\n  n+=1\n except OSError: break\nprint(6 if 8<n<=32 else n)\n"
        "import sys\nsys.stdout.flush()\nos._exit(0)"
    )
    assert check(many, source)[0] == "correct"


def test_many_processes_cannot_touch_what_one_cannot(many: Sandbox, treasure: dict) -> None:
    for name in (
        "reading the user's file",
        "a user namespace",
        "the network",
        "the disk",
        "the parent's memory",
        "a mount",
        "command lines of other processes",
    ):
        assert check(many, ESCAPES[name].format(**treasure))[0] == "wrong"


def test_a_program_leaves_nothing_for_the_next(sandbox: Sandbox) -> None:
    first = (
        "import builtins,sys,os,json\nbuiltins.print=lambda *a: None\nsys.modules['math']=None\n"
        "json.dumps=None\nos.environ['X']='6'\ntry: open('x','w').write('6')\n"
        "except OSError: pass"
    )
    assert check(sandbox, first)[0] == "wrong"
    second = "import os,math\nassert 'X' not in os.environ and not os.path.exists('x')\nprint(6)"
    assert check(sandbox, second)[0] == "correct"


def test_fifty_timeouts_leave_nothing(kind) -> None:
    limits = Limits(time_s=0.05, processes=kind == "bubblewrap")
    sources = [s for n, s in PROCESSES.items() if n != "fork bomb"] if limits.processes else []
    sources += [TIMEOUTS["deaf to signals"], TIMEOUTS["a loop that catches everything"]]
    with Sandbox(kind=kind, limits=limits) as sandbox:
        sandbox.run_script("", b"", expected_bytes=0)
        handles = set(os.listdir("/proc/self/fd"))
        for i in range(50):
            run = sandbox.run_script(sources[i % len(sources)], b"", expected_bytes=0)
            assert run.end == "timeout"
            assert run.wall_s < 0.05 + 1.0
        assert at_rest(sandbox)
        assert set(os.listdir("/proc/self/fd")) <= handles  # some of an earlier test may close late


def test_closing_ends_the_worker(kind) -> None:
    sandbox = Sandbox(kind=kind, limits=LIMITS)
    sandbox.run_script("", b"", expected_bytes=0)
    assert at_rest(sandbox)
    assert sandbox._worker is not None
    family = [sandbox._worker.pid, *descendants(sandbox._worker.pid)]
    sandbox.close()
    assert all_gone(family)


def test_all_ends_with_the_process_that_asked(kind) -> None:
    """Even when that is killed in the middle of a program that would go on."""
    code = (
        "import sys\nfrom scalerl.rewards.sandbox import Limits, Sandbox\n"
        f"with Sandbox(kind={kind!r}, limits=Limits(time_s=60)) as sandbox:\n"
        "    sandbox.run_script('', b'', expected_bytes=0)\n    print('warm', flush=True)\n"
        "    sandbox.run_script('while True: pass', b'', expected_bytes=0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == b"warm\n"
        time.sleep(0.3)
        family = descendants(asking.pid)
        assert len(family) >= 2
        asking.kill()
    assert all_gone(family)


def all_gone(family: Iterable[int]) -> bool:
    """Whether all have ended within five seconds."""
    end_at = time.monotonic() + 5.0
    while any(map(alive, family)):
        if time.monotonic() > end_at:
            return False
        time.sleep(0.01)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it is gone
        return False


def test_a_worker_that_was_killed_is_started_again(kind) -> None:
    before = descendants(os.getpid()).keys()  # other tests' workers
    with Sandbox(kind=kind, limits=LIMITS) as sandbox:
        sandbox.run_script("", b"", expected_bytes=0)
        for pid in descendants(os.getpid()).keys() - before:
            with contextlib.suppress(ProcessLookupError):  # it went with another
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxBroken):
            sandbox.run_script("print(6)", b"", expected_bytes=2)
        assert sandbox.run_script("print(6)", b"", expected_bytes=2).stdout == b"6\n"
