"""What a server says at each endpoint, written down as files, without paths, names and ports of the machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx


def scrub(text: str, names: Mapping[str, str], port: int) -> str:
    """Longest names first; the server's own port becomes 30000."""
    for old in sorted(names, key=len, reverse=True):
        if old:
            text = text.replace(old, names[old])
    return re.sub(rf"\b{port}\b", "30000", text)


def requests(
    ids: Sequence[int], speculative: bool
) -> dict[str, tuple[str, str, dict[str, Any] | bytes | None]]:
    """File name -> (method, path, body)."""
    greedy = {"temperature": 0, "max_new_tokens": 24}
    chat = [{"role": "user", "content": "Write a function that adds two numbers."}]
    usage = {"include_usage": True, "continuous_usage_stats": True}
    asked: dict[str, tuple[str, str, dict[str, Any] | bytes | None]] = {
        "server_info.json": ("GET", "/server_info", None),
        "model_info.json": ("GET", "/model_info", None),
        "models.json": ("GET", "/v1/models", None),
        "generate.sse": (
            "POST",
            "/generate",
            {"input_ids": list(ids), "sampling_params": greedy, "stream": True},
        ),
        "generate.json": ("POST", "/generate", {"input_ids": list(ids), "sampling_params": greedy}),
        "completions.sse": (
            "POST",
            "/v1/completions",
            {
                "model": "m",
                "prompt": list(ids),
                "temperature": 0,
                "max_tokens": 24,
                "stream": True,
                "stream_options": usage,
            },
        ),
        "completions.json": (
            "POST",
            "/v1/completions",
            {"model": "m", "prompt": list(ids), "temperature": 0, "max_tokens": 24, "return_meta_info": True},
        ),
        "chat.sse": (
            "POST",
            "/v1/chat/completions",
            {
                "model": "m",
                "messages": chat,
                "temperature": 0,
                "max_tokens": 24,
                "stream": True,
                "stream_options": usage,
            },
        ),
        "chat.json": (
            "POST",
            "/v1/chat/completions",
            {"model": "m", "messages": chat, "temperature": 0, "max_tokens": 24, "return_meta_info": True},
        ),
        "error.too_long.json": (
            "POST",
            "/generate",
            {"input_ids": [7] * 20000, "sampling_params": greedy, "stream": False},
        ),
        "error.too_long_stream.sse": (
            "POST",
            "/generate",
            {"input_ids": [7] * 20000, "sampling_params": greedy, "stream": True},
        ),
        "error.too_many_new.json": (
            "POST",
            "/generate",
            {"input_ids": list(ids), "sampling_params": {"temperature": 0, "max_new_tokens": 20000}},
        ),
        "error.not_json.json": ("POST", "/generate", b"{no json"),
        "error.negative.json": (
            "POST",
            "/generate",
            {"input_ids": list(ids), "sampling_params": {"temperature": -1, "max_new_tokens": 4}},
        ),
        "error.empty.json": ("POST", "/generate", {"input_ids": [], "sampling_params": greedy}),
        "error.chat_without_messages.json": ("POST", "/v1/chat/completions", {"model": "m", "max_tokens": 4}),
        "error.no_such_path.json": ("GET", "/no_such_path", None),
        "flush_cache.txt": ("POST", "/flush_cache", None),
        "abort_all.txt": ("POST", "/abort_request", {"abort_all": True}),
        "metrics.txt": ("GET", "/metrics", None),
    }
    logprobs = {
        "input_ids": list(ids),
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
        "return_logprob": True,
        "logprob_start_len": len(ids) - 3,
        "top_logprobs_num": 3,
    }
    asked["error.logprobs.json" if speculative else "generate.logprobs.json"] = (
        "POST",
        "/generate",
        logprobs,
    )
    return asked


def capture(
    url: str,
    port: int,
    name: str,
    ids: Sequence[int],
    out: Path,
    names: Mapping[str, str],
    *,
    speculative: bool,
) -> dict[str, int]:
    """Ask everything once; files `<name>.<what>` under `out`; file name -> HTTP status (0: no answer)."""
    out.mkdir(parents=True, exist_ok=True)
    statuses: dict[str, int] = {}
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for what, (method, path, body) in requests(ids, speculative).items():
            content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
            try:
                headers = {"content-type": "application/json"}
                answer = client.request(method, path, content=content, headers=headers)
                statuses[what] = answer.status_code
                text = answer.text
            except httpx.HTTPError as error:
                statuses[what] = 0
                text = f"{type(error).__name__}: {error}"
            (out / f"{name}.{what}").write_text(scrub(text, names, port))
    (out / f"{name}.statuses.json").write_text(json.dumps(statuses, indent=1, sort_keys=True))
    return statuses


def capture_log(log: Path, name: str, port: int, out: Path, names: Mapping[str, str]) -> None:
    """The log, scrubbed."""
    text = log.read_text("utf-8", errors="replace")
    (out / f"{name}.server.log").write_text(scrub(text, names, port))
