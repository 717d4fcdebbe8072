"""What honest solutions can do in the sandbox, and what its limits do to others."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandbox_processes import gone

from pytest_ddtree.coding.sandbox import (
    Done,
    Ended,
    Limits,
    Missing,
    Odd,
    ProgramResult,
    Raised,
    Sandbox,
    SandboxBrokenError,
    SandboxError,
    SandboxOffWarning,
    SandboxUnavailableError,
    Value,
    probe,
)
from pytest_ddtree.coding.sandbox.inner.codec import decode
from pytest_ddtree.coding.sandbox.sandbox import call
from pytest_ddtree.coding.sandbox.zygote_process import interpreter

# Far more time than any of them takes: what a limit of time does is seen where it is small.
LIMITS = Limits(cpu_s=30, wall_s=120, memory_bytes=128 << 20, output_bytes=1 << 20)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS, workers=2) as opened:
        yield opened


def answer(sandbox: Sandbox, source: str, *arguments: Any, **keywords: Any) -> Any:
    """The value of one call of `f`."""
    (result,) = sandbox.run_function(source, "f", [(arguments, keywords)])
    assert isinstance(result, Value), result
    return decode(result.encoded)


@pytest.mark.parametrize(
    ("source", "arguments", "expected"),
    [
        ("def f(a, b=2): return a + b", (1,), 3),
        ("f = lambda x: x * 2", ("ab",), "abab"),
        ("import functools\n@functools.lru_cache\ndef f(n): return n if n < 2 else f(n-1) + f(n-2)", (80,), 23416728348467685),
        ("async def f(x):\n    import asyncio\n    await asyncio.sleep(0)\n    return x", (7,), 7),
        ("class Solution:\n    def f(self, x): return x + 1", (1,), 2),
        ("class f:\n    def __new__(cls, x): return x", (5,), 5),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef f(x): return P(x).x", (4,), 4),
        ("from collections import Counter\ndef f(x): return Counter(x)", ("aab",), {"a": 2, "b": 1}),
        ("from collections import defaultdict\ndef f(x): return [defaultdict(list, k=x)]", (1,), [{"k": 1}]),
        ("from collections import namedtuple\nP = namedtuple('P', 'a b')\ndef f(x): return P(x, {P(1, 2)})", (0,), (0, {(1, 2)})),
        ("def f(x):\n    print('noise'); return x", (None,), None),
        ("import sys\ndef f(x):\n    print('noise', file=sys.stderr, flush=True); return x", (1,), 1),
        ("import os\ndef f(x): return [os.path.samestat(os.fstat(fd), os.stat('/dev/null')) for fd in range(3)]", (0,), [True] * 3),
        ("import sys\ndef f(n): return n if n == 0 else f(n - 1)\nsys.setrecursionlimit(10**6)", (20000,), 0),
        ("if __name__ == '__main__':\n    input()\ndef f(x): return __name__", (0,), "solution"),
        ("import os\ndef f(x): return dict(os.environ)", (0,), {}),
        ("import time\ndef f(x): return time.tzname[0]", (0,), "UTC"),
        ("import os\ndef f(x): return os.path.isdir(os.getcwd()) and os.path.basename(os.getcwd())[:6]", (0,), "ddtree"),
        ("import threading, queue, logging, unittest, typing, abc\ndef f(x):\n    with threading.Lock(): return x", (1,), 1),
        ("import pickle\nclass A: pass\ndef f(x): return type(pickle.loads(pickle.dumps(A()))).__name__", (1,), "A"),
        ("import inspect\ndef f(x):\n    return inspect.getsource(f).splitlines()[0]", (1,), "def f(x):"),
    ],
)  # fmt: skip
def test_functions(sandbox: Sandbox, source: str, arguments: tuple[Any, ...], expected: Any) -> None:
    assert answer(sandbox, source, *arguments) == expected


LIBRARY = """
import bisect, bz2, csv, decimal, difflib, hashlib, heapq, json, lzma, math, re, sqlite3, ssl, zlib
def f(data):
    table = sqlite3.connect(":memory:").execute("select 6 * 7").fetchone()
    return hashlib.sha256(bz2.decompress(bz2.compress(data))).hexdigest(), table, bool(ssl.OPENSSL_VERSION)
