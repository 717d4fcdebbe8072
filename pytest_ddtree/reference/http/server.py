"""The process: parse, bind, load, listen, warm up, serve, leave."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Sequence

import uvicorn

from ..args import ArgumentError, parse
from ..checkpoint import CheckpointError
from ..engine import Engine
from ..faults import Switch, describe, plant
from ..faults.base import PlantError
from ..launch import Loaded, load
from ..runtime import Runtime, build_runtime
from ..sampling import SamplingParams
from .app import build_app
from .bridge import Frontend, Outbox
from .observations import Observations
from .service import Service

log = logging.getLogger("ddtree.reference")
WARM_UP_TEXT = "The capital city of France is"
EXIT_USAGE = 2
EXIT_PORT = 3
EXIT_CRASH = 1
DRAIN_S = 0.5
DRAIN_POLL_S = 0.005


def main(argv: Sequence[str]) -> int:
    """Run the server until a signal; returns the exit status."""
    try:
        args = parse(argv)
        if "list" in args.plant:
            print(describe())
            return 0
        hooks = plant(args.plant)
        if args.plant_switch:
            hooks = Switch(hooks)
        configure_log(args.log_level)
    except (ArgumentError, PlantError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    try:
        listener = _bind(args.host, args.port)
    except OSError as error:
        print(f"error: port {args.port} on {args.host} cannot be used: {error.strerror}.", file=sys.stderr)
        return EXIT_PORT
    args.port = listener.getsockname()[1]
    try:
        loaded = load(args)
    except (ArgumentError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    runtime = build_runtime(loaded.settings, loaded.target, loaded.draft, hooks)
    _log_start(runtime, loaded)
    if args.startup_delay:
        time.sleep(args.startup_delay)
    command = shlex.join([sys.executable, "-m", "pytest_ddtree.reference", *argv])
    if _has_uvloop():
        import uvloop

        return uvloop.run(_serve(args, loaded, runtime, listener, command))
    return asyncio.run(_serve(args, loaded, runtime, listener, command))


def configure_log(level: str) -> None:
    """Lines on stderr in SGLang's form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%Y-%m-%d %H:%M:%S"))
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False


def _has_uvloop() -> bool:
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401

        return True
    return False


def _bind(host: str, port: int) -> socket.socket:
    """Reserve the port without listening: clients are refused until the server can answer.

    Raises:
        OSError: the port is in use or the host is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # Beside a listening socket this fails; beside one that is merely bound, listening will.
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def _log_start(runtime: Runtime, loaded: Loaded) -> None:
    draft = runtime.draft
    settings = runtime.settings
    if draft is not None and loaded.draft is not None:
        speculative = draft.settings
        log.info(
            "Initialized DFLASH draft runner. attention_backend=numpy, model=DFlashDraftModel, block_size=%d, "
            "draft_window_size=%s, compact_cache=%s",
            speculative.block_size, speculative.window, speculative.window is not None,
        )  # fmt: skip
        config = loaded.draft.config
        log.info(
            "DFLASH draft runner ready. mask_token=%s, mask_token_id=%d, mask_token_id_override=%d",
            config.mask_token, config.mask_token_id, config.mask_token_id,
        )  # fmt: skip
        if speculative.algorithm == "DDTREE":
            log.info(
                "Initialized DDTree worker. block_size=%d, tree_budget=%d, max_tree_nodes=%d",
                speculative.block_size, speculative.budget, draft.width,
            )  # fmt: skip
    log.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%d, max_prefill_tokens=%d, max_running_requests=%d, "
        "context_len=%d, numerics=%s",
        runtime.memory.total, settings.chunked_prefill_size, settings.chunked_prefill_size,
        settings.max_running_requests, settings.context_length, settings.numerics,
    )  # fmt: skip


async def _serve(
    args: argparse.Namespace, loaded: Loaded, runtime: Runtime, listener: socket.socket, command: str
) -> int:
    loop = asyncio.get_running_loop()
    outbox = Outbox(loop)
    observed = Observations()
    engine = Engine(runtime, loaded.tokenizer, on_crash=_die, on_pass=outbox.flush)
    service = Service(
        args=args,
        settings=runtime.settings,
        engine=engine,
        frontend=Frontend(engine, outbox, observed),
        observed=observed,
        tokenizer=loaded.tokenizer,
        model_name=args.served_model_name or str(args.model_path),
        launch_command=command,
        chat_template=loaded.chat_template,
    )
    config = uvicorn.Config(
        build_app(service),
        log_config=None,
        access_log=False,
        lifespan="off",
        loop="none",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=3600,
        backlog=2048,
    )
    server = uvicorn.Server(config)
    # Signals are ours: uvicorn would install handlers of its own and raise the signal again at the end.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _signalled, number, service, stop)
    engine.start()
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if serving.done():
        log.error("The HTTP server did not start: %s", serving.exception() or "no reason given")
        return EXIT_PORT
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    log.info("INFO:     Uvicorn running on http://%s:%d (Press CTRL+C to quit)", shown, port)
    warming = asyncio.ensure_future(_warm_up(service))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    warming.cancel()
    engine.abort("", "The server is shutting down.")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            # What the engine still says, and then what its readers still send of that.
            while engine.running or engine.waiting or server.server_state.tasks:
                await asyncio.sleep(DRAIN_POLL_S)
    engine.stop()
    if server.server_state.tasks:
        log.info("Answers that were cut off: %d", len(server.server_state.tasks))
        # It would write a traceback for each.
        logging.getLogger("uvicorn.error").disabled = True
    # Nothing is left that uvicorn's own way out would wait for, which takes two tenths of a second.
    serving.cancel()
    await asyncio.wait({serving}, timeout=DRAIN_S)
    return 0 if stop.is_set() else EXIT_CRASH


def _signalled(number: int, service: Service, stop: asyncio.Event) -> None:
    log.info("%s received. Draining requests and shutting down...", signal.Signals(number).name)
    service.stopping = True
    stop.set()


async def _warm_up(service: Service) -> None:
    room = service.engine.runtime.max_request_tokens
    ids = service.tokenizer.encode(WARM_UP_TEXT)[: max(room - 1, 1)]
    params = SamplingParams(max_new_tokens=min(8, max(room - len(ids), 0)), temperature=0.0)
    _, channel = service.submit(ids, params, rid="WARM_UP", every=0)
    while (await channel.next()).finish is None:
        pass
    await service.frontend.flush_cache()
    service.ready = True
    log.info("The server is fired up and ready to roll!")


def _die(_: BaseException) -> None:
    """An engine that crashed takes the server with it, as a scheduler's death does in SGLang."""
    sys.stderr.flush()
    os._exit(EXIT_CRASH)
