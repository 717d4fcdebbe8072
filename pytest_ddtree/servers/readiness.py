"""When a server is ready: alive, healthy, ours, able to generate, and its effective config readable. One deadline for all of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddtree.dialects.base import Dialect
from pytest_ddtree.dialects.effective import UNKNOWN, EffectiveConfig
from pytest_ddtree.servers import idle, logs, secrets
from pytest_ddtree.servers.errors import (
    DiedDuringStart,
    ForeignServer,
    PoolClosed,
    PortInUse,
    ServerError,
    StartFailed,
    StartTimeout,
)
from pytest_ddtree.servers.handle import describe_exit
from pytest_ddtree.servers.http import Answer, Http, Unreachable
from pytest_ddtree.servers.idle import Load

_CHECK_PROMPT = "def add(a, b):\n"
_CHECK_TOKENS = 4
_NO_GENERATE = frozenset({403, 404, 405, 501})
_PROGRESS_S = 5.0
_NOT_ALLOWED = frozenset({401, 403})
_KEY = "give the server's key with --ddtree-api-key"
_ANSWERS = "/health answers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What is being waited for. `served_name` proves that the server is ours; None for one that somebody else runs."""

    title: str
    url: str
    dialect: Callable[[Mapping[str, Any]], Dialect]
    """From `/server_info` to the dialect: a foreign server shows its own only when it answers."""
    deadline: float
    """On the clock of `time.monotonic`."""
    budget_s: float
    """The whole deadline in seconds, for the text of the error."""
    absent_s: float | None = None
    """So long a server that somebody else runs may be without even a connection; None: until the deadline."""
    served_name: str | None = None
    log_path: Path | None = None
    api_key: str | None = None
    patient: bool = False
    """Whether another server may answer at first (the old process of a unit that is being restarted)."""
    refresh_log: Callable[[], None] = lambda: None
    """Brings the log up to date before it is read, where it is written elsewhere."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What was read from a server that is ready."""

    info: Mapping[str, Any]
    effective: EffectiveConfig
    idle: Load
    dialect: Dialect


def wait_ready(
    what: Expectation,
    *,
    exit_code: Callable[[float], int | None],
    closing: Callable[[], bool],
    progress: Callable[[str], None],
    on_listening: Callable[[], None] = lambda: None,
) -> Ready:
    """Wait until the server is ready. `exit_code(seconds)` waits that long for its end and is also the pause between two tries.

    Raises DiedDuringStart, PortInUse, StartTimeout, ForeignServer, StartFailed or PoolClosed, each with the log's end.
    """
    listening = False
    seen: str | None = None
    last_news = time.monotonic()
    state: str | None = None
    pause = 0.02
    with Http(what.url, api_key=what.api_key) as http:
        while True:
            code = exit_code(pause)
            if code is not None:
                raise _died(what, code)
            if closing():
                raise PoolClosed(f"{what.title}: the start was broken off", log_path=what.log_path)
            left = what.deadline - time.monotonic()
            # Asked at least once: a deadline that passed meanwhile says nothing of the server.
            if left <= 0 and state is not None:
                raise _timeout(what, state)
            waited = what.budget_s - left
            patience = left if listening or what.absent_s is None else what.absent_s - waited
            try:
                health = http.get(
                    "/health", timeout_s=max(0.1, min(30.0, left)), connect_s=max(1.0, patience)
                )
            except Unreachable as error:
                state = f"/health: {error}"
                if error.absent and what.absent_s is not None and patience <= 0:
                    raise _nobody(what, str(error)) from error
            else:
                if not listening:
                    listening = True
                    on_listening()
                if health.ok:
                    stranger = _stranger(what, http, left) if what.patient else None
                    if stranger is None:
                        break
                    state = f"/health answers 200, but {stranger}"
                elif health.status in _NOT_ALLOWED:
                    raise _failed(what, f"/health answers {health.status}", hint=_KEY)
                else:
                    state = f"{_ANSWERS} {health.status}"
            now = time.monotonic()
            text = _phase(what, listening)
            if text != seen or now - last_news > _PROGRESS_S:
                progress(f"{what.title}: {text}, {what.budget_s - left:.0f} s")
                seen, last_news = text, now
            # Quick servers are noticed quickly; a big model is not asked twice a second for half an hour.
            pause = min(1.0, max(0.02, (what.budget_s - left) * 0.05))
        return _prove(what, http, exit_code)