"""


def test_extension_modules_and_their_libraries_load(sandbox: Sandbox) -> None:
    assert answer(sandbox, LIBRARY, b"x") == (hashlib.sha256(b"x").hexdigest(), (42,), True)


def test_calls_of_one_run_share_the_process_and_runs_do_not(sandbox: Sandbox) -> None:
    source = "seen = []\ndef f(x):\n    seen.append(x)\n    return list(seen)"
    calls = [((1,), {}), ((), {"x": 2})]
    values = [decode(result.encoded) for result in sandbox.run_function(source, "f", calls)]  # type: ignore[union-attr]
    assert values == [[1], [1, 2]]
    assert answer(sandbox, source, 3) == [3]


def test_runs_are_reproducible(sandbox: Sandbox) -> None:
    source = "import random\ndef f(words): return [list(set(words)), random.random(), hash('x'), random.sample(range(99), 5)]"
    words = [f"w{number}" for number in range(30)]
    with Sandbox(LIMITS, workers=1) as another:
        assert (
            answer(sandbox, source, words) == answer(sandbox, source, words) == answer(another, source, words)
        )


def test_values_that_cannot_cross_are_named(sandbox: Sandbox) -> None:
    (result,) = sandbox.run_function("def f(): return open", "f", [((), {})])
    assert result == Odd("a value of type builtins.builtin_function_or_method")


def test_the_traceback_shows_the_solution_and_nothing_of_ours(sandbox: Sandbox) -> None:
    source = "def g(x):\n    return 1 / x\n\ndef f(x):\n    return g(x)\n"
    (result,) = sandbox.run_function(source, "f", [((0,), {})])
    assert isinstance(result, Raised)
    assert result.type_name == "ZeroDivisionError"
    assert result.traceback.splitlines() == [
        '  File "<solution>", line 5, in f',
        "    return g(x)",
        '  File "<solution>", line 2, in g',
        "    return 1 / x",
        "ZeroDivisionError: division by zero",
    ]


RAISES = """
def f():
    try:
        raise ValueError(0)
    except ValueError:
        raise BadInput("negative")
