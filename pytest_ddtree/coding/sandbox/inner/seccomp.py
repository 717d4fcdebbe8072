"""An allow list of system calls as a classic BPF program, assembled here and installed by raw calls.

The program is a binary tree over ranges of call numbers, so that the kernel needs few steps for each of them
when it installs the filter, which happens once per run.
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from typing import Final

from .syscalls import PLAIN, Architecture

KILL: Final = 0x80000000
ALLOW: Final = 0x7FFF0000
ERRNO: Final = 0x00050000

EPERM, EAGAIN, EACCES, ENOTTY, ENOSYS = 1, 11, 13, 25, 38

_LOAD, _JEQ, _JGE, _AND, _RET = 0x20, 0x15, 0x35, 0x54, 0x06
_NR_OFFSET, _ARCH_OFFSET, _ARGS_OFFSET = 0, 4, 16

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant

# Write access, O_CREAT, O_TRUNC, O_PATH and O_TMPFILE: equal on both architectures.
_NOT_READ_ONLY: Final = 0o3 | 0o100 | 0o1000 | 0o10000000 | 0o20000000
_IOCTLS: Final = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # isatty, size, FIONREAD/BIO, close-on-exec
_FCNTLS: Final = (0, 1, 2, 3, 4, 1030)  # duplicates and flags of descriptors; no leases, owners, locks


@dataclass(frozen=True)
class Check:
    """The call passes when argument `index` (its low 32 bits, masked) is one of `values`.

    `whole` compares all 64 bits with the single value.
    """

    index: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    whole: bool = False


@dataclass(frozen=True)
class Guarded:
    """A call that passes when every check does, and fails with `error` otherwise."""

    checks: tuple[Check, ...]
    error: int


def rules(arch: Architecture, *, files: bool) -> dict[int, int | Guarded]:
    """What happens to each call that is not refused with EPERM; `files` allows opening files for reading."""
    table: dict[int, int | Guarded] = {arch.numbers[name]: ALLOW for name in PLAIN if name in arch.numbers}
    null = (0,)
    read_only = (Check(2, (0,), mask=_NOT_READ_ONLY),) if files else None
    special: dict[str, int | Guarded] = {
        "openat": Guarded(read_only, EACCES) if read_only else ERRNO | EACCES,
        "open": Guarded((Check(1, (0,), mask=_NOT_READ_ONLY),), EACCES) if files else ERRNO | EACCES,
        "ioctl": Guarded((Check(1, _IOCTLS),), ENOTTY),
        "fcntl": Guarded((Check(1, _FCNTLS),), EPERM),
        "prlimit64": Guarded((Check(0, null, whole=True), Check(2, null, whole=True)), EPERM),
        # asyncio wakes its loop through a pair of stream sockets; nothing else needs one.
        "socketpair": Guarded((Check(0, (1,)), Check(1, (1,), mask=0xF)), EPERM),
        "sendto": Guarded((Check(4, null, whole=True),), EPERM),
        "clone": ERRNO | EAGAIN,
        "fork": ERRNO | EAGAIN,
        "vfork": ERRNO | EAGAIN,
        "clone3": ERRNO | ENOSYS,
        "openat2": ERRNO | ENOSYS,
        "io_uring_setup": ERRNO | ENOSYS,
        "execve": ERRNO | EACCES,
        "execveat": ERRNO | EACCES,
    }
    if not files:
        # Without Landlock the links in /proc would tell which files other processes of this user have open.
        special |= {"readlink": ERRNO | EACCES, "readlinkat": ERRNO | EACCES}
    table.update({arch.numbers[name]: action for name, action in special.items() if name in arch.numbers})
    return table


def assemble(arch: Architecture, table: dict[int, int | Guarded]) -> list[Instruction]:
    """The filter: another architecture or ABI kills the process, a call without a rule fails with EPERM."""
    ranges: list[tuple[int, int | Guarded]] = []

    def start(number: int, action: int | Guarded) -> None:
        if not ranges or ranges[-1][1] != action:
            ranges.append((number, action))

    refused = ERRNO | EPERM
    expected = 0
    for number in sorted(table):
        if number > expected:
            start(expected, refused)
        start(number, table[number])
        expected = number + 1
    start(expected, refused)
    if arch.foreign_from is not None:
        start(arch.foreign_from, KILL)
    return [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JEQ, 1, 0, arch.audit),
        (_RET, 0, 0, KILL),
        (_LOAD, 0, 0, _NR_OFFSET),
        *_tree(ranges),
    ]


def _tree(ranges: list[tuple[int, int | Guarded]]) -> list[Instruction]:
    if len(ranges) == 1:
        action = ranges[0][1]
        return _guarded(action) if isinstance(action, Guarded) else [(_RET, 0, 0, action)]
    middle = len(ranges) // 2
    lower, upper = _tree(ranges[:middle]), _tree(ranges[middle:])
    if len(lower) > 255:
        raise ValueError("the filter is too long for one jump")
    return [(_JGE, len(lower), 0, ranges[middle][0]), *lower, *upper]


def _guarded(call: Guarded) -> list[Instruction]:
    code: list[Instruction] = []
    failed = (_RET, 0, 0, ERRNO | call.error)
    for check in call.checks:
        low = _ARGS_OFFSET + 8 * check.index
        if check.whole:
            (value,) = check.values
            for offset, half in ((low, value & 0xFFFFFFFF), (low + 4, value >> 32)):
                code += [(_LOAD, 0, 0, offset), (_JEQ, 1, 0, half), failed]
            continue
        code += [(_LOAD, 0, 0, low), (_AND, 0, 0, check.mask)]
        for position, value in enumerate(check.values):
            code.append((_JEQ, len(check.values) - position, 0, value))
        code.append(failed)
    code.append((_RET, 0, 0, ALLOW))
    return code


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Filter:
    """A program ready to be installed, so that a forked child has one call to make."""

    def __init__(self, arch: Architecture, instructions: list[Instruction]) -> None:
        raw = b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
        self._buffer = ctypes.create_string_buffer(raw, len(raw))
        self._program = _Program(len(instructions), ctypes.addressof(self._buffer))
        self._number = arch.numbers["seccomp"]
        self._libc = ctypes.CDLL(None, use_errno=True)

    def install(self) -> None:
        """Needs no_new_privs. Raises OSError when the kernel refuses."""
        set_filter, spec_allow = 1, 4
        pointer = ctypes.byref(self._program)
        # Without the flag kernels before 5.16 slow the whole process down; older ones do not know it.
        for flags in (spec_allow, 0):
            if self._libc.syscall(self._number, set_filter, flags, pointer) == 0:
                return
        error = ctypes.get_errno()
        raise OSError(error, "seccomp refused the filter")
