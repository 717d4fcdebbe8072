"""What the sandbox of this system is made of, and why something is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .zygote_process import Mode

ADVICE = (
    "Solutions of a model are untrusted code and were not run. What to do: use a Linux kernel with seccomp "
    "filters (x86-64 or aarch64); in a container, do not deny seccomp(2) and prctl(2) (the default profiles "
    "of Docker and Podman allow them); or accept the risk with mode 'off' (--ddtree-sandbox off), best in a "
    "throw-away machine."
)
OFF = (
    "the sandbox is OFF: solutions of a model run as this user, with resource limits only. They can read and "
    "delete files, use the network, start processes, read the tests' answers and forge verdicts."
)


@dataclass(frozen=True, slots=True)
class SandboxCapabilities:
    """Layers in force.

    usable: solutions can be run in this mode. reasons: for each missing layer (or for being unusable) one
    line. files: "landlock" (standard library and shared libraries readable), "none" (no file can be opened;
    imports come
        from what was loaded before), "open" (mode off).
    namespaces: own user, network, IPC and UTS namespaces, an extra that containers and some distributions
    refuse.
    """

    usable: bool
    mode: Mode
    seccomp: bool = False
    files: Literal["landlock", "none", "open"] = "open"
    landlock_abi: int = 0
    namespaces: bool = False
    interpreter: str = ""
    python: str = ""
    machine: str = ""
    kernel: str = ""
    reasons: tuple[str, ...] = ()

    def describe(self) -> str:
        """One line for a report's header."""
        if not self.usable:
            return "sandbox: not available (" + "; ".join(self.reasons) + ")"
        if self.mode == "off":
            return "sandbox: OFF, resource limits only"
        files = f"Landlock ABI {self.landlock_abi}" if self.files == "landlock" else "no files at all"
        layers = ["seccomp", files, "rlimits", *(["namespaces"] if self.namespaces else [])]
        return "sandbox: " + ", ".join(layers)


def from_hello(hello: dict[str, Any], mode: Mode, interpreter: str) -> SandboxCapabilities:
    """The capabilities a zygote reported."""
    reasons = [
        f"{layer}: {hello[key]}"
        for layer, key in (
            ("start", "trouble"),
            ("seccomp", "no_seccomp"),
            ("Landlock", "no_landlock"),
            ("namespaces", "no_namespaces"),
        )
        if hello[key]
    ]
    strict = mode == "strict"
    seccomp = strict and not hello["no_seccomp"] and not hello["trouble"]
    return SandboxCapabilities(
        usable=not hello["trouble"] and (seccomp or not strict),
        mode=mode,
        seccomp=seccomp,
        files="open" if not strict else "landlock" if hello["landlock_abi"] else "none",
        landlock_abi=hello["landlock_abi"],
        namespaces=strict and not hello["no_namespaces"],
        interpreter=interpreter,
        python=hello["python"],
        machine=hello["machine"],
        kernel=hello["kernel"],
        reasons=tuple(reasons),
    )