"""


@pytest.mark.parametrize(
    "source",
    [
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass BadInput(Exception):\n    reason: str\n",
        (
            "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass BadInput(Exception):\n    reason: str\n"
            "    def __str__(self): return self.reason\n"
        ),
        (
            "class BadInput(Exception):\n    __slots__ = ()\n    def __setattr__(self, *_): raise AttributeError('immutable')\n"
            "    def __delattr__(self, *_): raise AttributeError('immutable')\n"
        ),
        "class BadInput(Exception):\n    def __setattr__(self, name, value): pass\n",
        "class BadInput(Exception):\n    __cause__ = property(lambda self: None)\n",
        "class BadInput(Exception):\n    __cause__ = property(lambda self: BadInput('without end'))\n",
        "class BadInput(Exception):\n    __context__ = property(lambda self: BadInput('without end'))\n",
        "class BadInput(Exception):\n    __cause__ = 5\n    __context__ = 'x'\n    __suppress_context__ = None\n",
        "class BadInput(Exception):\n    def __getattribute__(self, name): raise RuntimeError(name)\n",
        (
            "class BadInput(Exception):\n    def __getattribute__(self, name):\n"
            "        return BadInput('without end') if name in ('__cause__', '__context__') else super().__getattribute__(name)\n"
        ),
        "class BadInput(Exception):\n    __traceback__ = property(lambda self: 1 / 0)\n",
        "class BadInput(Exception):\n    __notes__ = property(lambda self: 1 / 0)\n",
        "class Slotted(Exception):\n    __slots__ = ('reason',)\nclass BadInput(Slotted):\n    __cause__ = __context__ = None\n",
    ],
    ids=[
        *("frozen", "frozen_with_slots", "immutable", "keeps_nothing", "cause", "endless_causes", "endless_contexts", "no_links"),
        *("no_attributes", "endless_attributes", "no_traceback", "no_notes", "slots"),
    ],
)  # fmt: skip
def test_an_exception_is_shown_with_line_type_and_text_whatever_its_class_refuses(
    sandbox: Sandbox, source: str
) -> None:
    (result,) = sandbox.run_function(source + RAISES, "f", [((), {})])
    assert isinstance(result, Raised), result
    assert result.type_name == "BadInput"
    number = (source + RAISES).splitlines().index('        raise BadInput("negative")') + 1
    assert result.traceback.splitlines() == [
        f'  File "<solution>", line {number}, in f',
        '    raise BadInput("negative")',
        "solution.BadInput: negative",
    ]


@pytest.mark.parametrize(
    ("raised", "last"),
    [
        ("ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup: g (1 sub-exception)"),
        ("Noted('x')", "solution.Noted: x\nfirst\nsecond"),
        ("Silent()", "solution.Silent: <exception str() failed>"),
        ("Bare()", "solution.Bare"),
    ],
)
def test_the_last_line_of_an_exception_that_leads_on_to_others(
    sandbox: Sandbox, raised: str, last: str
) -> None:
    source = """
class Odd(Exception):
    __cause__ = property(lambda self: Odd())
class Noted(Odd):
    def __init__(self, text):
        super().__init__(text)
        self.add_note("first")
        self.add_note("second")
class Silent(Odd):
    def __str__(self): raise ValueError
