"""System call numbers by architecture, and which of them pure Python work needs.

Numbers: Linux `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h` (aarch64).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Allowed whatever the arguments: memory, time, waiting, reading and writing what is open already.
PLAIN: Final = frozenset({
    "read", "write", "readv", "writev", "pread64", "pwrite64", "close", "close_range", "fstat",
    "newfstatat", "stat", "lstat", "statx", "lseek", "mmap", "mprotect", "munmap", "mremap", "brk",
    "madvise", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "rt_sigpending",
    "rt_sigtimedwait", "rt_sigsuspend", "restart_syscall", "access", "faccessat", "faccessat2", "pipe",
    "pipe2", "select", "pselect6", "poll", "ppoll", "nanosleep", "clock_nanosleep", "clock_gettime",
    "clock_getres", "gettimeofday", "time", "getpid", "getppid", "gettid", "getuid", "geteuid",
    "getgid", "getegid", "getgroups", "getpgrp", "getpgid", "getsid", "getresuid", "getresgid",
    "sysinfo", "uname", "getcwd", "readlink", "readlinkat", "getdents64", "dup", "dup2", "dup3",
    "futex", "sched_yield", "sched_getaffinity", "getcpu", "set_robust_list", "rseq", "set_tid_address",
    "getrandom", "exit", "exit_group", "getrlimit", "getrusage", "times", "alarm", "setitimer",
    "getitimer", "pause", "umask", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait",
    "recvfrom", "getsockopt", "getsockname", "shutdown",
})  # fmt: skip

_X86_64: Final[dict[str, int]] = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7,
    "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13,
    "rt_sigprocmask": 14, "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "pwrite64": 18, "readv": 19,
    "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28,
    "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37, "setitimer": 38,
    "getpid": 39, "sendto": 44, "recvfrom": 45, "shutdown": 48, "getsockname": 51, "socketpair": 53,
    "getsockopt": 55, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "uname": 63,
    "fcntl": 72, "getcwd": 79, "readlink": 89, "umask": 95, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107,
    "getegid": 108, "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120,
    "getpgid": 121, "getsid": 124, "capset": 126, "rt_sigpending": 127, "rt_sigtimedwait": 128,
    "rt_sigsuspend": 130, "sigaltstack": 131, "gettid": 186, "time": 201, "futex": 202,
    "sched_getaffinity": 204, "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231,
    "epoll_wait": 232, "epoll_ctl": 233, "openat": 257, "newfstatat": 262, "readlinkat": 267,
    "faccessat": 269, "pselect6": 270, "ppoll": 271, "set_robust_list": 273, "epoll_pwait": 281,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "prlimit64": 302, "getcpu": 309, "seccomp": 317,
    "getrandom": 318, "execveat": 322, "statx": 332, "rseq": 334, "clone3": 435, "close_range": 436,
    "openat2": 437, "faccessat2": 439, "io_uring_setup": 425, "landlock_create_ruleset": 444,
    "landlock_add_rule": 445, "landlock_restrict_self": 446,
}  # fmt: skip

_AARCH64: Final[dict[str, int]] = {
    "getcwd": 17, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "dup": 23, "dup3": 24,
    "fcntl": 25, "ioctl": 29, "faccessat": 48, "openat": 56, "close": 57, "pipe2": 59, "getdents64": 61,
    "lseek": 62, "read": 63, "write": 64, "readv": 65, "writev": 66, "pread64": 67, "pwrite64": 68,
    "pselect6": 72, "ppoll": 73, "readlinkat": 78, "newfstatat": 79, "fstat": 80, "capset": 91,
    "exit": 93, "exit_group": 94, "set_tid_address": 96, "futex": 98, "set_robust_list": 99,
    "nanosleep": 101, "getitimer": 102, "setitimer": 103, "clock_gettime": 113, "clock_getres": 114,
    "clock_nanosleep": 115, "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128,
    "sigaltstack": 132, "rt_sigsuspend": 133, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "rt_sigpending": 136, "rt_sigtimedwait": 137, "rt_sigreturn": 139, "getresuid": 148, "getresgid": 150,
    "times": 153, "getpgid": 155, "getsid": 156, "getgroups": 158, "uname": 160, "getrlimit": 163,
    "getrusage": 165, "umask": 166, "getcpu": 168, "gettimeofday": 169, "getpid": 172, "getppid": 173,
    "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179,
    "socketpair": 199, "getsockname": 204, "sendto": 206, "recvfrom": 207, "getsockopt": 209,
    "shutdown": 210, "brk": 214, "munmap": 215, "mremap": 216, "clone": 220, "execve": 221, "mmap": 222,
    "mprotect": 226, "madvise": 233, "prlimit64": 261, "seccomp": 277, "getrandom": 278, "execveat": 281,
    "statx": 291, "rseq": 293, "io_uring_setup": 425, "clone3": 435, "close_range": 436, "openat2": 437,
    "faccessat2": 439, "landlock_create_ruleset": 444, "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """`audit` is the AUDIT_ARCH value seccomp sees; numbers from `foreign_from` up belong to another ABI
    (x32).
    """

    name: str
    audit: int
    numbers: dict[str, int]
    foreign_from: int | None = None


ARCHITECTURES: Final[dict[str, Architecture]] = {
    "x86_64": Architecture("x86_64", 0xC000003E, _X86_64, foreign_from=0x40000000),
    "aarch64": Architecture("aarch64", 0xC00000B7, _AARCH64),
}