def _prove(what: Expectation, http: Http, exit_code: Callable[[float], int | None]) -> Ready:
    def left() -> float:
        return max(0.1, what.deadline - time.monotonic())

    try:
        info = _info(what, http, left())
        _identity(what, http, info, left())
        answer = http.post(
            "/generate",
            {"text": _CHECK_PROMPT, "sampling_params": {"max_new_tokens": _CHECK_TOKENS, "temperature": 0.0}},
            timeout_s=left(),
        )
        if what.served_name is None and answer.status in _NO_GENERATE:
            _check_chat(what, http, info, left())
        else:
            _check_generation(what, answer)
        info = _info(what, http, left())
        load = idle.at_start(http, info)
    except StartFailed as error:
        # A server that breaks answers its last requests with errors; what broke it is the better reason.
        code = None if isinstance(error, ForeignServer) else exit_code(1.0)
        if code is not None:
            raise _died(what, code) from error
        raise
    except Unreachable as error:
        code = exit_code(1.0)
        if code is not None:
            raise _died(what, code) from error
        if time.monotonic() >= what.deadline:
            raise _timeout(what, f"healthy, but the checked generation did not come: {error}") from error
        raise _failed(what, f"healthy, then unreachable: {error}") from error
    code = exit_code(0.0)
    if code is not None:
        # Healthy, answering, but our own process is gone: somebody else's server is on this port.
        raise _died(what, code)
    what.refresh_log()
    dialect = what.dialect(info)
    effective = dialect.effective(info, logs.body(what.log_path))
    if effective.algorithm is UNKNOWN:
        raise _failed(
            what,
            "/server_info does not say which speculative algorithm runs, so the config in force cannot be read",
            hint="choose the dialect of this build with --ddtree-dialect",
        )
    return Ready(info, effective, load, dialect)


def _info(what: Expectation, http: Http, left: float) -> Mapping[str, Any]:
    return _info_of(what, _ask_info(http, left))


def _ask_info(http: Http, left: float) -> Answer:
    answer = http.get("/server_info", timeout_s=left)
    return answer if answer.status != 404 else http.get("/get_server_info", timeout_s=left)


def _info_of(what: Expectation, answer: Answer) -> Mapping[str, Any]:
    if answer.ok and isinstance(answer.json, dict):
        return secrets.fields(answer.json)
    if answer.status in _NOT_ALLOWED:
        hint = _KEY
    elif answer.status == 404:
        hint = "is this an SGLang server of 0.5.11 or later?"
    else:
        hint = f"its log says more than its answer; `curl {secrets.url(what.url)}/server_info` repeats it while such a server runs"
    raise _failed(what, f"/server_info answers {answer.status}: {answer.text[:200]}", hint=hint)


def _identity(what: Expectation, http: Http, info: Mapping[str, Any], left: float) -> None:
    if what.served_name is None:
        return
    name = _served_name(http, info, left)
    if name != what.served_name:
        raise ForeignServer(
            f"{what.title}: the server at {secrets.url(what.url)} is not the one that was started",
            why=f"it serves {name!r}, ours serves {what.served_name!r}",
            hint="another server took the port: stop it, or leave the choice of the port to the pool",
            log_path=what.log_path,
            log_tail=_tail(what),
        )


def _served_name(http: Http, info: Mapping[str, Any], left: float) -> object:
    name = info.get("served_model_name")
    return name if name is not None else http.get("/model_info", timeout_s=left).field("served_model_name")


def _stranger(what: Expectation, http: Http, left: float) -> str | None:
    """What shows that it is another server than ours, or one that goes down, in words; None when it is ours.

    Raises StartFailed for an answer that no waiting changes: no key, no such path.
    """
    try:
        answer = _ask_info(http, left)
        if answer.status >= 500:
            return f"/server_info {answer.status}: {answer.text[:200]}"
        name = _served_name(http, _info_of(what, answer), left)
    except Unreachable as error:
        return f"/server_info does not: {error}"
    return None if name == what.served_name else f"from a server that serves {name!r}"


