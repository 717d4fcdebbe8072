"""Waiting for a server whose log, or whose predecessor, is not on its best behaviour."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pytest_ddtree.dialects.registry import by_name
from pytest_ddtree.servers.errors import DiedDuringStart, ServerError, StartFailed, StartTimeout
from pytest_ddtree.servers.readiness import Expectation, Ready, wait_ready

ANSWERS: dict[str, Any] = {
    "/health": {},
    "/server_info": {"served_model_name": "ours", "speculative_algorithm": None},
    "/generate": {"output_ids": [1, 2, 3, 4], "meta_info": {"completion_tokens": 4}},
}


@contextmanager
def serving(first: dict[str, int], always: dict[str, int] | None = None) -> Iterator[str]:
    """The URL of a server that answers the paths of `first` once with that status, before it is at its best, and of `always` each time."""
    left, kept = dict(first), always or {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            data = json.dumps(ANSWERS.get(self.path, {})).encode()
            self.send_response(left.pop(self.path, kept.get(self.path, 200)))
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def wait(url: str, code: int | None = None, seconds: float = 60.0, **changes: Any) -> Ready:
    values: dict[str, Any] = {
        "title": "server x",
        "url": url,
        "dialect": lambda info: by_name("dflash"),
        "deadline": time.monotonic() + seconds,
        "budget_s": seconds,
        "served_name": "ours",
        **changes,
    }

    def exit_code(pause: float) -> int | None:
        time.sleep(pause)
        return code

    return wait_ready(Expectation(**values), exit_code=exit_code, closing=lambda: False, progress=str)


def test_an_old_process_that_no_longer_says_what_it_is_is_waited_out() -> None:
    """A unit's old process answers as it likes while it goes down."""
    with serving({"/server_info": 503}) as url:
        assert wait(url, patient=True).effective.algorithm == "none"


@pytest.mark.parametrize("patient", [False, True])
@pytest.mark.parametrize(
    ("status", "hint"), [(401, "--ddtree-api-key"), (403, "--ddtree-api-key"), (404, "0.5.11 or later")]
)
def test_what_no_waiting_changes_is_refused_at_once(status: int, hint: str, patient: bool) -> None:
    """A unit with a key that was not given would be waited for half an hour, and the message would be about its health."""
    refused = {"/server_info": status, "/get_server_info": status}
    with serving({}, refused) as url, pytest.raises(StartFailed, match=f"answers {status}") as caught:
        wait(url, patient=patient, seconds=20.0)
    assert hint in str(caught.value)
    assert not isinstance(caught.value, StartTimeout)


def lost() -> None:
    raise ServerError("the host does not answer")


@pytest.mark.parametrize(("code", "kind"), [(3, DiedDuringStart), (None, StartTimeout)])
def test_a_log_that_cannot_be_fetched_hides_no_failure(
    tmp_path: Path, code: int | None, kind: type[ServerError]
) -> None:
    with pytest.raises(kind, match=r"exit code 3|was not ready"):
        wait("http://127.0.0.1:9", code, 1e-6, log_path=tmp_path / "log", refresh_log=lost)


def test_nor_is_a_config_read_from_half_of_a_log(tmp_path: Path) -> None:
    with serving({}) as url, pytest.raises(ServerError, match="host does not answer"):
        wait(url, log_path=tmp_path / "log", refresh_log=lost)
