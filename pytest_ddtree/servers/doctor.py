"""`pytest-ddtree doctor`: what is there, what is missing, how to fix it. Starts no server."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path
from typing import Literal

from pytest_ddtree.dialects import registry
from pytest_ddtree.option_values import argument, port, shell_words
from pytest_ddtree.servers import chosen, gpu, lock, ports, stale
from pytest_ddtree.servers.argv import environment
from pytest_ddtree.servers.errors import ServerError
from pytest_ddtree.servers.probe import Probed, probe
from pytest_ddtree.servers.settings import ServerSettings
from pytest_ddtree.servers.startable import check_programs
from pytest_ddtree.servers.supervise import Supervisor

State = Literal["ok", "note", "missing"]

_EMBEDDED = ("starlette", "uvicorn", "safetensors", "tokenizers")
_SUITES = ("pytest_asyncio", "hypothesis", "pytest_jsonreport", "markdown_it")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: `missing` makes the exit code 1, `note` is worth knowing."""

    topic: str
    state: State
    text: str
    fix: str | None = None


def run(argv: Sequence[str]) -> int:
    """Print the report; returns 1 when something that was asked for is missing, else 0."""
    parser = argparse.ArgumentParser(
        prog="pytest-ddtree doctor", description="Says what is there and what is missing. Starts no server."
    )
    parser.add_argument(
        "--python",
        help="interpreter that has SGLang; without it SGLang is looked for in the one that runs now",
    )
    parser.add_argument("--sglang-src", type=Path, help="SGLang checkout, put first on PYTHONPATH")
    parser.add_argument(
        "--launch-prefix", type=argument(shell_words), default=(), help="words before the server's command"
    )
    parser.add_argument("--dialect", help="how the build spells a config; default: probed")
    parser.add_argument("--port", type=argument(port), help="a port that must be free")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(argv)
    wanted = options.python is not None or options.sglang_src is not None or bool(options.launch_prefix)
    findings = [
        *_interpreter(),
        *_embedded(),
        *_sglang(options, wanted),
        *_dialects(),
        *_gpus(wanted),
        *_port(options.port),
        *_sandbox(),
        *_leftovers(),
    ]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _print(findings)
    return 1 if any(finding.state == "missing" for finding in findings) else 0


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        print(f"{finding.state:<7}  {finding.topic:<{width}}  {finding.text}")
        if finding.fix:
            print(f"{'':<7}  {'':<{width}}  -> {finding.fix}")


def _interpreter() -> Iterator[Finding]:
    text = f"Python {platform.python_version()} ({sys.executable}), pytest-ddtree {_version('pytest-ddtree')}, pytest {_version('pytest')}"
    yield Finding("interpreter", "ok", text)
    lacking = [name for name in _SUITES if importlib.util.find_spec(name) is None]
    if lacking:
        yield Finding(
            "suites", "note", f"not installed: {', '.join(lacking)}", "pip install 'pytest-ddtree[suites]'"
        )


def _embedded() -> Iterator[Finding]:
    lacking = [name for name in _EMBEDDED if importlib.util.find_spec(name) is None]
    weights = Path(__file__).resolve().parents[1] / "reference" / "weights"
    absent = [name for name in ("target", "draft") if not (weights / name / "model.safetensors").exists()]
    if lacking:
        yield Finding(
            "embedded server",
            "missing",
            f"not installed: {', '.join(lacking)}",
            "pip install 'pytest-ddtree[reference]'",
        )
    elif absent:
        fix = "install the package anew, or give --ddtree-model and --ddtree-draft-model"
        yield Finding(
            "embedded server", "missing", f"its weights are not there: {', '.join(absent)} in {weights}", fix
        )
    else:
        yield Finding("embedded server", "ok", "libraries and weights are there")