class Bare(Odd): pass
"""
    (result,) = sandbox.run_function(f"{source}\ndef f(): raise {raised}\n", "f", [((), {})])
    assert isinstance(result, Raised), result
    assert result.traceback.partition(f"    def f(): raise {raised}\n")[2] == last


def test_long_tracebacks_are_cut(sandbox: Sandbox) -> None:
    (result,) = sandbox.run_function("def f(): return f()", "f", [((), {})])
    assert isinstance(result, Raised)
    assert "more calls" in result.traceback
    assert len(result.traceback) < 3000


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("def f(:", "SyntaxError"), ("import nonexistent", "ModuleNotFoundError"), ("x = \0", "SyntaxError"),
        ("raise KeyError(1)", "KeyError"),
    ],
)  # fmt: skip
def test_a_source_that_does_not_load(sandbox: Sandbox, source: str, kind: str) -> None:
    (result,) = sandbox.run_function(source, "f", [((), {}), ((), {})])
    assert isinstance(result, Raised)
    # Python 3.11 reports a null byte as ValueError.
    assert result.type_name in {kind, "ValueError"}


def test_a_missing_entry_point(sandbox: Sandbox) -> None:
    assert sandbox.run_function("def g(): pass", "f", [((), {})]) == [Missing("f")]


def test_memory_is_a_budget_on_top_of_the_interpreter(sandbox: Sandbox) -> None:
    assert answer(sandbox, "def f(n): return len(bytearray(n))", 100 << 20) == 100 << 20
    (result,) = sandbox.run_function("def f(n): return len(bytearray(n))", "f", [((160 << 20,), {})])
    assert result == Ended("memory", "the memory limit was reached")


def test_cpu_time_counts_for_each_call_and_sleeping_is_free() -> None:
    source = (
        "import time\ndef f(s):\n    end = time.process_time() + s\n    while time.process_time() < end: pass\n"
        "    time.sleep(0.15)\n    return 1"
    )
    with Sandbox(Limits(cpu_s=0.5, wall_s=120), workers=1) as sandbox:
        calls = [((0.15,), {})] * 4 + [((600,), {})]
        results = sandbox.run_function(source, "f", calls)
    assert [type(result) for result in results] == [Value] * 4 + [Ended]
    assert results[-1] == Ended("timeout", "more than 0.5 s of CPU time")


def test_wall_time_is_limited_too() -> None:
    with Sandbox(Limits(cpu_s=5, wall_s=0.3), workers=1) as sandbox:
        (result,) = sandbox.run_function("import time\ndef f(): time.sleep(60)", "f", [((), {})])
    assert result == Ended("timeout", "more than 0.3 s of elapsed time")


PROGRAMS = [
    ("print(sum(map(int, input().split())))", "1 2\n", "3\n"),
    ("import sys\nprint(sys.stdin.read().upper(), end='')", "ab\ncd", "AB\nCD"),
    ("import sys\nn = int(sys.stdin.buffer.readline())\nprint(n, sys.stdin.read())", "2\nrest", "2 rest\n"),
    ("import os\nprint(os.read(0, 100))", "raw", "b'raw'\n"),
    ("for line in open(0): print(line.strip()[::-1])", "ab\ncd\n", "ba\ndc\n"),
    ("if __name__ == '__main__':\n    print('main')", "", "main\n"),
    ("import sys\ndef main():\n    print('x')\n    sys.exit(0)\nmain()", "", "x\n"),
    ("import sys\nsys.stdout.write('no newline')", "", "no newline"),
    ("if input() == '0':\n    print('none')\n    exit()\nprint('some')", "0\n", "none\n"),
    ("print('x')\nquit(0)", "", "x\n"),
    ("import sys\nsys.stdout.buffer.write(b'\\xff\\n')", "", "\ufffd\n"),
    ("print('é', input())", "ü\n", "é ü\n"),
    ("import atexit\natexit.register(print, 'bye')\nprint('hi')", "", "hi\nbye\n"),
    ("import os\nprint('x', flush=True)\nos._exit(0)", "", "x\n"),
    ("import fileinput\nprint(sum(1 for _ in fileinput.input('-')))", "a\nb\n", "2\n"),
]


@pytest.mark.parametrize(("source", "stdin", "stdout"), PROGRAMS)
def test_programs(sandbox: Sandbox, source: str, stdin: str, stdout: str) -> None:
    result = sandbox.run_program(source, stdin)
    assert isinstance(result, ProgramResult), result
    assert result.stdout.decode("utf-8", "replace") == stdout
    assert (result.exit_status, result.stderr) == (0, "")


def test_large_input_and_output_do_not_block_each_other(sandbox: Sandbox) -> None:
    text = "".join(f"{number}\n" for number in range(100_000))
    result = sandbox.run_program("import sys\nfor line in sys.stdin: sys.stdout.write(line)", text)
    assert isinstance(result, ProgramResult)
    assert result.stdout.decode() == text


def test_a_program_may_leave_its_input_unread(sandbox: Sandbox) -> None:
    result = sandbox.run_program("print('done')", "x" * 1_000_000)
    assert isinstance(result, ProgramResult)
    assert result.stdout == b"done\n"


@pytest.mark.parametrize(
    ("source", "status", "stderr"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("exit(3)", 3, ""),
        ("exit('why')", 1, "SystemExit: why"),
        ("raise SystemExit('why')", 1, "SystemExit: why"),
        ("x = 1\nx.y", 1, "line 2, in <module>"),
        ("import sys\nprint('to stderr', file=sys.stderr)", 0, "to stderr"),
    ],
)
def test_exit_status_and_stderr(sandbox: Sandbox, source: str, status: int, stderr: str) -> None:
    result = sandbox.run_program(source, "")
    assert isinstance(result, ProgramResult)
    assert result.exit_status == status
    assert stderr in result.stderr


def test_a_program_that_does_not_compile(sandbox: Sandbox) -> None:
    result = sandbox.run_program("print(", "")
    assert isinstance(result, Raised)
    assert result.type_name == "SyntaxError"


def test_output_over_the_cap_ends_the_run(sandbox: Sandbox) -> None:
    result = sandbox.run_program("print('x' * (2 << 20))", "")
    assert result == Ended("crash", "the solution's process wrote more than 1048576 bytes")


def test_asserts_inside_the_sandbox(sandbox: Sandbox) -> None:
    source = "class Stack(list):\n    def push(self, x): self.append(x)\n"
    assert sandbox.run_asserts(source, "Stack", "s = Stack()\ns.push(1)\nassert s == [1]") == Done()
    result = sandbox.run_asserts(source, "Stack", "def check(cls):\n    assert cls() == [1]")
    assert isinstance(result, Raised)
    assert "line 2, in check" in result.traceback


def test_threads_share_a_sandbox(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(answer, sandbox, "def f(x): return x * x", number) for number in range(60)]
        assert [job.result() for job in jobs] == [number * number for number in range(60)]
    assert len(sandbox.pids) == 2


def test_a_sandbox_outlives_the_thread_that_opened_it() -> None:
    with ThreadPoolExecutor(1) as pool:
        sandbox = pool.submit(Sandbox(LIMITS, workers=1).open).result()
    try:
        assert answer(sandbox, "def f(): return 1") == 1
        pids = sandbox.pids
        assert answer(sandbox, "def f(): return 2") == 2
        assert sandbox.pids == pids
    finally:
        sandbox.close()


def test_alone_means_alone(sandbox: Sandbox) -> None:
    inside = threading.Event()
    free = threading.Event()
    order: list[str] = []

    def long_run() -> None:
        with sandbox.session("def f(): return 1"):
            inside.set()
            free.wait(60)
            order.append("shared run over")

    def run_alone() -> None:
        with sandbox.alone():
            order.append("alone")
            answer(sandbox, "def f(): return 1")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(long_run)
        assert inside.wait(60)
        second = pool.submit(run_alone)
        free.set()
        first.result(60)
        second.result(60)
    assert order == ["shared run over", "alone"]


def test_a_dead_zygote_is_an_error_and_is_replaced() -> None:
    with Sandbox(LIMITS, workers=1) as sandbox:
        (pid,) = sandbox.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxBrokenError, match=r"has died|Broken pipe|reset"):
            answer(sandbox, "def f(): return 1")
        assert answer(sandbox, "def f(): return 1") == 1
        assert sandbox.pids != [pid]


def test_a_zygote_that_dies_during_a_run_is_an_error() -> None:
    def sleep_until_killed(sandbox: Sandbox) -> None:
        (pid,) = sandbox.pids
        with sandbox.session("import time\ndef f(s): time.sleep(s)") as (run, _):
            # Its first answer says that it runs.
            assert isinstance(call(run, "f", (0,), {}), Value)
            timer = threading.Timer(0.3, os.kill, (pid, signal.SIGKILL))
            timer.start()
            try:
                call(run, "f", (60,), {})
            finally:
                timer.join()

    with Sandbox(LIMITS, workers=1) as sandbox, pytest.raises(SandboxBrokenError):
        sleep_until_killed(sandbox)


def test_a_closed_sandbox_says_so() -> None:
    sandbox = Sandbox(LIMITS, workers=1)
    with pytest.raises(SandboxError, match="not open"):
        answer(sandbox, "def f(): return 1")
    with sandbox:
        pids = sandbox.pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(SandboxError, match="not open"):
        answer(sandbox, "def f(): return 1")


def test_without_kernel_filters_nothing_runs_and_the_error_says_what_to_do() -> None:
    with pytest.raises(
        SandboxUnavailableError, match=r"left out on request(.|\n)*What to do: .*--ddtree-sandbox off"
    ):
        Sandbox(LIMITS, without=("seccomp",)).open()


def test_off_is_loud_and_open() -> None:
    reader = f"def f(): return open({str(Path(__file__))!r}).read(3)"
    with pytest.warns(SandboxOffWarning, match=r"OFF.*delete files.*forge"):
        sandbox = Sandbox(LIMITS, mode="off", workers=1).open()
    try:
        assert answer(sandbox, reader) == '"""'
        assert sandbox.capabilities.describe() == "sandbox: OFF, resource limits only"
        (result,) = sandbox.run_function("def f(n): return len(bytearray(n))", "f", [((1 << 30,), {})])
        assert result == Ended("memory", "the memory limit was reached")
    finally:
        sandbox.close()


