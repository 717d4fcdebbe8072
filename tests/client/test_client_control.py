"""Control calls, metrics, and the loop thread that sync callers use."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import (
    HEAD,
    LAST_CHUNK,
    Asked,
    Script,
    ScriptedServer,
    as_json,
    chunk,
    generate_events,
    plain,
    stream,
)

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.errors import ControlError
from pytest_ddtree.client.loop import LoopThread, loop_factory
from pytest_ddtree.client.prometheus import parse_metrics, total
from pytest_ddtree.client.records import Record
from pytest_ddtree.client.transport import ARRIVALS, StreamTransport, choose_reader
from pytest_ddtree.client.transport.stamps import stamps_available
from pytest_ddtree.errors import Infrastructure

DATA = Path(__file__).parent / "data"


def test_older_names_of_information_are_tried(dial: Any) -> None:
    def handler(asked: Asked) -> Script:
        return as_json({"path": asked.path}) if "get_" in asked.path else plain(404, b"{}")

    _, client = dial(handler)
    assert client.server_info() == {"path": "/get_server_info"}
    assert client.model_info() == {"path": "/get_model_info"}


def test_health_is_a_status_and_no_answer_is_an_error(dial: Any) -> None:
    _, client = dial(plain(503, b""))
    assert client.health() == 503
    _, hanging = dial(Script([], "hang"))
    with pytest.raises(ControlError, match=r"no answer within 0\.1 s"):
        hanging.health(0.1)


def test_the_cache_is_flushed_as_soon_as_the_server_is_idle(dial: Any) -> None:
    server, client = dial(lambda asked: plain(400 if len(server.asked) < 3 else 200, b"busy"))
    client.flush_cache()
    assert [asked.path for asked in server.asked] == ["/flush_cache"] * 3
    assert {asked.headers.get("content-length") for asked in server.asked} == {"0"}, (
        "some proxies insist on it"
    )


def test_a_server_that_stays_busy_is_an_error(dial: Any) -> None:
    _, client = dial(plain(400, b"busy"))
    with pytest.raises(ControlError, match="busy") as caught:
        client.flush_cache(0.1)
    assert isinstance(caught.value, Infrastructure)


def test_everything_can_be_aborted(dial: Any) -> None:
    server, client = dial(plain(200, b""))
    client.abort_all()
    assert (server.asked[0].path, server.asked[0].json) == ("/abort_request", {"abort_all": True})


@pytest.mark.parametrize("body", [b"<html>", b"[1]"])
def test_information_that_is_no_object_is_an_error(dial: Any, body: bytes) -> None:
    _, client = dial(plain(200, body))
    with pytest.raises(ControlError, match="answered"):
        client.server_info()


def test_metrics_of_a_real_server_are_read(dial: Any) -> None:
    _, client = dial(plain(200, (DATA / "tree8w.metrics.txt").read_bytes()))
    metrics = client.metrics()
    passes = metrics["sglang:cuda_graph_passes_total"]
    assert {sample.labels["mode"]: sample.value for sample in passes} == {
        "prefill_none": 43.0,
        "decode_cuda_graph": 2131.0,
    }
    assert total(metrics, "sglang:cuda_graph_passes_total") == 2174.0
    assert total(metrics, "sglang:num_retracted_reqs") == 0.0
    assert total(metrics, "sglang:no_such_metric") is None


name = st.from_regex(r"\A[a-z_:][a-z0-9_:]{0,8}\Z")
label = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=8
)


@given(
    name, st.dictionaries(st.from_regex(r"\A[a-z_]{1,5}\Z"), label, max_size=3), st.floats(allow_nan=False)
)
def test_any_sample_is_read_back(metric: str, labels: dict[str, str], value: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    pairs = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
    (sample,) = parse_metrics(f"# HELP x\n{metric}{{{pairs}}} {value!r}\n")[metric]
    assert (sample.labels, sample.value) == (labels, value)


def test_the_transport_serves_plain_httpx() -> None:
    first_came = threading.Event()

    async def read(url: str) -> tuple[list[bytes], int, int]:
        async with httpx.AsyncClient(transport=StreamTransport(), timeout=60.0, trust_env=False) as client:
            async with client.stream("POST", url + "/x", json={"a": 1}) as response:
                parts = []
                async for part in response.aiter_raw():
                    parts.append(part)
                    first_came.set()
                reads = len(response.extensions[ARRIVALS])
            again = await client.get(url + "/y", params={"q": "1"})
            return parts, reads, again.status_code

    live = Script([(0.0, HEAD + chunk(b"data: a\n\n")), (first_came, chunk(b"data: b\n\n") + LAST_CHUNK)])
    with ScriptedServer(lambda asked: live) as server, LoopThread() as loop:
        parts, reads, status = loop.run(read(server.url))
    assert b"".join(parts) == b"data: a\n\ndata: b\n\n"
    assert (len(parts), reads, status) == (2, 2, 200)
    assert server.asked[0].json == {"a": 1}
    assert server.asked[1].path == "/y?q=1"


def test_the_transport_honours_httpx_read_timeouts() -> None:
    async def read(url: str) -> None:
        timeout = httpx.Timeout(60.0, read=0.1)
        async with httpx.AsyncClient(transport=StreamTransport(), timeout=timeout, trust_env=False) as client:
            await client.get(url)

    silent = Script([(0.0, HEAD + chunk(b"a"))], "hang")
    with (
        ScriptedServer(lambda asked: silent) as server,
        LoopThread() as loop,
        pytest.raises(httpx.ReadTimeout),
    ):
        loop.run(read(server.url))


def test_plain_http_loads_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("a third of a hundredth of a second for nothing")

    monkeypatch.setattr(ssl, "create_default_context", load)
    AsyncClient("http://127.0.0.1:1")
    with pytest.raises(AssertionError):
        AsyncClient("https://127.0.0.1:1")


def test_https_goes_through_stock_httpx_and_gives_the_same_record(tmp_path: Path, ask: Any) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("a certificate is made with openssl")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert"))
    events = generate_events([[5], [6, 7], [8]], finish={"type": "length", "length": 4})

    async def read(url: str, tls: ssl.SSLContext | None) -> Record:
        async with AsyncClient(url, tls=tls) as client:
            await client.prepare(2)
            return await client.generate(ask())

    with (
        ScriptedServer(lambda asked: stream(events, gap_s=0.01), tls=serving) as server,
        LoopThread() as loop,
    ):
        record = loop.run(read(server.url, trusting))
        refused = loop.run(read(server.url, None))
    assert (record.outcome, record.output_ids) == ("ok", (5, 6, 7, 8))
    assert [one.tokens for one in record.chunks] == [1, 3, 4]
    assert record.chunks[0].at_ns < record.chunks[-1].at_ns
    assert refused.outcome == "reset"
    assert "CERTIFICATE" in (refused.error or "").upper()


def test_the_transport_refuses_other_schemes() -> None:
    async def read() -> None:
        await StreamTransport().handle_async_request(httpx.Request("GET", "https://localhost/"))

    with pytest.raises(httpx.UnsupportedProtocol):
        asyncio.run(read())


@pytest.mark.parametrize(("streams", "module"), [(1, "asyncio"), (256, "asyncio"), (257, "uvloop")])
def test_the_loop_suits_the_number_of_streams(streams: int, module: str) -> None:
    pytest.importorskip("uvloop")

    async def name() -> tuple[str, str]:
        loop = asyncio.get_running_loop()
        return type(loop).__module__, choose_reader(loop)

    with LoopThread(loop_factory(streams)) as thread:
        kind, reader = thread.run(name())
    assert kind.startswith(module)
    assert reader == ("kernel" if module == "asyncio" and stamps_available() else "loop")


def test_a_coroutine_is_cancelled_when_its_time_is_over() -> None:
    cleaned = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    with LoopThread() as loop:
        with pytest.raises(TimeoutError):
            loop.run(work(), timeout=0.5)
        assert cleaned.is_set()


def test_exceptions_come_through_the_thread() -> None:
    async def fail() -> None:
        raise LookupError("inside")

    with LoopThread() as loop, pytest.raises(LookupError, match="inside"):
        loop.run(fail())


def test_what_runs_at_the_end_is_cancelled() -> None:
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def start() -> None:
        tasks.append(asyncio.create_task(work()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    loop = LoopThread()
    loop.run(start())
    loop.close()
    loop.close()
    assert ended.is_set()


INTERRUPTED = """
import asyncio, sys, threading
from pytest_ddtree.client.loop import LoopThread, loop_factory

def waits():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code is not LoopThread.wait.__code__:
        frame = frame.f_back
    return frame is not None

async def work():
    while not waits():
        await asyncio.sleep(0.01)
    print("working", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaned", flush=True)

try:
    LoopThread().run(work())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_an_interrupt_ends_the_wait_and_the_coroutine() -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "working\n"
        # The main thread is in `wait`, and a moment later where it is to be interrupted.
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert out == "cleaned\ninterrupted\n"
    assert process.returncode == 0
