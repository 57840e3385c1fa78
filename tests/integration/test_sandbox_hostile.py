"""Hostile programs: no reward, the machine unharmed, limits kept, nothing left running.

Every loop in a program here is bounded in count, and every run in time, memory and output, so that
a sandbox that fails these tests harms nothing but the tests.
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
    assert set(os.listdir("/proc/self/fd")) == handles
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100 << 10  # KiB
    assert check_program(sandbox, answer("print(6)"), SIX, "strict")[0] == "correct"
    return verdict


def answer(source: str) -> str:
    return f"</think>\n```python\n{source}\n```\n"


TIMEOUTS = {
    "endless loop": "while True: pass",
    "a loop that catches everything": "while True:\n try:\n  while True: pass\n"
    " except BaseException: pass",
    "deaf to signals": "import signal\nfor s in range(1,65):\n"
    " try: signal.signal(s,signal.SIG_IGN)\n except (OSError,ValueError): pass\nwhile True: pass",
    "asleep": "import time\ntime.sleep(60)",
    "waiting for input that never comes": "import socket\na,b=socket.socketpair()\na.recv(1)",
    "a thread that does not end": "import threading,time\n"
    "threading.Thread(target=time.sleep,args=(60,)).start()\nprint(6)",
    "an exit handler that does not end": "import atexit,time\natexit.register(time.sleep,60)\n"
    "print(6)",
    "inside C code": "import sys\nsys.set_int_max_str_digits(0)\nx=str(10**(10**7))",
    "a regular expression": "import re\nre.match('(a+)+$','a'*40+'b')",
    "a destructor that does not end": "import time\nclass A:\n"
    " def __del__(self,s=time.sleep): s(60)\na=A()\nprint(6)",
    "output closed, then asleep": "import os,time\nprint(6,flush=True)\nfor f in range(64):\n"
    " try: os.close(f)\n except OSError: pass\ntime.sleep(60)",
}


@pytest.mark.parametrize("name", TIMEOUTS)
def test_timeouts(short: Sandbox, name: str) -> None:
    assert check(short, TIMEOUTS[name])[0] == "timeout"


RUNAWAYS = {  # out of time or out of memory, whichever comes first
    "many small objects": "l=[]\nfor i in range(10**8): l.append([i])\nprint(6)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n+1)\nf(0)",
    "deep recursion in C": "import sys\nsys.setrecursionlimit(10**9)\nl=[]\n"
    "for _ in range(10**6): l=[l]\nrepr(l)",
    "a large power": "import sys\nsys.set_int_max_str_digits(0)\nprint(9**9**9)",
}


@pytest.mark.parametrize("name", RUNAWAYS)
def test_runaways(short: Sandbox, name: str) -> None:
    assert check(short, RUNAWAYS[name])[0] in ("wrong", "timeout")


WRONG = {
    "64 GiB at once": "x=bytearray(1<<36)\nprint(6)",
    "a list that doubles": "l=[0]\nfor _ in range(40): l+=l\nprint(6)",
    "a mapping of memory": "import mmap\nm=mmap.mmap(-1,1<<33)\nprint(6)",
    "memory without a file name": "import os\nos.memfd_create('x')\nprint(6)",
    "shared memory": "from multiprocessing import shared_memory\n"
    "shared_memory.SharedMemory(create=True,size=1<<33)\nprint(6)",
    "a crash in C": "import ctypes\nctypes.string_at(0)",
    "endless output": "while True: print('1234567890')",
    "a gigabyte of output": "import sys\nfor _ in range(1<<10): sys.stdout.write('6'*(1<<20))",
    "one huge line": "print('6'*(200<<20),end='')",
    "endless noise": "import sys\nfor _ in range(10**9): sys.stderr.write('x'*65536)",
    "output with the answer first": "print(6)\nfor _ in range(10**9): print(' '*10**5)",
    "leaving at once": "import os\nos._exit(0)",
    "input closed, then read": "import sys\nsys.stdin.close()\nprint(int(input())*2)",
    "output closed": "import os\nos.close(1)\nprint(6)",
    "all descriptors closed": "import os\nos.closerange(0,4096)\nprint(6)",
    "the verdict's descriptor": "import os\nfor f in range(3,4096):\n"
    " for t in (b'correct\\n',b'6\\n',"
    'b\'{"status":0,"killed":false}\\n\'):\n  try: os.write(f,t)\n  except OSError: pass',
    "answer on stderr": "import sys\nprint(6,file=sys.stderr)",
    "the checker's code patched": "import sys,builtins,json\n"
    "for n,m in list(sys.modules.items()):\n if 'scalerl' in n:\n  for k in list(vars(m)):\n"
    "   if callable(vars(m)[k]): setattr(m,k,lambda *a,**k: True)\n"
    "json.loads=json.dumps=lambda *a,**k: 'correct'",
    "the checker's frames searched": "import sys\nf=sys._getframe()\nwhile f:\n"
    " for v in list(f.f_locals.values()):\n  if 'stdout' in repr(v)[:9999]: print(6)\n f=f.f_back",
    "memory searched for the answer": "import gc\nfor o in gc.get_objects():\n"
    " if isinstance(o,dict) and o.get('stdout')=='6\\n': print(6)",
}

# Each of these prints 6 only if it could do what no program may.
ESCAPES = {
    "reading the user's file": "print(open({secret!r}).read())",
    "reading it by a link": "import os\nos.symlink({secret!r},'l')\nprint(open('l').read())",
    "reading it by a hard link": "import os\nos.link({secret!r},'l')\nprint(open('l').read())",
    "reading it by a descriptor of its folder": "import os\nd=os.open({folder!r},os.O_PATH)\n"
    "print(open(os.open('secret',os.O_RDONLY,dir_fd=d)).read())",
    "listing its folder": "import os\nprint(6 if 'secret' in os.listdir({folder!r}) else 0)",
    "reading it through /proc": "print(open('/proc/1/root'+{secret!r}).read())",
    "reading it through /proc/self/cwd": "print(open('/proc/self/root'+{secret!r}).read())",
    "passwords": "print(6 if open('/etc/passwd').read() else 0)",
    "home": "import os\nfor h in ('/root','/home'):\n"
    " if os.path.isdir(h) and os.listdir(h): print(6)",
    "writing the user's file": "open({secret!r},'w').write('gone')\nprint(6)",
    "appending to it": "import os\n"
    "os.write(os.open({secret!r},os.O_WRONLY|os.O_APPEND),b'x')\nprint(6)",
    "cutting it": "import os\nos.truncate({secret!r},0)\nprint(6)",
    "removing it": "import os\nos.unlink({secret!r})\nprint(6)",
    "renaming it": "import os\nos.rename({secret!r},{secret!r}+'.old')\nprint(6)",
    "its mode": "import os\nos.chmod({secret!r},0o777)\nprint(6)",
    "its times": "import os\nos.utime({secret!r},(0,0))\nprint(6)",
    "a file beside it": "open({folder!r}+'/new','w')\nprint(6)",
    "a folder": "import os\nos.mkdir('/new')\nprint(6)",
    "a file in the library": "import os\nopen(os.__file__+'x','w')\nprint(6)",
    "the standard library": "import os\nopen(os.__file__,'a')\nprint(6)",
    "/dev/shm": "open('/dev/shm/scalerl-hostile','w')\nprint(6)",
    "devices": "import os\nos.mknod('/tmp/d',0o60666,os.makedev(8,0))\n"
    "open('/tmp/d','rb')\nprint(6)",
    "the disk": "import glob\nfor d in glob.glob('/dev/[svn][dv]*'): open(d,'rb')\n"
    "print(open('/dev/mem','rb') and 6)",
    "kernel settings": "open('/proc/sys/kernel/core_pattern','w').write('x')\nprint(6)",
    "the environment": "import os\nprint(6 if any('SECRET' in k for k in os.environ) else 0)",
    "the parent's environment": "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'):\n"
    " try:\n  if 'SCALERL_SECRET' in open(p).read(): print(6)\n except OSError: pass",
    "the parent's memory": "open('/proc/{pid}/mem','rb')\nprint(6)",
    "the parent's descriptors": "import glob\nfor p in glob.glob('/proc/{pid}/fd/*'):\n"
    " try:\n  open(p,'rb')\n  print(6)\n except OSError: pass",
    "command lines of other processes": "import glob\nfor p in glob.glob('/proc/[0-9]*/cmdline'):\n"
    " try:\n  if 'pytest' in open(p).read(): print(6)\n except OSError: pass",
    "the network": "import socket\n"
    "socket.create_connection(('127.0.0.1',{port}),timeout=0.5)\nprint(6)",
    "datagrams": "import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
    "s.sendto(b'x',('127.0.0.1',{port}))\nprint(6)",
    "a socket of the machine": "import socket\ns=socket.socket(socket.AF_UNIX)\n"
    "s.connect({folder!r}+'/door')\nprint(6)",
    "an abstract socket": "import socket\ns=socket.socket(socket.AF_UNIX)\n"
    "s.connect('\\0scalerl-hostile-{pid}')\nprint(6)",
    "listening": "import socket\ns=socket.socket()\ns.bind(('127.0.0.1',0))\ns.listen()\nprint(6)",
    "a signal to the parent": "import os\nos.kill({pid},0)\nprint(6)",
    "a signal to all": "import os\nos.kill(-1,18)\nprint(6 if os.getpid()!=1 else 0)",
    "signals by a descriptor": "import fcntl,os,socket\na,b=socket.socketpair()\n"
    "fcntl.fcntl(a,fcntl.F_SETOWN,{pid})\nprint(6)",
    "tracing the parent": "import ctypes\nif ctypes.CDLL(None).ptrace(16,{pid},0,0)==0: print(6)",
    "the parent's limits": "import resource\nresource.prlimit({pid},resource.RLIMIT_NOFILE,(0,0))\n"
    "print(6)",
    "higher limits": "import resource\nresource.setrlimit(resource.RLIMIT_AS,(-1,-1))\nprint(6)",
    "another user": "import os\nos.setuid(0)\nprint(6)",
    "a user namespace": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000)==0: print(6)",
    "a mount": "import ctypes\nif ctypes.CDLL(None).mount(b'x',b'/tmp',b'tmpfs',0,0)==0: print(6)",
    "leaving the root": "import os\nos.chroot('/tmp')\nprint(6)",
    "a kernel program": "import ctypes\nif ctypes.CDLL(None).syscall(321,0,0,0)!=-1: print(6)",
    "an I/O ring": "import ctypes\nb=ctypes.create_string_buffer(120)\n"
    "if ctypes.CDLL(None).syscall(425,4,b)!=-1: print(6)",
    "a new process": "import os\nif os.fork(): print(6)",
    "a new process by clone": "import ctypes\nr=ctypes.CDLL(None).syscall(56,17,0,0,0,0)\n"
    "if r>0: print(6)",
    "another program": "import subprocess,sys\nsubprocess.run([sys.executable,'-c','print(6)'])",
    "a shell": "import os\nos.system('echo 6')",
    "another architecture's calls": "import ctypes\n"
    "if ctypes.CDLL(None).syscall(0x40000000+39)!=-1: print(6)",
}


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


CONTROLS = (
    "reading the user's file",
    "listing its folder",
    "the network",
    "a socket of the machine",
    "datagrams",
    "an abstract socket",
    "a new process by clone",
)


@pytest.mark.parametrize("name", CONTROLS)
def test_unprotected_the_same_programs_do_what_they_try(treasure: dict, name: str) -> None:
    """So that a refusal above is the sandbox's; only programs that change nothing are tried."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux")
    with Sandbox(kind="none", limits=LIMITS) as sandbox:
        run = sandbox.run_script(ESCAPES[name].format(**treasure), b"", expected_bytes=2)
        assert run.stdout in (b"6", b"6\n"), run.stderr