def test_off_ends_what_solutions_started() -> None:
    source = "import os, time\ndef f():\n    pid = os.fork()\n    if pid == 0:\n        time.sleep(600)\n    return pid\n"
    with pytest.warns(SandboxOffWarning):
        sandbox = Sandbox(LIMITS, mode="off", workers=1).open()
    try:
        (result,) = sandbox.run_function(source, "f", [((), {})])
    finally:
        sandbox.close()
    if isinstance(result, Raised):
        assert os.getuid() != 0, result
        return  # a plain user's limit on processes holds
    assert isinstance(result, Value)
    assert gone(decode(result.encoded))


def test_tiny_limits_do_not_stop_the_sandbox_from_opening() -> None:
    with Sandbox(Limits(cpu_s=0.01, memory_bytes=1), workers=1) as sandbox:
        assert sandbox.capabilities.usable


def test_strict_does_not_read_what_off_reads(sandbox: Sandbox) -> None:
    (result,) = sandbox.run_function(
        f"def f(): return open({str(Path(__file__))!r}).read(3)", "f", [((), {})]
    )
    assert isinstance(result, Raised)
    assert result.type_name == "PermissionError"


def test_probe_reports_layers_and_reasons(sandbox: Sandbox) -> None:
    found = probe()
    assert found == sandbox.capabilities
    assert found.usable
    assert found.seccomp
    assert found.interpreter == interpreter() == os.path.realpath(found.interpreter)
    assert found.files in ("landlock", "none")
    assert bool(found.landlock_abi) == (found.files == "landlock")
    assert len(found.reasons) == (not found.landlock_abi) + (not found.namespaces)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probe("off").mode == "off"


