"""The few blocking HTTP calls that a life cycle needs. Proxies of the environment are ignored: a server is on its own host."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import httpx


class Unreachable(Exception):
    """No HTTP answer: refused, reset, timed out, or not HTTP. `absent`: there was not even a connection."""

    def __init__(self, text: str, *, absent: bool = False) -> None:
        super().__init__(text)
        self.absent = absent


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of one answer; `json` is None where the body is no JSON."""

    status: int
    text: str
    json: Any = None

    @property
    def ok(self) -> bool:
        return self.status == 200

    def field(self, name: str) -> Any:
        """A field of a JSON object, None where there is none."""
        return self.json.get(name) if isinstance(self.json, dict) else None


class Http:
    """A small client for one server; every failure to get an answer is `Unreachable`."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.base_url = base_url.rstrip("/")
        # Loading the system's certificates takes longer than starting a small server; plain HTTP needs none.
        verify = self.base_url.startswith("https:")
        self._client: httpx.Client = httpx.Client(
            base_url=self.base_url, headers=headers, trust_env=False, verify=verify
        )

    def get(self, path: str, *, timeout_s: float = 10.0, connect_s: float | None = None) -> Answer:
        """`connect_s`: a shorter time for the connection alone."""
        return self._call("GET", path, None, timeout_s, connect_s)

    def post(self, path: str, body: Any = None, *, timeout_s: float = 10.0) -> Answer:
        return self._call("POST", path, body, timeout_s, None)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, path: str, body: Any, timeout_s: float, connect_s: float | None) -> Answer:
        import httpx

        timeout = httpx.Timeout(
            timeout_s, connect=timeout_s if connect_s is None else min(timeout_s, connect_s)
        )
        try:
            # A connection a call: a server that is replaced between two calls must not be met through an old one.
            response = self._client.request(
                method, path, json=body, timeout=timeout, headers={"Connection": "close"}
            )
        except httpx.HTTPError as error:
            absent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            raise Unreachable(f"{type(error).__name__}: {error}".rstrip(": "), absent=absent) from error
        try:
            parsed = response.json()
        except ValueError:
            parsed = None
        return Answer(response.status_code, response.text, parsed)
