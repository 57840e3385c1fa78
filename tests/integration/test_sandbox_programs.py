"""Honest programs get the verdict a judge would give, in every kind of sandbox there is here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest

from scalerl.errors import InputError, RunError
from scalerl.rewards import code, sandbox_probe
from scalerl.rewards.code import CodePool, Limits, code_outcome, read_tests
from scalerl.rewards.code import Tests as CodeTests
from scalerl.rewards.code_tests import PrintedTest
from scalerl.rewards.sandbox import Sandbox
from scalerl.rewards.sandbox_probe import try_kind


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def pool(request: pytest.FixtureRequest) -> Iterator[CodePool]:
    trial = try_kind(request.param)
    if not trial.works:
        pytest.skip(f"{trial.kind} does not work here: {trial.detail}")
    with CodePool(workers=1, limits=Limits(time_s=5), kind=trial.kind) as pool:
        yield pool


def check(pool: CodePool, source: str, tests: CodeTests) -> tuple[str, str]:
    pool.submit(source, f"</think>\n```python\n{source}\n```\n", tests)
    while not (done := pool.collect(1.0)):
        pass
    assert [d.ticket for d in done] == [source]
    return done[0].outcome, done[0].detail


def printed(*pairs: tuple[str, str]) -> CodeTests:
    return CodeTests(printed=tuple(PrintedTest(stdin=i, stdout=o) for i, o in pairs))


SUM = printed(("3\n1 2 3\n", "6\n"), ("1\n-4\n", "-4\n"))

READ_AND_SUM = {
    "bytes at once": "import sys; d=sys.stdin.buffer.read().split(); print(sum(map(int,d[1:])))",
    "bytes by line": "import sys\nr=sys.stdin.buffer.readline\nr()\n"
    "print(sum(map(int,r().split())))",
    "text then bytes": "import sys\nn=int(sys.stdin.readline())\n"
    "print(sum(map(int,sys.stdin.read().split())))",
    "input then the rest": "n=int(input())\nprint(sum(map(int,input().split())))",
    "iterate over bytes": "import sys\nlines=[l for l in sys.stdin.buffer]\n"
    "print(sum(map(int,lines[1].split())))",
    "open(0)": "print(sum(map(int,open(0).read().split()[1:])))",
    "open(0, 'rb')": "print(sum(map(int,open(0,'rb').read().split()[1:])))",
    "os.read": "import os\nprint(sum(map(int,os.read(0,1<<20).split()[1:])))",
    "/dev/stdin": "print(sum(map(int,open('/dev/stdin').read().split()[1:])))",
    "fileinput": "import fileinput\nprint(sum(map(int,[*fileinput.input()][1].split())))",
    "io.BytesIO": "import io,os,sys\ninput=io.BytesIO(os.read(0,os.fstat(0).st_size or 9999))"
    ".readline\ninput()\nprint(sum(map(int,input().split())))",
    "os.write": "import os\nd=open(0).read().split()[1:]\n"
    "os.write(1,str(sum(map(int,d))).encode())",
    "buffer.write": "import sys\nd=open(0).read().split()[1:]\n"
    "sys.stdout.buffer.write(str(sum(map(int,d))).encode())",
    "a file left open": "out=open(1,'w',closefd=False)\nd=open(0).read().split()[1:]\n"
    "out.write(str(sum(map(int,d))))",
    "an exit handler": "import atexit,io,sys\nsys.stdout=io.StringIO()\n"
    "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))\n"
    "print(sum(map(int,open(0).read().split()[1:])))",
    "a thread with a large stack": "import sys,threading\nsys.setrecursionlimit(10**6)\n"
    "threading.stack_size(1<<27)\ndef main():\n n=int(input())\n"
    " print(sum(map(int,input().split())))\nt=threading.Thread(target=main)\nt.start()",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor\nn=input()\n"
    "with ThreadPoolExecutor(8) as p: print(sum(p.map(int,input().split())))",
    "asyncio": "import asyncio\nasync def main():\n await asyncio.sleep(0)\n input()\n"
    " print(sum(map(int,input().split())))\nasyncio.run(main())",
    "sys.exit(0) after": "import sys\ninput()\nprint(sum(map(int,input().split())))\nsys.exit(0)",
    "SystemExit after": "input()\nprint(sum(map(int,input().split())))\nraise SystemExit",
    "os._exit(0) after a flush": "import os\ninput()\n"
    "print(sum(map(int,input().split())),flush=True)\nos._exit(0)",
    "main guard": "def main():\n input()\n print(sum(map(int,input().split())))\n"
    "if __name__=='__main__': main()",
    "standard library": "import decimal,fractions,heapq,re,statistics,datetime,zoneinfo,hashlib,"
    "numbers,typing,dataclasses,enum,random,bisect,sqlite3,ctypes\ninput()\n"
    "print(sum(map(int,input().split())))",
    "recursion": "import sys\nsys.setrecursionlimit(10**5)\ndef f(n): return n and 1+f(n-1)\n"
    "f(50_000)\ninput()\nprint(sum(map(int,input().split())))",
    "stack limit raised": "import resource\n"
    "h=resource.getrlimit(resource.RLIMIT_STACK)[1]\nresource.setrlimit(resource.RLIMIT_STACK,(h,h))"
    "\ninput()\nprint(sum(map(int,input().split())))",
    "warnings and noise on stderr": "import sys\nprint('debug'*200_000,file=sys.stderr)\ninput()\n"
    "print(sum(map(int,input().split())))",
}


@pytest.mark.parametrize("name", READ_AND_SUM)
def test_every_way_to_read_and_print_works(pool: CodePool, name: str) -> None:
    assert check(pool, READ_AND_SUM[name], SUM) == ("correct", "2 tests passed")


def test_large_input_and_output_pass_whole(pool: CodePool) -> None:
    numbers = " ".join(map(str, range(400_000)))
    big = printed((numbers, numbers.replace(" ", "\n")))
    assert check(pool, "print(*input().split(),sep='\\n')", big)[0] == "correct"
    assert check(pool, "print(6)", printed((numbers, "6")))[0] == "correct"  # stdin never read


def test_temporary_files_are_private_to_a_run(pool: CodePool) -> None:
    if pool.kind != "bubblewrap":
        pytest.skip("no file is written under Landlock")
    source = (
        "import os,tempfile\nassert os.listdir('.')==[]\nopen('x','w').write('6')\n"
        "with tempfile.TemporaryFile() as f: f.write(b'6')\n"
        "print(open(os.path.abspath('x')).read())"
    )
    assert check(pool, source, printed(("", "6"), ("", "6"))) == ("correct", "2 tests passed")


def test_the_same_program_runs_the_same_every_time(pool: CodePool) -> None:
    source = "print(*{str(i) for i in range(20)})"
    with (
        Sandbox(kind=pool.kind, limits=Limits()) as one,
        Sandbox(kind=pool.kind, limits=Limits()) as two,
    ):
        said = {s.run_script(source, b"", expected_bytes=99).stdout for s in (one, one, two)}
    assert len(said) == 1


WRONG = {
    "another answer": "print(7)",
    "nothing": "pass",
    "an exception": "print(6); 1/0",
    "an exit status": "print(6)\nimport sys\nsys.exit(3)",
    "a text as status": "print(6)\nimport sys\nsys.exit('bad')",
    "a syntax error": "print(6",
    "a null byte": "print(6)\0",
    "a lone surrogate": "print('\ud800')",
    "a signal to itself": "print(6,flush=True)\nimport os\nos.abort()",
    "leaving before": "import os\nos._exit(0)\nprint(6)",
    "leaving before, politely": "import sys\nsys.exit(0)\nprint(6)",
    "not UTF-8": "import os\nos.write(1,b'\\xff6')",
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(pool: CodePool, name: str) -> None:
    outcome, detail = check(pool, WRONG[name], printed(("", "6")))
    assert (outcome, detail[:13]) == ("wrong", "test 1 of 1: ")


def test_details_say_what_happened(pool: CodePool) -> None:
    tests = printed(("", "6"))
    assert check(pool, "print(7)", tests)[1] == "test 1 of 1: another output"
    assert check(pool, "1/0", tests)[1].endswith(
        "exit status 1: ZeroDivisionError: division by zero"
    )
    assert check(pool, "import os\nos._exit(9)", tests)[1] == "test 1 of 1: exit status 9"


NO_OUTPUT = printed(("1\n", "6\n"), ("2\n", ""))  # for 2, nothing is to be printed


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        ("pass", "correct"),
        ("sys.exit(0)", "correct"),
        ("sys.exit()", "correct"),
        ("os._exit(0)", "wrong"),
        ("1/0", "wrong"),
        ("sys.exit(1)", "wrong"),
        ("os.abort()", "wrong"),
        ("import threading\n threading.Thread(target=lambda: 1/0).start()", "wrong"),
        ("import atexit\n atexit.register(lambda: os._exit(0))", "wrong"),
    ],
)
def test_no_output_is_no_proof(pool: CodePool, end: str, outcome: str) -> None:
    source = f"import os,sys\nif input()=='2':\n {end}\nelse: print(6)"
    assert check(pool, source, NO_OUTPUT)[0] == outcome


@pytest.mark.parametrize(
    "tests", [CodeTests(), printed(("1", "")), printed(("", "\n"), ("2", " "))]
)
def test_tests_that_prove_nothing_are_reported(pool: CodePool, tests: CodeTests) -> None:
    outcome, detail = check(pool, "pass", tests)
    assert outcome == "error"
    assert detail == tests.problem


def called(function: str, *cases: tuple[list, object]) -> CodeTests:
    return read_tests(
        json.dumps(
            {
                "fn_name": function,
                "inputs": [arguments for arguments, _ in cases],
                "outputs": [[value] for _, value in cases],
            }
        )
    )


TWICE = called("twice", ([[1, 2]], [2, 4]), ([[]], []))

CALLS = {
    "a function": ("def twice(v): return [2*x for x in v]", "correct"),
    "a method": (
        "class Solution:\n def twice(self, v: List[int]) -> List[int]:\n  return [2*x for x in v]",
        "correct",
    ),
    "names of the prelude": (
        "def twice(v):\n heapify(list(v)); Counter(v); inf\n return [pow(x,1,10**9)*2 for x in v]",
        "correct",
    ),
    "a tuple": ("def twice(v): return tuple(2*x for x in v)", "correct"),
    "a generator": ("def twice(v):\n for x in v: yield 2*x", "correct"),
    "a deque": (
        "from collections import deque\ndef twice(v): return deque(2*x for x in v)",
        "correct",
    ),
    "printing meanwhile": ("def twice(v):\n print('debug')\n return [2*x for x in v]", "correct"),
    "a main guard": (
        "def twice(v): return [2*x for x in v]\n"
        "if __name__=='__main__': print(twice(eval(input())))",
        "correct",
    ),
    "a set": ("def twice(v): return {2*x for x in v}", "wrong"),
    "its argument changed": ("def twice(v):\n v.append(0)\n return [2*x for x in v]", "wrong"),
    "an exception": ("def twice(v): raise ValueError", "wrong"),
    "no such function": ("def double(v): return [2*x for x in v]", "wrong"),
    "leaving": ("import os\ndef twice(v): os._exit(0)", "wrong"),
    "leaving politely": ("import sys\ndef twice(v): sys.exit(0)", "wrong"),
    "leaving at once": ("raise SystemExit", "wrong"),
    "right once": ("def twice(v):\n if not v: 1/0\n return [2*x for x in v]", "wrong"),
    "equal to anything": (
        "class A(list):\n def __eq__(self,o): return True\ndef twice(v): return A()",
        "wrong",
    ),
    "a million nested lists": (
        "def twice(v):\n r=[]\n for _ in range(10**6): r=[r]\n return r",
        "wrong",
    ),
    "not a number": ("def twice(v): return float('nan')", "wrong"),
    "a number of many digits": (
        "import sys\nsys.set_int_max_str_digits(0)\ndef twice(v): return 10**9999",
        "wrong",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(pool: CodePool, name: str) -> None:
    source, outcome = CALLS[name]
    assert check(pool, source, TWICE)[0] == outcome


@pytest.mark.parametrize("value", [None, "", [], 0, False])
def test_a_crash_is_no_empty_value(pool: CodePool, value: object) -> None:
    tests = called("solve", ([1], value), ([2], 5))
    assert check(pool, f"def solve(x): return {value!r} if x==1 else 5", tests)[0] == "correct"
    for crash in ("raise ValueError", "os._exit(0)", "sys.exit(0)"):
        source = f"import os,sys\ndef solve(x):\n if x==1: {crash}\n return 5"
        assert check(pool, source, tests)[0] == "wrong"


def test_each_test_has_its_own_time(pool: CodePool) -> None:
    with CodePool(limits=Limits(time_s=1.0, total_s=1.8), kind=pool.kind) as short:
        nap = "import time\ndef f(x):\n time.sleep(x)\n return x"
        assert check(short, nap, called("f", ([0.7], 0.7), ([0.7], 0.7)))[0] == "correct"
        assert check(short, nap, called("f", ([1.2], 1.2)))[0] == "timeout"
        assert check(short, nap, called("f", *[([0.7], 0.7)] * 3))[0] == "timeout"
        script = "import time\ntime.sleep(0.7)\nprint(6)"
        assert check(short, script, printed(("", "6"), ("", "6")))[0] == "correct"
        assert check(short, script, printed(*[("", "6")] * 3))[0] == "timeout"


def test_outcome_of_one_and_order_of_many() -> None:
    tests = printed(("", "6"))
    good, bad = "</think>\n```python\nprint(6)\n```", "</think>\n```python\nprint(7)\n```"
    assert code_outcome(good, tests, allow_unsandboxed=False) == "correct"
    with CodePool(workers=2) as pool:
        for ticket in range(40):
            pool.submit(ticket, (good, bad, "none")[ticket % 3], tests)
        outcomes: dict = {}
        while pool.pending:
            outcomes.update({d.ticket: d.outcome for d in pool.collect(5.0)})
        assert pool.collect(1.0) == []
    assert outcomes == {t: ("correct", "wrong", "no_answer")[t % 3] for t in range(40)}


def test_closing_does_not_wait_for_what_runs() -> None:
    pool = CodePool(workers=2, limits=Limits(time_s=60))
    for ticket in range(5):
        pool.submit(ticket, "</think>\n```python\nwhile True: pass\n```", printed(("", "6")))
    time.sleep(0.5)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 5.0
    with pytest.raises(RunError, match="closed"):
        pool.submit(9, "", printed(("", "6")))


def test_a_worker_that_cannot_go_on_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(code, "check_program", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with CodePool(workers=1) as pool:
        pool.submit(0, "", printed(("", "6")))
        with pytest.raises(RunError, match=r"answers ended \(MemoryError: none left\).*doctor"):
            pool.collect(10.0)


def test_without_a_sandbox_nothing_runs_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = sandbox_probe.Trial(kind="landlock", works=False, detail="not here")
    monkeypatch.setattr(sandbox_probe, "try_kind", lambda kind: nothing)
    with pytest.raises(InputError, match=r"not here.*--rewards.allow_unsandboxed_code"):
        CodePool()
    good = "</think>\n```python\nprint(6)\n```"
    assert code_outcome(good, printed(("", "6")), allow_unsandboxed=True) == "correct"
    with pytest.raises(InputError, match="only under bubblewrap"):
        CodePool(kind="landlock", limits=Limits(processes=True))


def test_closing_returns_when_a_sandbox_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()
    monkeypatch.setattr(code, "CLOSE_S", 0.2)
    monkeypatch.setattr(Sandbox, "close", lambda sandbox: held.wait(60))
    pool = CodePool(workers=2, kind="none")
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 20
    held.set()
