"""GET /metrics in Prometheus' text format, under SGLang's names."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from ..engine import Engine
from .observations import Histogram, Observations
from .service import Service


def render(engine: Engine, observed: Observations, model: str) -> str:
    """The exposition text."""
    labels = {"engine_type": "unified", "model_name": model}
    ranked = labels | {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    counters, memory, settings = engine.counters, engine.runtime.memory, engine.runtime.settings
    lines: list[str] = []

    def gauge(name: str, text: str, value: float) -> None:
        _head(lines, name, text, "gauge")
        lines.append(_sample(name, ranked, value))

    def counter(name: str, text: str, value: float, extra: Mapping[str, str] | None = None) -> None:
        _head(lines, name, text, "counter")
        lines.append(_sample(name, labels | dict(extra or {}), value))

    running, waiting = engine.occupancy
    gauge("num_running_reqs", "The number of running requests.", running)
    gauge("num_queue_reqs", "The number of requests in the waiting queue.", waiting)
    gauge("num_used_tokens", "The number of used tokens.", memory.used)
    gauge("token_usage", "The token usage.", memory.used / max(memory.total, 1))
    gauge("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", memory.total)
    gauge("kv_available_tokens", "Number of free token slots in the KV cache pool.", memory.free)
    gauge("kv_evictable_tokens", "Number of evictable (radix-cached) token slots.", memory.cache.evictable)
    gauge("kv_used_tokens", "Number of actively used token slots in the KV cache pool.", memory.used)
    gauge("page_size", "KV cache page size in tokens.", settings.page_size)
    gauge("context_len", "Maximum context length.", settings.context_length)
    gauge("gen_throughput", "The generation throughput (token/s).", counters.gen_throughput)
    hit_rate = counters.cached_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0
    gauge("cache_hit_rate", "The prefix cache hit rate.", hit_rate)
    gauge("num_retracted_reqs", "The number of retracted requests.", engine.retracted)
    gauge("is_cuda_graph", "Whether the batch is using CUDA graph.", 0)
    speculative = settings.speculative
    if speculative is not None:
        gauge(
            "spec_accept_length",
            "Mean acceptance length of speculative decoding.",
            counters.accept_length or 0.0,
        )
        gauge("spec_accept_rate", "Speculative acceptance rate.", counters.accept_rate or 0.0)
        gauge("spec_num_steps", "Currently active speculative_num_steps.", 1)
        gauge(
            "spec_num_draft_tokens", "Currently active speculative_num_draft_tokens.", speculative.block_size
        )
        counter("spec_verify_calls_total", "Number of speculative verification calls.", counters.verify_calls)
    counter("prompt_tokens_total", "Number of prefill tokens processed.", counters.prompt_tokens)
    counter("generation_tokens_total", "Number of generation tokens processed.", counters.generation_tokens)
    counter("num_requests_total", "Number of requests processed.", counters.requests)
    counter("num_aborted_requests_total", "Number of requests aborted.", counters.aborted)
    counter(
        "cached_tokens_total",
        "Number of cached prompt tokens.",
        counters.cached_tokens,
        {"cache_source": "device"},
    )
    _histogram(lines, "time_to_first_token_seconds", "Time to first token.", observed.first_token, labels)
    _histogram(lines, "inter_token_latency_seconds", "Inter-token latency.", observed.inter_token, labels)
    _histogram(
        lines, "e2e_request_latency_seconds", "End-to-end request latency.", observed.end_to_end, labels
    )
    return "\n".join(lines) + "\n"


def _head(lines: list[str], name: str, text: str, kind: str) -> None:
    lines.append(f"# HELP sglang:{name} {text}")
    lines.append(f"# TYPE sglang:{name} {kind}")


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(labels[key])}"' for key in sorted(labels))
    return f"sglang:{name}{{{inside}}} {float(value)!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _histogram(lines: list[str], name: str, text: str, values: Histogram, labels: Mapping[str, str]) -> None:
    _head(lines, name, text, "histogram")
    running = 0
    for bound, count in zip([*map(str, values.bounds), "+Inf"], values.counts, strict=True):
        running += count
        lines.append(_sample(f"{name}_bucket", {**labels, "le": bound}, running))
    lines.append(_sample(f"{name}_sum", labels, values.total))
    lines.append(_sample(f"{name}_count", labels, running))


async def metrics(request: Request) -> Response:
    service: Service = request.app.state.service
    text = render(service.engine, service.observed, service.model_name)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
