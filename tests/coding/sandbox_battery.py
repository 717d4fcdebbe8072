"""Runs cheats and prints a JSON object of verdicts; also started as another user and under a container's filter.

Arguments: `--container` for system calls refused as in a container on an old kernel, `--brief` for no cheats that
wait, and layers to do without. Needs the project on the module path and nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import socket
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sandbox_cheats import CHEATS, MARK, Cheat

from pytest_ddtree.coding.checking import check
from pytest_ddtree.coding.sandbox import Limits, Sandbox
from pytest_ddtree.coding.sandbox.inner import lockdown
from pytest_ddtree.coding.sandbox.inner.seccomp import ALLOW, EPERM, ERRNO, Filter
from pytest_ddtree.coding.sandbox.inner.syscalls import ARCHITECTURES

# Memory that a slow machine fills within a fifth of the time, also where each page costs a system call's worth.
_MEMORY = 64 << 20
LIMITS = Limits(cpu_s=1.0, wall_s=2.5, memory_bytes=_MEMORY, output_bytes=1 << 20)
# Nothing in the brief battery waits for the clock, so time that nobody uses costs nothing.
BRIEF_LIMITS = Limits(cpu_s=4.0, wall_s=15.0, memory_bytes=_MEMORY, output_bytes=1 << 20)


@dataclass(frozen=True)
class Case:
    args: tuple[Any, ...] = ()
    kwargs: Any = None
    calls: Any = ()
    stdin: str = ""
    expect: Any = None
    cmp: str = "exact"
    atol: float | None = None


@dataclass(frozen=True)
class Problem:
    task_id: str
    mode: str
    entry_point: str
    cases: tuple[Case, ...] = ()
    prompt: str = ""
    test: str = ""


def problem(mode: str, secret: str) -> Problem:
    """A problem that nobody can solve without knowing the secret."""
    if mode == "check":
        return Problem(
            "p", mode, "solve", test=f"def check(candidate):\n    assert candidate(1) == {secret!r}\n"
        )
    cmp = "lines" if mode == "stdin" else "exact"
    cases = tuple(Case(args=(key,), kwargs={}, stdin=f"{key}\n", expect=secret, cmp=cmp) for key in (1, 2))
    return Problem("p", mode, "solve", cases)


def battery(
    without: tuple[str, ...] = (), cheats: tuple[Cheat, ...] = CHEATS, limits: Limits = LIMITS
) -> dict[str, Any]:
    """Verdict and evidence by cheat, and what was found around them afterwards."""
    secret = MARK + secrets.token_hex(8)
    os.environ["DDTREE_TEST_SECRET"] = secret
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        file = os.path.join(folder, "answers.txt")
        with open(file, "w") as handle:
            handle.write(secret)
        places = {"file": file, "folder": folder, "checker": os.getpid(), "port": server.getsockname()[1]}
        with Sandbox(limits, workers=2, without=without) as sandbox:
            right = {
                "function": f"def solve(key): return {secret!r}",
                "stdin": f"print({secret!r})",
                "check": f"def solve(key): return {secret!r}",
            }

            def solved() -> dict[str, str]:
                return {
                    mode: check(problem(mode, secret), code, sandbox).status for mode, code in right.items()
                }

            def attempt(cheat: Cheat) -> tuple[str, dict[str, Any]]:
                outcome = check(problem(cheat.mode, secret), cheat.code(places), sandbox)
                return cheat.name, {"status": outcome.status, "got": outcome.got, "detail": outcome.detail}

            before = solved()
            zygotes = sandbox.pids
            with ThreadPoolExecutor(2) as pool:
                verdicts = dict(pool.map(attempt, cheats))
            after = solved()
            replaced = not set(zygotes) <= set(sandbox.pids)
            described = sandbox.capabilities.describe()
        try:
            server.accept()[0].close()
            connected = True
        except BlockingIOError:
            connected = False
        return {
            "verdicts": verdicts,
            "before": before,
            "after": after,
            "zygotes_died": replaced,
            "connected": connected,
            "files": sorted(os.listdir(folder)),
            "sandbox": described,
            "uid": os.getuid(),
        }


def enter_container() -> None:
    """Refuses Landlock and namespaces in this process and its children, as an old kernel in a container does."""
    arch = ARCHITECTURES[platform.machine()]
    refused = [
        *(arch.numbers[f"landlock_{name}"] for name in ("create_ruleset", "add_rule", "restrict_self")),
        {"x86_64": 272, "aarch64": 97}[arch.name],  # unshare
    ]
    code = [(0x20, 0, 0, 0)]
    for number in refused:
        code += [(0x15, 0, 1, number), (0x06, 0, 0, ERRNO | EPERM)]
    lockdown.forbid_new_privileges()
    Filter(arch, [*code, (0x06, 0, 0, ALLOW)]).install()


if __name__ == "__main__":
    options = sys.argv[1:]
    if "--container" in options:
        enter_container()
    brief = "--brief" in options
    chosen = tuple(cheat for cheat in CHEATS if not (cheat.waits and brief))
    layers = tuple(option for option in options if not option.startswith("--"))
    json.dump(battery(layers, chosen, BRIEF_LIMITS if brief else LIMITS), sys.stdout)