FILES = {
    "a file of 10 GB": "with open('big','wb') as f:\n"
    " for _ in range(10_000): f.write(bytes(10**6))\nprint(6)",
    "a file of holes": "import os\nos.truncate(os.open('h',os.O_CREAT|os.O_RDWR),10**10)\nprint(6)",
    "many files": "for i in range(10_000):\n with open(f'f{i}','wb') as f: f.write(bytes(10**4))\n"
    "print(6)",
    "empty files": "for i in range(100_000): open(f'f{i}','w').close()\nprint(6)",
    "folders within folders": "import os\nfor i in range(100_000):\n os.mkdir('d')\n"
    " os.chdir('d')\nprint(6)",
}


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


PROCESSES = {
    "fork bomb": "import os\nfor _ in range(1000):\n try: os.fork()\n except OSError: pass\n"
    "while True: pass",
    "a child that sleeps": "import subprocess,sys,time\n"
    "subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'])\ntime.sleep(600)",
    "a daemon": "import os,time\nif os.fork()==0:\n os.setsid()\n if os.fork(): os._exit(0)\n"
    " time.sleep(600)\ntime.sleep(600)",
    "children deaf to signals": "import os,signal,time\nfor _ in range(8):\n if os.fork()==0:\n"
    "  for s in (1,2,3,15): signal.signal(s,signal.SIG_IGN)\n  time.sleep(600)\ntime.sleep(600)",
    "zombies": "import os,time\nfor _ in range(20):\n if os.fork()==0: os._exit(0)\n"
    "time.sleep(600)",
}


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
        "json.dumps=None\nos.environ['X']='6'\ntry: open('/tmp/x','w').write('6')\n"
        "except OSError: pass"
    )
    assert check(sandbox, first)[0] == "wrong"
    second = (
        "import os,math\nassert 'X' not in os.environ and not os.path.exists('/tmp/x')\nprint(6)"
    )
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
        assert set(os.listdir("/proc/self/fd")) == handles


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