def _check_chat(what: Expectation, http: Http, info: Mapping[str, Any], left: float) -> None:
    """Somebody else's server may be reachable by its chat endpoint alone, which is enough for the coding eval."""
    answer = http.post(
        "/v1/chat/completions",
        {
            "model": info.get("served_model_name") or "default",
            "messages": [{"role": "user", "content": _CHECK_PROMPT}],
            "max_tokens": _CHECK_TOKENS,
            "temperature": 0.0,
        },
        timeout_s=left,
    )
    usage = answer.field("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if not answer.ok or not isinstance(count, int) or not 0 < count <= _CHECK_TOKENS:
        raise _failed(
            what,
            f"there is no /generate, and the checked chat completion answers {answer.status}: {answer.text[:300]}",
        )


def _check_generation(what: Expectation, answer: Answer) -> None:
    ids, meta = answer.field("output_ids"), answer.field("meta_info")
    count = meta.get("completion_tokens") if isinstance(meta, dict) else None
    if not answer.ok:
        raise _failed(what, f"the checked generation answers {answer.status}: {answer.text[:300]}")
    if not isinstance(ids, list) or not ids or len(ids) > _CHECK_TOKENS or count != len(ids):
        raise _failed(
            what,
            f"the checked generation is wrong: asked {_CHECK_TOKENS} tokens at temperature 0, got "
            f"{len(ids) if isinstance(ids, list) else 'no'} ids and completion_tokens={count}",
        )


def _phase(what: Expectation, listening: bool) -> str:
    found = logs.phase(logs.read(what.log_path, 1 << 17)) if what.log_path else None
    return found or ("warming up" if listening else "starting")


def _died(what: Expectation, code: int) -> StartFailed:
    _refresh(what)
    text = logs.read(what.log_path)
    cause = logs.classify(text)
    kind = PortInUse if cause is not None and cause.name == "port in use" else DiedDuringStart
    label = f" ({cause.name})" if cause else ""
    return kind(
        f"{what.title} ended before it was ready: {describe_exit(code, explained=cause is not None)}{label}",
        why=_cause(what, text) or "it wrote nothing to its log",
        hint=cause.hint if cause else "repeat the command by hand: it is the log's first line",
        log_path=what.log_path,
        log_tail=_tail(what),
    )


def _nobody(what: Expectation, error: str) -> StartTimeout:
    return StartTimeout(
        f"{what.title}: nothing answers there, not even a connection within {what.absent_s:g} s",
        why=error,
        hint="start it first, or mend the address (--ddtree-url, --ddtree-baseline-url); nothing is started for a URL",
    )


def _timeout(what: Expectation, state: str) -> StartTimeout:
    _refresh(what)
    text = logs.read(what.log_path)
    cause = logs.classify(text)
    phase = logs.phase(text)
    if cause is not None:
        hint = cause.hint
    elif state.startswith(_ANSWERS) or "Protocol" in state:
        hint = "it listens and does not get healthy: see its log; raise --ddtree-start-timeout only if it was still warming up"
    elif state.startswith("healthy"):
        hint = "it answers /health alone: see its log for the request that hangs"
    elif what.log_path is not None and not logs.body(what.log_path).strip():
        hint = (
            "it has not written a line, so it hangs in an import or at a device: repeat the command by hand, it is the log's first "
            "line; raise --ddtree-start-timeout only if imports are that slow here"
        )
    else:
        hint = "raise --ddtree-start-timeout if the model needs longer to load"
    return StartTimeout(
        f"{what.title} was not ready within {what.budget_s:g} s; last state: {state}{f'; {phase}' if phase else ''}",
        why=_cause(what, text) if cause else None,
        hint=hint,
        log_path=what.log_path,
        log_tail=_tail(what),
    )


def _refresh(what: Expectation) -> None:
    """For the report of a failure, which counts more than that its log cannot be had."""
    with suppress(ServerError):
        what.refresh_log()


def _tail(what: Expectation) -> str:
    return secrets.text(logs.tail(logs.read(what.log_path)), what.api_key)


def _cause(what: Expectation, text: str) -> str | None:
    line = logs.root_cause(text)
    return line and secrets.text(line, what.api_key)


def _failed(what: Expectation, why: str, *, hint: str | None = None) -> StartFailed:
    return StartFailed(
        f"{what.title} is not usable",
        why=why,
        hint=hint,
        log_path=what.log_path,
        log_tail=_tail(what),
    )
