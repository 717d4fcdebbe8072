"""Why starts fail: the classes that are recognised in a log, each with what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Cause:
    """A class of failed starts, recognised by its line, with what to do."""

    name: str
    pattern: re.Pattern[str]
    hint: str


def _cause(name: str, pattern: str, hint: str) -> Cause:
    return Cause(name, re.compile(pattern, re.IGNORECASE), hint)


CAUSES: Final[Sequence[Cause]] = (
    _cause(
        "unknown flag",
        r"error: (unrecognized arguments|argument [^\n]*(invalid choice|expected|invalid \w+ value)|ambiguous option)|no such option",
        "the build does not take this argument: see its --help; choose --ddtree-dialect, or correct --ddtree-server-args and "
        "--ddtree-spec-args",
    ),
    _cause(
        "port in use",
        r"address already in use|errno 98|port \d+ is (already )?(in use|used)|rpc_port at \d+ is not available",
        "another process holds the port: leave the port to the pool, or stop that process (`pytest-ddtree reap` removes what an "
        "earlier run left)",
    ),
    _cause(
        "graph capture",
        r"capture (piecewise )?cuda graph failed|capturing .*graph.*(fail|error)|cuda ?graph.*(capture|exception).*fail",
        "capturing CUDA graphs failed, mostly for lack of memory: lower --mem-fraction-static or the largest graph batch size, or "
        "--disable-cuda-graph (then speeds mean little)",
    ),
    _cause(
        "out of memory",
        r"out of memory|outofmemoryerror|not enough memory|memoryerror|cannot allocate memory|cublas_status_alloc_failed"
        r"|please try to increase --mem-fraction-static|loading the model.*exceeds",
        "lower --mem-fraction-static or --max-running-requests, free the GPU (`nvidia-smi`), or use more GPUs",
    ),
    _cause(
        "missing draft model",
        r"requires setting --speculative-draft-model-path|draft model.*(not found|does not exist|missing)"
        r"|(no such file or directory|not a valid|does not appear to have|repository not found)[^\n]*draft"
        r"|draft[^\n]*(no such file|not found|does not exist|does not appear to have|not a valid)",
        "check --ddtree-draft-model: the path or hub id of the DFlash drafter of this very model",
    ),
    _cause(
        "missing model",
        r"repository not found|is not a valid model identifier|is not a local folder|does not appear to have a file named config\.json"
        r"|no such file or directory: '[^']*config\.json|gated repo",
        "check --ddtree-model: the path or hub id, and the access token for gated models",
    ),
    _cause(
        "NCCL",
        r"nccl (error|failure)|ncclsystemerror|ncclunhandledcudaerror|ncclinternalerror|processgroupnccl.*(error|timeout)"
        r"|torch\.distributed\.disterror",
        "the GPUs could not talk to each other: check --tp against the GPUs, shared memory (/dev/shm, docker --shm-size), NCCL_DEBUG=INFO",
    ),
    _cause(
        "refused config",
        r"(valueerror|assertionerror|runtimeerror|notimplementederror): [^\n]*(dflash|ddtree|speculative|page_size|window)"
        r"|error: [^\n]*(budget|topk|window|block size|speculative)",
        "the build refuses this config; its own words above say why",
    ),
    _cause(
        "missing library",
        r"error: [^\n]*(cannot open shared object file|undefined symbol|version `[^']*' not found)",
        "a compiled library is missing or of another version: the build and its kernels (sgl-kernel, flashinfer), torch and CUDA must "
        "fit each other",
    ),
    _cause(
        "missing package",
        r"modulenotfounderror: no module named|importerror:",
        "the interpreter lacks a package: check --ddtree-python and --ddtree-sglang-src",
    ),
    _cause(
        "no GPU",
        r"no cuda gpus are available|cuda driver version is insufficient|found no nvidia driver|only supports cuda device",
        "no usable GPU: check CUDA_VISIBLE_DEVICES and the driver",
    ),
    _cause(
        "CUDA error",
        r"cuda error: |device-side assert|illegal memory access|cublas_status_(execution|internal)|triton error \[cuda\]",
        "a kernel failed; a token id beyond the vocabulary does that, and so does a fault in the build. CUDA_LAUNCH_BLOCKING=1 in the "
        "environment names the kernel",
    ),
    _cause(
        "port out of range",
        r"port \(?\d+\)? must be between",
        "the build derives further ports from its own (port + 10000): choose one below 55536",
    ),
    _cause(
        "warm-up failed",
        r"initialization failed\. warmup error",
        "the first generation failed; the lines before it say why",
    ),
)
