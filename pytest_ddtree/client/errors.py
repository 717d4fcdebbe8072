"""What a client raises; a server's fault during `generate` is an outcome of the record instead."""

from __future__ import annotations

from pytest_ddtree.errors import Infrastructure


class ClientError(Infrastructure):
    """A control or scoring call did not give what was asked; the text says what, where and what to do."""


class ControlError(ClientError):
    """A control call (`/server_info`, `/flush_cache`, ...) failed.

    `status` is the HTTP status, None when there was no answer at all.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ScoreError(ClientError):
    """Given tokens could not be scored. `body` is what the server said, `status` its HTTP status."""

    def __init__(self, message: str, *, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class RefusesLogprobs(ScoreError):
    """The server does not return logprobs, like speculative ones of many builds; score on the baseline."""
