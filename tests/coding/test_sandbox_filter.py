"""The seccomp program, run by a small interpreter of classic BPF, for both architectures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.coding.sandbox.inner.seccomp import (
    ALLOW,
    EACCES,
    EAGAIN,
    ENOSYS,
    ENOTTY,
    EPERM,
    ERRNO,
    KILL,
    Instruction,
    assemble,
    rules,
)
from pytest_ddtree.coding.sandbox.inner.syscalls import ARCHITECTURES, PLAIN, Architecture

ARCHES = sorted(ARCHITECTURES)
NUMBERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)\s*$"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$"),
}


def verdict(program: list[Instruction], audit: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """What the kernel would do: interprets the instructions that the assembler may use."""
    data = number.to_bytes(4, "little") + audit.to_bytes(4, "little") + bytes(8)
    for argument in (arguments + (0,) * 6)[:6]:
        data += (argument & (2**64 - 1)).to_bytes(8, "little")
    accumulator = at = 0
    while True:
        code, true, false, constant = program[at]
        at += 1
        if code == 0x20:
            accumulator = int.from_bytes(data[constant : constant + 4], "little")
        elif code == 0x15:
            at += true if accumulator == constant else false
        elif code == 0x35:
            at += true if accumulator >= constant else false
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x06:
            return constant
        else:
            raise AssertionError(f"instruction {code:#x}")


class Machine:
    """A filter and how it answers."""

    def __init__(self, name: str, *, files: bool = True) -> None:
        self.arch: Architecture = ARCHITECTURES[name]
        self.program = assemble(self.arch, rules(self.arch, files=files))

    def __call__(self, call: str, *arguments: int) -> int:
        return verdict(self.program, self.arch.audit, self.arch.numbers[call], arguments)


@pytest.fixture(params=ARCHES)
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


@pytest.mark.parametrize("name", ARCHES)
def test_numbers_agree_with_the_kernel_headers(name: str) -> None:
    header, pattern = NUMBERS[name]
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    known = {m[1]: int(m[2]) for m in re.finditer(pattern, header.read_text(), re.MULTILINE)}
    # The generic table calls its 64-bit fstatat by this name.
    known.setdefault("newfstatat", known.get("fstatat", -1))
    assert {call: known.get(call) for call in ARCHITECTURES[name].numbers} == ARCHITECTURES[name].numbers


def test_plain_calls_are_allowed_whatever_their_arguments(machine: Machine) -> None:
    most = (2**64 - 1,) * 6
    for call in PLAIN & machine.arch.numbers.keys():
        assert machine(call) == machine(call, *most) == ALLOW, call


@given(st.sampled_from(ARCHES), st.integers(0, 2**32 - 1))
def test_everything_without_a_rule_is_refused(name: str, number: int) -> None:
    machine = Machine(name)
    if number in rules(machine.arch, files=True):
        return
    foreign = machine.arch.foreign_from
    expected = KILL if foreign is not None and number >= foreign else ERRNO | EPERM
    assert verdict(machine.program, machine.arch.audit, number) == expected


def test_each_small_number_is_allowed_only_by_a_rule(machine: Machine) -> None:
    table = rules(machine.arch, files=True)
    for number in range(1024):
        if number not in table:
            assert verdict(machine.program, machine.arch.audit, number) == ERRNO | EPERM


def test_another_architecture_is_killed(machine: Machine) -> None:
    for audit in (0, 0x40000003, *(a.audit for a in ARCHITECTURES.values() if a is not machine.arch)):
        assert verdict(machine.program, audit, machine.arch.numbers["read"]) == KILL


def test_files_open_for_reading_only(machine: Machine) -> None:
    read, cloexec, directory = 0, 0o2000000, 0o200000
    assert machine("openat", 0, 0, read | cloexec | directory) == ALLOW
    for flag in (0o1, 0o2, 0o3, 0o100, 0o1000, 0o10000000, 0o20000000, 0o101):
        assert machine("openat", 0, 0, flag) == ERRNO | EACCES


@pytest.mark.parametrize("name", ARCHES)
def test_without_landlock_no_file_opens_and_no_link_is_read(name: str) -> None:
    machine = Machine(name, files=False)
    assert machine("openat", 0, 0, 0) == ERRNO | EACCES
    assert machine("readlinkat") == ERRNO | EACCES


def test_no_process_thread_or_program_starts(machine: Machine) -> None:
    assert machine("clone") == ERRNO | EAGAIN
    assert machine("clone3") == ERRNO | ENOSYS
    assert machine("execve") == machine("execveat") == ERRNO | EACCES


def test_limits_are_read_only_and_only_ones_own(machine: Machine) -> None:
    assert machine("prlimit64", 0, 7, 0, 0x7FFF00001000) == ALLOW
    assert machine("prlimit64", 1, 7, 0, 0) == ERRNO | EPERM
    assert machine("prlimit64", 0, 7, 0x1000, 0) == ERRNO | EPERM
    assert machine("prlimit64", 0, 7, 0x7FFF00000000, 0) == ERRNO | EPERM, "the high half counts"


def test_socket_pairs_are_streams_of_unix(machine: Machine) -> None:
    nonblocking = 0o4000
    assert machine("socketpair", 1, 1 | nonblocking) == ALLOW
    assert machine("socketpair", 1, 2) == machine("socketpair", 2, 1) == ERRNO | EPERM
    assert machine("sendto", 3, 0, 0, 0, 0, 0) == ALLOW
    assert machine("sendto", 3, 0, 0, 0, 0x1000, 16) == ERRNO | EPERM
    assert machine("sendto", 3, 0, 0, 0, 1 << 40, 16) == ERRNO | EPERM


def test_descriptor_controls(machine: Machine) -> None:
    assert machine("ioctl", 0, 0x5401) == ALLOW
    assert machine("ioctl", 0, 0x5412) == ERRNO | ENOTTY, "typing into a terminal"
    assert machine("fcntl", 0, 1030) == ALLOW
    assert machine("fcntl", 0, 8) == ERRNO | EPERM, "signals to others"


def test_the_program_fits_the_kernel(machine: Machine) -> None:
    assert len(machine.program) <= 4096
    assert all(0 <= jump <= 255 for _, true, false, _ in machine.program for jump in (true, false))
