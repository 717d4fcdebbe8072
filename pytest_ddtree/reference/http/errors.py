"""Errors as SGLang answers them."""

from __future__ import annotations

import orjson
from starlette.requests import Request
from starlette.responses import Response


class RequestError(Exception):
    """A request that is answered with an error status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def json_response(data: object, status: int = 200) -> Response:
    return Response(orjson.dumps(data), status_code=status, media_type="application/json")


def generate_error(error: RequestError) -> Response:
    """/generate: a bare error object for bad requests, the OpenAI-like one for the rest."""
    if error.status == 400:
        return json_response({"error": {"message": error.message}}, 400)
    return openai_error(error)


def openai_error(error: RequestError) -> Response:
    return json_response(openai_error_body(error), error.status)


def openai_error_body(error: RequestError) -> dict[str, object]:
    kind = {400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError"}.get(
        error.status, str(error.status)
    )
    return {"object": "error", "message": error.message, "type": kind, "param": None, "code": error.status}


async def read_json(request: Request) -> dict[str, object]:
    """The request's body as a JSON object.

    Raises:
        RequestError: no JSON, or no object.
    """
    body = await request.body()
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The request body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError(f"The request body must be a JSON object, not {type(data).__name__}.")
    return data
