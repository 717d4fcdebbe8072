"""The client for callers that are not asynchronous: the same methods over a loop thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pytest_ddtree.client.client import Api, AsyncClient
from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.client.prometheus import Sample
from pytest_ddtree.client.records import Record, Request, TokenScore
from pytest_ddtree.client.transport import Reader


class Client:
    """`AsyncClient` without `async`. Give it a `LoopThread` to share one, else it owns one and closes it.

    `asynchronous` is the client behind it, for coroutines that run in `loop`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        loop: LoopThread | None = None,
        reader: Reader = "auto",
        api: Api = "generate",
        model: str | None = None,
    ) -> None:
        self.loop = loop or LoopThread()
        self._owns_loop = loop is None
        self.asynchronous = AsyncClient(
            base_url, api_key=api_key, timeout_s=timeout_s, reader=reader, api=api, model=model
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        return self.asynchronous.base_url

    def close(self) -> None:
        """Close every connection, and the loop if it is ours."""
        self.loop.run(self.asynchronous.aclose())
        if self._owns_loop:
            self.loop.close()

    def generate(self, request: Request, *, stream: bool = True, deadline_s: float | None = None) -> Record:
        """See `AsyncClient.generate`."""
        return self.loop.run(self.asynchronous.generate(request, stream=stream, deadline_s=deadline_s))

    def score(self, ids: Sequence[int], start: int, *, top: int = 5) -> tuple[TokenScore, ...]:
        """See `AsyncClient.score`."""
        return self.loop.run(self.asynchronous.score(ids, start, top=top))

    def baseline_with_logprobs(self, request: Request, top: int = 5) -> tuple[Record, tuple[TokenScore, ...]]:
        """See `AsyncClient.baseline_with_logprobs`."""
        return self.loop.run(self.asynchronous.baseline_with_logprobs(request, top))

    def prepare(self, connections: int) -> None:
        """See `AsyncClient.prepare`."""
        self.loop.run(self.asynchronous.prepare(connections))

    def server_info(self) -> dict[str, Any]:
        """See `AsyncClient.server_info`."""
        return self.loop.run(self.asynchronous.server_info())

    def model_info(self) -> dict[str, Any]:
        """See `AsyncClient.model_info`."""
        return self.loop.run(self.asynchronous.model_info())

    def health(self, timeout: float = 30.0) -> int:
        """See `AsyncClient.health`."""
        return self.loop.run(self.asynchronous.health(timeout))

    def metrics(self) -> dict[str, list[Sample]]:
        """See `AsyncClient.metrics`."""
        return self.loop.run(self.asynchronous.metrics())

    def flush_cache(self, timeout_s: float = 30.0) -> None:
        """See `AsyncClient.flush_cache`."""
        self.loop.run(self.asynchronous.flush_cache(timeout_s))

    def abort_all(self) -> None:
        """See `AsyncClient.abort_all`."""
        self.loop.run(self.asynchronous.abort_all())
