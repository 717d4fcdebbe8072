"""What a run depends on, read off the machine, the sources, the model's files and the running servers.

A fingerprint is flat, so that two of them differ by name: `gpu.driver`, `engine.revision`, `args`, `effective.window`.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest_ddtree
from pytest_ddtree.exactness.fingerprint import tokenizer_digest, weights_digest
from pytest_ddtree.model_files import ModelFacts
from pytest_ddtree.options import Settings
from pytest_ddtree.results.secrets import mask_arguments, mask_text
from pytest_ddtree.servers import source

Scalar = str | int | float | bool | None

INFORMATIVE = ("date", "cache.", "environment.", "effective.max_total_tokens")
"""Names (or beginnings of names) that are kept for the reader and make no two runs different: the size of the KV pool follows from
what memory happened to be free at a start."""

_KERNEL_CACHES = (
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "SGLANG_CACHE_DIR",
    "CUDA_CACHE_PATH",
    "TVM_FFI_CACHE_DIR",
)
_OF_THE_START = ("--port", "--host", "--served-model-name", "--nccl-port", "--dist-init-addr")
_OF_THE_ENGINE = ("dtype", "quantization", "kv_cache_dtype", "tp_size", "dp_size", "ep_size", "pp_size")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not what it was. `absent` stands for a name that one side does not have."""

    name: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: was {self.before}, is {self.now}"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Names and plain values of one scope: the session's, or that of one config's server."""

    values: Mapping[str, Scalar]

    def differences(self, now: Fingerprint) -> tuple[Difference, ...]:
        """What differs in `now`, by name, in order; informative names are left out."""
        names = sorted({*self.values, *now.values})
        return tuple(
            Difference(name, self._text(name), now._text(name))
            for name in names
            if not name.startswith(INFORMATIVE) and self._text(name) != now._text(name)
        )

    def as_json(self) -> dict[str, Scalar]:
        """Sorted, for the store."""
        return {name: self.values[name] for name in sorted(self.values)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Fingerprint:
        """The inverse of `as_json`; what is no plain value becomes its text."""
        plain = {
            str(name): inner if inner is None or isinstance(inner, str | int | float | bool) else str(inner)
            for name, inner in value.items()
        }
        return cls(plain)

    def get(self, name: str) -> Scalar:
        """A value, None where there is none."""
        return self.values.get(name)

    def _text(self, name: str) -> str:
        if name not in self.values:
            return "absent"
        value = self.values[name]
        return str(round(value, 6)) if isinstance(value, float) else str(value)


class ReadServer(Protocol):
    """What the fingerprint asks of a running server."""

    @property
    def info(self) -> Mapping[str, Any]: ...
    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def effective(self) -> Any: ...
    @property
    def dialect_name(self) -> str: ...


def gpu_values() -> dict[str, Scalar]:
    """Name, count, driver, CUDA version and power limit of the GPUs that NVML shows; where there is none, the CPU instead."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # no package, no driver, no device: figures are those of the CPU
        return {"gpu.name": f"none, CPU {_cpu()}", "gpu.count": 0, "cpu.count": os.cpu_count()}
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        if not handles:
            return {"gpu.name": f"none, CPU {_cpu()}", "gpu.count": 0, "cpu.count": os.cpu_count()}
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        values: dict[str, Scalar] = {
            "gpu.name": ", ".join(sorted({_text(nvml.nvmlDeviceGetName(handle)) for handle in handles})),
            "gpu.count": len(handles),
            "gpu.driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "gpu.cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpu.visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }
        try:
            limits = {int(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) // 1000 for handle in handles}
            values["gpu.power_limit_w"] = ", ".join(map(str, sorted(limits)))
        except nvml.NVMLError:
            values["gpu.power_limit_w"] = None
        return values
    finally:
        nvml.nvmlShutdown()


def session_fingerprint(
    settings: Settings,
    facts: ModelFacts,
    *,
    date: str,
    machine: Mapping[str, Scalar] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Fingerprint:
    """What is known before a server starts. `date` is written as given; `machine` replaces what NVML says.

    Reads the sources' git state and the headers of the checkpoints, not their weights.
    """
    environment = os.environ if environment is None else environment
    state = None if settings.sglang_src is None else source.state(settings.sglang_src)
    values: dict[str, Scalar] = {
        "date": date,
        "plugin.version": pytest_ddtree.__version__,
        **(gpu_values() if machine is None else machine),
        "engine.kind": settings.server,
        "engine.python": None if settings.python is None else str(settings.python),
        **_sources(settings, state),
        "engine.url": mask_text(", ".join(settings.url)) if settings.url else None,
        "engine.dialect": settings.dialect,
        "args.all": " ".join(mask_arguments(settings.server_args)),
        "args.speculative": " ".join(mask_arguments(settings.spec_args)),
        "args.baseline": " ".join(mask_arguments(settings.baseline_args)),
        "model.name": settings.model or "reference",
        "draft.name": settings.draft_model or "reference",
        "model.weights": "unknown" if facts.target is None else weights_digest(facts.target),
        "model.tokenizer": "unknown" if facts.target is None else tokenizer_digest(facts.target),
        "draft.weights": "unknown" if facts.draft is None else weights_digest(facts.draft),
        "workload.digest": workload_digest(settings),
        "workload.seed": settings.seed,
        **axis_values(settings, facts),
    }
    for name in _KERNEL_CACHES:
        if name in environment:
            values[f"cache.{name}"] = environment[name]
    return Fingerprint(values)


def server_fingerprint(server: ReadServer) -> Fingerprint:
    """What a running server says of itself: version, arguments without ports and names, and every knob in force."""
    info = server.info
    values: dict[str, Scalar] = {
        "version": _plain(info.get("version")),
        "args": " ".join(stable_arguments(server.argv)),
        "dialect": server.dialect_name,
    }
    for name in _OF_THE_ENGINE:
        if info.get(name) is not None:
            values[f"engine.{name}"] = _plain(info[name])
    for name, knob in server.effective.to_json()["knobs"].items():
        for origin in ("http", "log", "behaviour"):
            if origin in knob:
                values[f"effective.{name}"] = _plain(knob[origin])
                break
    return Fingerprint(values)


def _sources(settings: Settings, state: source.SourceState | None) -> dict[str, Scalar]:
    """What identifies the engine before it runs. An installed one is known only by the version that its server says."""
    if state is not None:
        diff = None if state.diff_sha256 is None else state.diff_sha256[:16]
        return {"engine.revision": state.revision, "engine.dirty": state.dirty, "engine.diff": diff}
    if settings.server == "reference":
        return {"engine.sources": embedded_digest()}
    return {}


def embedded_digest() -> str:
    """Digest of the embedded server's sources, which come with this package."""
    root = Path(pytest_ddtree.__file__).parent / "reference"
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def axis_values(settings: Settings, facts: ModelFacts) -> dict[str, Scalar]:
    """What cells of some axes depend on beyond their key: the contents of a user's file, the checkpoint's own sampling."""
    values: dict[str, Scalar] = {
        f"axis.workload.{choice.name}": choice.digest()
        for choice in settings.workload
        if choice.file is not None
    }
    if any(isinstance(item, str) for item in settings.temperature):
        values["axis.sampling.model"] = " ".join(f"{name}={value}" for name, value in facts.sampling.items())
    return values


OF_WORKLOAD = ("seed", "output", "turnovers", "thinking")
"""Options that the prompts and the load of a cell are made from."""


def workload_digest(settings: Settings) -> str:
    """Digest of what the prompts and the load of a cell are made from; the cell's own lengths are part of its key."""
    parts = " ".join(str(getattr(settings, name)) for name in OF_WORKLOAD)
    return hashlib.sha256(parts.encode()).hexdigest()[:12]


def stable_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without what changes with every start (ports, launch names) and without secrets."""
    kept: list[str] = []
    words: Iterable[str] = iter(argv)
    for word in words:
        if word in _OF_THE_START:
            next(iter(words), None)
            continue
        if word.partition("=")[0] not in _OF_THE_START:
            kept.append(word)
    return mask_arguments(kept)


def build_label(fingerprint: Fingerprint) -> str:
    """`1a2b3c4d5e6f`, with the start of the diff's hash when the sources are changed; without git what else tells builds apart."""
    revision, diff = fingerprint.get("engine.revision"), fingerprint.get("engine.diff")
    if revision is not None:
        return str(revision)[:12] + (f"+{str(diff)[:8]}" if diff else "")
    sources = fingerprint.get("engine.sources")
    kind = str(fingerprint.get("engine.kind"))
    return f"{kind} {sources}" if sources else f"{kind} {fingerprint.get('version') or 'of unknown version'}"


def _plain(value: object) -> Scalar:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.machine()
    return platform.machine()
