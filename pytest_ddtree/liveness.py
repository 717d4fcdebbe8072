"""Whether a server is dead, or hangs, when something went wrong: such a server is infrastructure, and gives no verdict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.errors import Infrastructure, NotVerified
from pytest_ddtree.grid import Config

if TYPE_CHECKING:
    from pytest_ddtree.run import Run

DYING_S = 5.0
"""How long a process that is ending may take to be gone after its connections broke."""
SERVING_S = 20.0
"""Within this time a server that serves gives one token, however busy it was."""


def fault(run: Run, config: Config, record: Record) -> Infrastructure | None:
    """What an answer that is not `ok` says about its server: dead, or hanging; None for another fault.

    The next `get` starts the server once more; a second fault ends the config.
    """
    server = run.handle(config)
    broken = record.outcome in ("reset", "timeout") or (record.http_status or 0) >= 500
    if server is None or not broken:
        return None
    # A connection breaks a moment before the process behind it is gone.
    deadline = time.monotonic() + (DYING_S if record.outcome == "reset" else 0.0)
    while True:
        try:
            server.check_alive()
        except Infrastructure as error:
            return error
        if time.monotonic() >= deadline:
            break
        time.sleep(0.1)
    run.report_fault(config, record.error or record.outcome)
    return None


def check_serving(run: Run, config: Config) -> None:
    """Ask for one token after something went wrong, so that a dead or hung server is not taken for a wrong one.

    Raises:
        Infrastructure: it died, or it does not answer any more; the next `get` starts it once more.
    """
    server = run.handle(config)
    if server is None:
        return
    server.check_alive()
    one = Request(sampling=Sampling(max_new_tokens=1), input_ids=(1, 2, 3), tag="is it still serving")
    record = run.await_(run.async_client(server).generate(one, deadline_s=SERVING_S))
    if not record.ok:
        raise fault(run, config, record) or NotVerified(
            f"{config.id}: the server no longer answers: one token was asked for and did not come in {SERVING_S:.0f} s "
            f"({record.outcome}: {record.error}). Its log: {server.log_path}\n{server.log_tail(20)}"
        )