def test_lower_hard_limits_are_respected() -> None:
    script = (
        "import resource\n"
        "from pytest_ddtree.coding.sandbox.inner.lockdown import limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n"
        "limit(resource.RLIMIT_NOFILE, 64)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
        "limit(resource.RLIMIT_NOFILE, 40)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    project = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:2] == ["(50, 50)", "(40, 40)"]


def test_under_low_hard_limits_the_sandbox_still_works() -> None:
    script = (
        "import resource\n"
        "for name in ('NOFILE', 'STACK', 'AS', 'CPU'):\n"
        "    which = getattr(resource, 'RLIMIT_' + name)\n"
        "    low = {'NOFILE': 48, 'STACK': 4 << 20, 'AS': 600 << 20, 'CPU': 100}[name]\n"
        "    resource.setrlimit(which, (low, low))\n"
        "from pytest_ddtree.coding.sandbox import Sandbox, Limits, Ended\n"
        "with Sandbox(Limits(memory_bytes=4 << 30, stack_bytes=64 << 20), workers=1) as sandbox:\n"
        "    calls = [((1 << 20,), {}), ((1 << 30,), {})]\n"
        "    first, second = sandbox.run_function('def f(n): return len(bytearray(n))', 'f', calls)\n"
        "    print(type(first).__name__, second.how)\n"
    )
    project = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.stdout == "Value memory\n", done.stderr


@pytest.mark.parametrize(
    "fields",
    [{"cpu_s": 0}, {"cpu_s": float("nan")}, {"wall_s": -1}, {"wall_s": float("inf")}, {"memory_bytes": 0},
     {"stack_bytes": 0}, {"output_bytes": 0}],
)  # fmt: skip
def test_limits_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        Limits(**fields)
