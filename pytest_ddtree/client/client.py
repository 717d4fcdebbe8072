"""The asynchronous client of a server: typed answers to requests, scores of given tokens, control calls."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import httpx
import orjson

from pytest_ddtree.client import generate, openai
from pytest_ddtree.client.answers import error_text
from pytest_ddtree.client.errors import ControlError, ScoreError
from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.posting import Poster, said
from pytest_ddtree.client.prometheus import Sample, parse_metrics
from pytest_ddtree.client.records import Record, Request, Sampling, TokenScore
from pytest_ddtree.client.scores import input_logprob_fields, input_scores, output_scores, refusal
from pytest_ddtree.client.transport import Reader, StreamTransport
from pytest_ddtree.client.unread import Unread

Api = Literal["generate", "completions", "chat"]
"""SGLang's own endpoint, or one of OpenAI's."""

_CONTROL_TIMEOUT_S = 60.0
_FLUSH_POLL_S = 0.05


class AsyncClient:
    """A client of one server, for one event loop.

    `timeout_s` is the deadline of a request that is given none; `api_key` is sent as a bearer token. `api` is
    the endpoint that `generate` uses; the OpenAI ones name a `model` (None: the first that the server lists).
    `tls` is what `https` URLs are verified with (None: the certificate authorities that httpx trusts).
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        reader: Reader = "auto",
        api: Api = "generate",
        model: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout_s = timeout_s
        self.api: Api = api
        self._model = model
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self.transport = StreamTransport(reader)
        """What serves `http` URLs; its `reader` says what stamps the arrivals."""
        # The proxies of the environment are not for servers under test.
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            timeout=None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            mounts={"http://": self.transport},
            # Loading the certificates takes longer than many an answer; plain HTTP needs none.
            verify=self.base_url.startswith("https:") if tls is None else tls,
            trust_env=False,
        )
        self._poster = Poster(self._http, self.transport, self.base_url)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def prepare(self, connections: int) -> None:
        """Open connections beforehand, so that no request of a load waits for one. Raises ControlError."""
        if not self.base_url.startswith("http://"):
            return
        try:
            await self.transport.prepare(self.base_url, connections, _CONTROL_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise ControlError(f"{self.base_url}: {said(error)}") from error

    async def generate(
        self, request: Request, *, stream: bool = True, deadline_s: float | None = None
    ) -> Record:
        """The server's answer to one request. A server's fault is an outcome of it, never an exception.

        Raises ValueError for a request that the endpoint does not take, ControlError when the server must be
        asked for its model first and does not say.
        """
        return (await self.ask(request, stream=stream, deadline_s=deadline_s)).record()

    async def ask(self, request: Request, *, stream: bool = True, deadline_s: float | None = None) -> Unread:
        """`generate` without decoding: for loads, in which decoding one answer would delay the others."""
        if self.api == "generate":
            body = generate.request_body(request, stream=stream)
            return Unread(request, await self._exchange(generate.PATH, body, deadline_s), stream)
        body = openai.request_body(request, self.api, model=await self.model_name(), stream=stream)
        return Unread(
            request, await self._exchange(openai.PATHS[self.api], body, deadline_s), stream, openai=True
        )

    async def model_name(self) -> str:
        """The model that OpenAI endpoints are asked for. Raises ControlError."""
        if self._model is None:
            listed = (await self._json("/v1/models")).get("data") or ()
            if not listed:
                raise ControlError(f"{self.base_url}/v1/models lists no model; name one", status=200)
            self._model = str(listed[0]["id"])
        return self._model

    async def score(self, ids: Sequence[int], start: int, *, top: int = 5) -> tuple[TokenScore, ...]:
        """What the server thinks of the tokens at positions start .. len(ids) - 1, given the ids before.

        One prefill of `ids`. Raises RefusesLogprobs where the server gives none, else ScoreError.
        """
        if not start < len(ids):
            raise ValueError(f"start {start} leaves nothing of {len(ids)} ids to score")
        fields = input_logprob_fields(start, top)
        request = Request(sampling=Sampling(max_new_tokens=1), input_ids=tuple(ids))
        _, meta = await self._with_logprobs(request, fields)
        return input_scores(meta, ids, start)

    async def baseline_with_logprobs(
        self, request: Request, top: int = 5
    ) -> tuple[Record, tuple[TokenScore, ...]]:
        """An answer (not streamed) with the server's `top` most probable tokens at every emitted position.

        Raises RefusesLogprobs or ScoreError; an answer that is not `ok` comes back with no scores.
        """
        fields = {"return_logprob": True, "top_logprobs_num": top}
        record, meta = await self._with_logprobs(request, fields)
        if not record.ok:
            return record, ()
        start = record.prompt_tokens
        if start is None:
            raise ScoreError("the server does not say how many tokens the prompt has")
        return record, output_scores(meta, record.output_ids, start)

    async def server_info(self) -> dict[str, Any]:
        """`/server_info`, or `/get_server_info` of older builds. Raises ControlError."""
        try:
            return await self._json("/server_info")
        except ControlError as error:
            if error.status != 404:
                raise
        return await self._json("/get_server_info")

    async def model_info(self) -> dict[str, Any]:
        """`/model_info`, or `/get_model_info` of older builds. Raises ControlError."""
        try:
            return await self._json("/model_info")
        except ControlError as error:
            if error.status != 404:
                raise
        return await self._json("/get_model_info")

    async def health(self, timeout: float = 30.0) -> int:
        """The HTTP status of `/health`. Raises ControlError when no answer comes within `timeout` seconds."""
        return (await self._control("GET", "/health", timeout_s=timeout)).status_code

    async def metrics(self) -> dict[str, list[Sample]]:
        """`/metrics`, parsed. Raises ControlError (404: the server runs without `--enable-metrics`)."""
        return parse_metrics((await self._checked("GET", "/metrics")).text)

    async def flush_cache(self, timeout_s: float = 30.0) -> None:
        """Empty the server's prefix cache, waiting for it to become idle. Raises ControlError."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                await self._checked("POST", "/flush_cache")
            except ControlError as error:
                if error.status != 400 or time.monotonic() > until:
                    raise
                await asyncio.sleep(_FLUSH_POLL_S)
            else:
                return

    async def abort_all(self) -> None:
        """Abort everything that runs or waits on the server. Raises ControlError."""
        await self._checked("POST", "/abort_request", {"abort_all": True})

    async def _with_logprobs(
        self, request: Request, fields: Mapping[str, Any]
    ) -> tuple[Record, Mapping[str, Any]]:
        body = generate.request_body(request, stream=False, extra=fields)
        exchange = await self._exchange(generate.PATH, body, None)
        if exchange.status is not None and exchange.status != 200:
            raise refusal(exchange.status, error_text(exchange.body))
        record = generate.decode(request, exchange, stream=False)
        if record.outcome not in ("ok", "empty", "short"):
            raise ScoreError(f"no logprobs: {record.outcome}: {record.error}", status=exchange.status)
        return record, record.meta

    async def _json(self, path: str) -> dict[str, Any]:
        response = await self._checked("GET", path)
        try:
            value = orjson.loads(response.content)
        except orjson.JSONDecodeError as error:
            raise ControlError(f"GET {self.base_url}{path} answered no JSON: {error}", status=200) from error
        if not isinstance(value, dict):
            raise ControlError(
                f"GET {self.base_url}{path} answered a {type(value).__name__}, not an object", status=200
            )
        return value

    async def _checked(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        response = await self._control(method, path, body)
        if response.status_code != 200:
            said = error_text(response.content)
            raise ControlError(
                f"{method} {self.base_url}{path} answered HTTP {response.status_code}: {said}",
                status=response.status_code,
            )
        return response

    async def _control(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = _CONTROL_TIMEOUT_S,
    ) -> httpx.Response:
        content = None if body is None else orjson.dumps(body)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._http.request(method, path, content=content)
        except TimeoutError as error:
            raise ControlError(f"{method} {self.base_url}{path}: no answer within {timeout_s:g} s") from error
        except httpx.HTTPError as error:
            raise ControlError(f"{method} {self.base_url}{path}: {said(error)}") from error

    async def _exchange(self, path: str, body: bytes, deadline_s: float | None) -> Exchange:
        return await self._poster.exchange(path, body, self.timeout_s if deadline_s is None else deadline_s)