def _sglang(options: argparse.Namespace, wanted: bool) -> Iterator[Finding]:
    if not wanted and importlib.util.find_spec("sglang") is None:
        yield Finding(
            "SGLang",
            "note",
            "not in this interpreter",
            "name the one that has it: pytest-ddtree doctor --python PATH",
        )
        return
    with tempfile.TemporaryDirectory(prefix="ddtree-doctor-") as folder:
        settings = ServerSettings(
            kind="sglang",
            run_dir=Path(folder),
            python=options.python,
            sglang_src=options.sglang_src,
            launch_prefix=options.launch_prefix,
            dialect=options.dialect,
        )
        try:
            check_programs(settings)
            with _supervised(Path(folder)) as supervisor:
                found = probe(settings, supervisor, environment(settings))
            dialect = chosen.dialect(settings) or registry.of_build(found.build)
        except ServerError as error:
            yield Finding(
                "SGLang", "missing", error.what + (f": {error.why}" if error.why else ""), error.hint
            )
            return
    yield Finding("SGLang", "ok", _build(found))
    tested = "" if dialect.tested else " (untested: written from the build's documents alone)"
    yield Finding("dialect", "ok", f"{dialect.name}: {dialect.about}{tested}")
    if dialect.name == "dflash":
        fix = "a fork with DDTree is needed for trees: --ddtree-python or --ddtree-sglang-src; or describe it in TOML for --ddtree-dialect"
        yield Finding(
            "dialect",
            "note",
            f"this build has the chain only; its tree flags: {found.build.listing('tree')}",
            fix,
        )


def _build(found: Probed) -> str:
    where = found.source
    parts = [f"version {found.build.version or 'unknown'}", f"{len(found.build.flags)} flags"]
    if where is not None:
        parts.append(f"sources {where.path}")
        if where.revision is not None:
            parts.append(f"revision {where.label}{' (changed)' if where.dirty else ''}")
    return ", ".join(parts)


def _dialects() -> Iterator[Finding]:
    untested = ", ".join(dialect.name for dialect in registry.DIALECTS if not dialect.tested)
    tested = ", ".join(dialect.name for dialect in registry.DIALECTS if dialect.tested)
    yield Finding("dialects", "ok", f"tested: {tested}; untested: {untested}; or a TOML file of your own")


def _gpus(wanted: bool) -> Iterator[Finding]:
    found = gpu.load()
    if found is None:
        fix = "pip install 'pytest-ddtree[gpu]' and check the driver with nvidia-smi; the embedded server needs no GPU"
        yield Finding("GPU", "missing" if wanted else "note", "NVML is not to be had", fix)
        return
    limit = os.environ.get("CUDA_VISIBLE_DEVICES")
    for device in found.devices():
        memory = ""
        if device.free is not None and device.total is not None:
            memory = f"{device.free // _MIB} of {device.total // _MIB} MiB free, "
        text = f"{device.index}: {device.name}, {memory}{device.uuid}"
        holder = lock.holder(f"gpu-{device.uuid}")
        yield Finding("GPU", "note" if holder else "ok", text + (f"; in use by {holder}" if holder else ""))
    if limit is not None:
        yield Finding("GPU", "note", f"CUDA_VISIBLE_DEVICES={limit} limits what servers see")


def _port(port: int | None) -> Iterator[Finding]:
    if port is None:
        hold = ports.PortHold("127.0.0.1")
        hold.release()
        yield Finding("port", "ok", f"a free port can be had ({hold.port})")
    elif ports.free("127.0.0.1", port):
        yield Finding("port", "ok", f"{port} is free")
    else:
        holder = ports.holder(port) or "a process that is not visible to this user"
        yield Finding(
            "port",
            "missing",
            f"{port} is held by {holder}",
            "stop it, or leave the choice of the port to the pool",
        )


def _sandbox() -> Iterator[Finding]:
    # A report on every part of the plugin; servers themselves never need the sandbox.
    try:
        probe_sandbox: Callable[[], object] = import_module("pytest_ddtree.coding.sandbox").probe
        found = probe_sandbox()
    except Exception as error:
        yield Finding(
            "sandbox",
            "note",
            f"cannot be probed: {error}",
            "the coding eval needs it; speed and exactness do not",
        )
        return
    usable = bool(getattr(found, "usable", False))
    fix = None if usable else "the coding eval needs it (docs/sandbox.md); speed and exactness do not"
    yield Finding(
        "sandbox", "ok" if usable else "note", str(getattr(found, "describe", lambda: found)()), fix
    )


def _leftovers() -> Iterator[Finding]:
    found = stale.find()
    for leftover in found:
        yield Finding("left behind", "note", leftover.describe().replace("\n", "; "), "pytest-ddtree reap")
    if not found:
        yield Finding("left behind", "ok", "nothing of ours")
    launchers = [name for name in ("docker", "podman", "srun", "ssh") if shutil.which(name)]
    if launchers:
        yield Finding("launchers", "ok", ", ".join(launchers))


@contextmanager
def _supervised(folder: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(folder)
    try:
        yield supervisor
    finally:
        supervisor.close()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(not installed)"
