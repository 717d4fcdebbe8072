"""Healthy sessions, half of them with bf16 rounding: what should pass every test, and how often something does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from benchmarks.exactness.caught import Bench, Servers, Size, caught_by, make_bench
from benchmarks.exactness.embedded import subject, tree_arguments
from benchmarks.exactness.planted import Planted
from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.exactness.contract.catalogue import CONTRACT
from pytest_ddtree.exactness.prompts import emitted_ids
from pytest_ddtree.exactness.rule import FLOAT32, Rule

KINDS = ("float32", "bf16")
PER_START = 10
"""Sessions of one kind that share their servers, each on a flushed cache: a start costs more than some clauses."""
EVERY_TIME = (
    "serial",
    "concurrent-8",
    "second-turn",
    "warm-prefix",
    "eos-in-run",
    "stop-ids",
    "usage-and-finish",
    "streamed-text",
    "idle-and-whole",
)
"""What every session asks."""
TURNS = 5
LEFT_OUT = frozenset({"grammar", "after-eviction", "logit-bias", "penalties"})
"""Clauses that the embedded server skips, and two whose outcome does not depend on rounding."""
IN_TURN = (
    *(name for name in CONTRACT if name not in LEFT_OUT and name not in EVERY_TIME),
    "sampling",
    "relations",
)
"""What costs more: each session asks every fifth of these, so that a hundred sessions ask each of them 20 times."""


def asked_in(session: int, *, whole: bool = False) -> tuple[str, ...]:
    """The tests of a session; the `whole` list takes three times as long."""
    turn = session // len(KINDS) % TURNS
    *first, last = EVERY_TIME
    return (*first, *(IN_TURN if whole else IN_TURN[turn::TURNS]), last)


def kind_of(session: int) -> str:
    """Odd sessions compute in bf16."""
    return KINDS[session % 2]


def groups(sessions: Sequence[int], kinds: Sequence[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The sessions in groups that share servers, kinds in turn, so that a part of them has as many of each."""
    own = {kind: [session for session in sessions if kind_of(session) == kind] for kind in kinds}
    for start in range(0, max(map(len, own.values()), default=0), PER_START):
        for kind, of_kind in own.items():
            group = tuple(of_kind[start : start + PER_START])
            if group:
                yield kind, group


async def run_group(
    kind: str, sessions: Sequence[int], note: Callable[[dict[str, Any]], None], *, whole: bool = False
) -> None:
    """Each session on prompts of its own; `note` gets its row as soon as it is over."""
    numerics = ["--numerics", "bf16"] if kind == "bf16" else []
    with Servers(*numerics) as servers:
        tree_url = servers.url(*tree_arguments())
        async with AsyncClient(servers.url()) as baseline, AsyncClient(tree_url) as client:
            for session in sessions:
                started = time.monotonic()
                await baseline.flush_cache()
                await client.flush_cache()
                bench = await make_bench(
                    servers,
                    10_000 + session,
                    Size(),
                    baseline=baseline,
                    rule=Rule() if numerics else FLOAT32,
                    concurrencies=(1, 8, 32) if numerics else (1, 8),
                )
                row = await one_session(session, asked_in(session, whole=whole), client, bench)
                row |= {"numerics": kind, "seconds": round(time.monotonic() - started, 1)}
                note(row)


async def one_session(
    session: int, tests: Sequence[str], client: AsyncClient, bench: Bench
) -> dict[str, Any]:
    """Every test once on a server that has no fault: which raised an alarm, and how noisy the arithmetic was."""
    under = subject(client, bench.prompts, await client.server_info(), seed=session)
    alarms: dict[str, str] = {}
    for test in tests:
        why = await caught_by(test, under, bench, Planted((), ""))
        if why is not None:
            alarms[test] = why
    alone = {ids: record for (ids, _, by_itself), record in under.known.items() if by_itself}
    unlike = [
        emitted_ids(alone[prompt.ids]) != emitted_ids(bench.answers.records[prompt.tag])
        for prompt in bench.prompts
        if prompt.ids in alone
    ]
    return {
        "session": session,
        "tests": list(tests),
        "alarms": alarms,
        "floor_share": bench.floor.share,
        "floor_largest": bench.floor.largest,
        "unlike_baseline": [sum(unlike), len(unlike)],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line a kind: alarms, sessions, noise."""
    lines = []
    for kind in KINDS:
        own = [row for row in rows if row["numerics"] == kind]
        if not own:
            continue
        alarmed = [row for row in own if row["alarms"]]
        shares = [row["floor_share"] for row in own]
        unlike = [row["unlike_baseline"] for row in own if "unlike_baseline" in row]
        text = (
            f"{kind}: {len(alarmed)} of {len(own)} healthy sessions with an alarm; floors of {min(shares):.2%} to "
            f"{max(shares):.2%}, largest gap {max(row['floor_largest'] for row in own):.3f} nats"
        )
        if unlike:
            differing, of = (sum(column) for column in zip(*unlike, strict=True))
            text += f"; {differing} of {of} answers unlike the baseline's"
        lines.append(text)
        lines += [f"  session {row['session']}: {row['alarms']}" for row in alarmed]
    return lines
