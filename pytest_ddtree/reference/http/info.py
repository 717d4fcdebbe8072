"""GET /server_info, /model_info, /health and friends."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ..blas import blas_threads
from ..sampling import SamplingParams
from .errors import json_response, read_json
from .service import Service

log = logging.getLogger("ddtree.reference")
VERSION = "0.0.0.reference"
HEALTH_TIMEOUT_S = 20.0
HEALTH_POLL_S = 0.1


def resolved_args(service: Service) -> dict[str, Any]:
    """The command line's values after resolution, under SGLang's names."""
    args, settings, speculative = service.args, service.settings, service.settings.speculative
    info: dict[str, Any] = {
        "model_path": str(args.model_path),
        "tokenizer_path": str(args.tokenizer_path or args.model_path),
        "served_model_name": service.model_name,
        "host": args.host,
        "port": args.port,
        "device": "cpu",
        "dtype": "float32" if settings.numerics == "f32" else "bfloat16",
        "numerics": settings.numerics,
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "context_length": args.context_length,
        "mem_fraction_static": args.mem_fraction_static,
        "max_running_requests": settings.max_running_requests,
        "max_queued_requests": settings.max_queued_requests,
        "max_total_tokens": args.max_total_tokens,
        "chunked_prefill_size": settings.chunked_prefill_size,
        "page_size": settings.page_size,
        "schedule_policy": "fcfs",
        "random_seed": settings.random_seed,
        "stream_interval": args.stream_interval,
        "incremental_streaming_output": args.incremental_streaming_output,
        "reasoning_parser": args.reasoning_parser,
        "enable_cache_report": args.enable_cache_report,
        "enable_metrics": args.enable_metrics,
        "decode_log_interval": settings.decode_log_interval,
        "disable_radix_cache": not settings.prefix_cache,
        "disable_overlap_schedule": args.disable_overlap_schedule,
        "disable_cuda_graph": args.disable_cuda_graph,
        "enable_deterministic_inference": args.enable_deterministic_inference,
        "attention_backend": args.attention_backend,
        "decode_attention_backend": None,
        "prefill_attention_backend": None,
        "kv_cache_dtype": "auto",
        "quantization": None,
        "allow_auto_truncate": False,
        "weight_version": "default",
        "speculative_algorithm": speculative.algorithm if speculative else None,
        "speculative_draft_model_path": None,
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_num_draft_tokens": None,
        "speculative_dflash_block_size": args.speculative_dflash_block_size,
        "speculative_draft_window_size": args.speculative_draft_window_size,
        "speculative_ddtree_budget": None,
        "speculative_ddtree_topk": None,
        "speculative_accept_threshold_single": 1.0,
        "speculative_accept_threshold_acc": 1.0,
        "speculative_use_rejection_sampling": False,
        "plant": list(args.plant),
    }
    draft = service.engine.runtime.draft
    if speculative is not None and draft is not None:
        info |= {
            "speculative_draft_model_path": str(draft.path),
            "speculative_num_steps": 1,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": speculative.block_size,
            "speculative_draft_window_size": speculative.window,
        }
        if speculative.algorithm == "DDTREE":
            info |= {
                "speculative_ddtree_budget": speculative.budget,
                "speculative_ddtree_topk": speculative.topk,
                "max_speculative_num_draft_tokens": draft.width,
            }
    return info


async def server_info(request: Request) -> Response:
    service: Service = request.app.state.service
    engine, counters = service.engine, service.engine.counters
    info = resolved_args(service)
    memory = engine.runtime.memory
    running, waiting = engine.occupancy
    state: dict[str, Any] = info | {
        "last_gen_throughput": counters.gen_throughput,
        "memory_usage": {
            "weight": round(_weight_bytes(service) / 1e9, 4),
            "kvcache": round((engine.runtime.pool.keys.nbytes + engine.runtime.pool.values.nbytes) / 1e9, 4),
            "token_capacity": memory.total,
        },
        "effective_max_running_requests_per_dp": service.settings.max_running_requests,
        "num_running_reqs": running,
        "num_queue_reqs": waiting,
        "kv_available_tokens": memory.available,
    }
    if counters.total_accept_length is not None:
        state["avg_spec_accept_length"] = counters.total_accept_length
    return json_response(
        info
        | {
            "status": "ready" if service.ready else "starting",
            "max_total_num_tokens": memory.total,
            "max_req_input_len": engine.runtime.max_request_tokens - 1,
            "launch_command": service.launch_command,
            "startup_time": service.started_at,
            "pid": os.getpid(),
            "blas_threads": blas_threads(),
            "numpy_version": np.__version__,
            "internal_states": [state],
            "version": VERSION,
            "kv_events": None,
        }
    )


def _weight_bytes(service: Service) -> int:
    return int(service.engine.runtime.target.parameters) * 4


async def model_info(request: Request) -> Response:
    service: Service = request.app.state.service
    config = service.engine.runtime.target.config
    return json_response(
        {
            "model_path": str(service.args.model_path),
            "served_model_name": service.model_name,
            "tokenizer_path": str(service.args.tokenizer_path or service.args.model_path),
            "is_generation": True,
            "weight_version": "default",
            "preferred_sampling_params": None,
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "qwen3",
            "architectures": list(config.architectures),
        }
    )


async def models(request: Request) -> Response:
    service: Service = request.app.state.service
    card = {
        "id": service.model_name,
        "object": "model",
        "created": int(service.started_at),
        "owned_by": "sglang",
        "root": service.model_name,
        "parent": None,
        "max_model_len": service.settings.context_length,
    }
    return json_response({"object": "list", "data": [card]})


async def health(request: Request) -> Response:
    """200 once the engine delivers anything, be it this check's own token or another request's.

    503 before the warm-up, while stopping, or when nothing comes in time.
    """
    service: Service = request.app.state.service
    if not service.ready or service.stopping:
        return Response(status_code=503)
    began = time.perf_counter()
    params = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    _, channel = service.submit([0], params, rid=f"HEALTH_CHECK_{time.time_ns()}", every=0)
    answer = asyncio.ensure_future(channel.next())
    while time.perf_counter() - began < HEALTH_TIMEOUT_S:
        await asyncio.wait({answer}, timeout=HEALTH_POLL_S)
        if answer.done():
            return Response(status_code=200)
        if service.frontend.last_update > began:
            break
    answer.cancel()
    channel.leave()
    if service.frontend.last_update > began:
        return Response(status_code=200)
    log.error("Health check failed. The engine returned nothing for %.0f s.", HEALTH_TIMEOUT_S)
    return Response(status_code=503)


async def flush_cache(request: Request) -> Response:
    service: Service = request.app.state.service
    if await service.frontend.flush_cache():
        return Response(
            "Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n",
            media_type="text/plain",
        )
    return Response(
        "The cache was not flushed: there are running or waiting requests.\n",
        status_code=400,
        media_type="text/plain",
    )


async def abort_request(request: Request) -> Response:
    """Abort every request whose id starts with ``rid``, or all with ``abort_all``."""
    service: Service = request.app.state.service
    body = await read_json(request)
    rid, everything = body.get("rid", ""), body.get("abort_all", False)
    if not isinstance(rid, str) or not isinstance(everything, bool):
        return json_response({"error": {"message": "rid must be a string and abort_all a boolean."}}, 400)
    if everything:
        service.engine.abort("")
    elif rid:
        service.engine.abort(rid)
    return Response(status_code=200)
