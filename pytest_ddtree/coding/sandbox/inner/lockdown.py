"""The other layers: resource limits, privileges, namespaces, and dying with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from typing import Final

from .syscalls import Architecture

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CLONE_NEWNET, _CLONE_NEWIPC, _CLONE_NEWUTS, _CLONE_NEWUSER = 0x40000000, 0x08000000, 0x04000000, 0x10000000
_CAPABILITY_VERSION_3: Final = 0x20080522
# Room for what an interpreter maps after the fork whatever the solution does.
_SLACK_BYTES: Final = 16 * 1024 * 1024
_OPEN_FILES: Final = 64

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if (
        _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
        != 0
    ):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl {option}: {os.strerror(error)}")


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """`number` comes when the parent ends; leaves at once if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(0)


def forbid_new_privileges() -> None:
    """No setuid program can raise what this process may do; seccomp and Landlock ask for it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide_from_processes() -> None:
    """Other processes of this user, children included, cannot open /proc/PID of this one, nor trace it."""
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_capabilities(arch: Architecture) -> None:
    """Empties every capability set. The user id stays: root's own interpreter is readable by root alone."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    if _libc.syscall(arch.numbers["capset"], ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"capset: {os.strerror(error)}")


def enter_namespaces() -> str:
    """New user, network, IPC and UTS namespaces; "" on success, else why not (nothing has changed then)."""
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC | _CLONE_NEWUTS) != 0:
        return os.strerror(ctypes.get_errno())
    with contextlib.suppress(OSError):
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return ""


def offer_to_oom_killer() -> None:
    """When the machine runs out of memory, this goes before a model server."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def virtual_bytes() -> int:
    """Address space this process has mapped."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def limit(which: int, wanted: int) -> None:
    """Sets soft and hard, or leaves the hard limit where it is lower already."""
    hard = resource.getrlimit(which)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (value, value))


def limit_resources(*, inherited_bytes: int, memory_bytes: int, stack_bytes: int, cpu_s: int) -> None:
    """Limits of one run. Memory is a budget on top of what the zygote had mapped before the fork."""
    limit(resource.RLIMIT_AS, inherited_bytes + memory_bytes + _SLACK_BYTES)
    limit(resource.RLIMIT_STACK, stack_bytes)
    limit(resource.RLIMIT_CPU, cpu_s)
    limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    for name in ("CORE", "FSIZE", "MEMLOCK", "MSGQUEUE", "NPROC", "RTPRIO"):
        limit(getattr(resource, f"RLIMIT_{name}"), 0)
