"""The ASGI application."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import generate, info, metrics, openai, planting
from .errors import RequestError, generate_error, json_response
from .service import Service

log = logging.getLogger("ddtree.reference")
OPEN_PATHS = frozenset({"/health", "/health_generate", "/metrics"})
"""Reachable without an API key."""
PHRASES = {status.value: status.phrase for status in HTTPStatus}


class AccessLog:
    """One line per answered request, as uvicorn writes it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client") or ("-", 0)

        async def logging_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                log.info(
                    'INFO:     %s:%s - "%s %s HTTP/%s" %s %s',
                    *client, scope["method"], scope["path"], scope["http_version"], status, PHRASES.get(status, ""),
                )  # fmt: skip
            await send(message)

        await self._app(scope, receive, logging_send)


class ApiKey:
    """401 without the bearer token."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if given != self._expected:
                await json_response({"error": "Unauthorized"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _request_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return generate_error(error)


async def _client_gone(_: Request, __: Exception) -> Response:
    """Nobody reads this any more; the log shows what happened."""
    return Response(status_code=499)


def build_app(service: Service) -> Starlette:
    both = ["GET", "POST"]
    routes = [
        Route("/generate", generate.generate, methods=["POST", "PUT"]),
        Route("/health", info.health),
        Route("/health_generate", info.health),
        Route("/server_info", info.server_info),
        Route("/get_server_info", info.server_info),
        Route("/model_info", info.model_info),
        Route("/get_model_info", info.model_info),
        Route("/v1/models", info.models),
        Route("/flush_cache", info.flush_cache, methods=both),
        Route("/abort_request", info.abort_request, methods=["POST"]),
        Route("/v1/completions", openai.completions, methods=["POST"]),
        Route("/v1/chat/completions", openai.chat_completions, methods=["POST"]),
    ]
    if service.args.enable_metrics:
        routes.append(Route("/metrics", metrics.metrics))
    if service.args.plant_switch:
        routes.append(Route("/plant", planting.exchange, methods=["POST"]))
    middleware = [Middleware(AccessLog)]
    if service.args.api_key:
        middleware.append(Middleware(ApiKey, key=service.args.api_key))
    handlers = {RequestError: _request_error, ClientDisconnect: _client_gone}
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.state.service = service
    return app
