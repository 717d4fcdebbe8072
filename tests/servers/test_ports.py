"""Ports: held until the server listens, and who holds one that is taken."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pytest_ddtree.servers import ports
from pytest_ddtree.servers.ports import PortHold

LISTEN = """
import socket, sys
with socket.socket() as s:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("127.0.0.1", int(sys.argv[1])))
    s.listen()
    print("listening", flush=True)
    sys.stdin.read()
"""


def test_a_server_can_listen_on_a_held_port() -> None:
    hold = PortHold("127.0.0.1")
    server = subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(hold.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    with server:
        assert server.stdout.readline() == "listening\n"
        hold.release()
        assert ports.listening("127.0.0.1", hold.port)
        assert not ports.free("127.0.0.1", hold.port)
        holder = ports.holder(hold.port)
        assert holder is not None
        assert holder.startswith(f"{server.pid} (")
        with pytest.raises(OSError, match="in use"):
            PortHold("127.0.0.1", hold.port)
        server.communicate("")
    assert ports.free("127.0.0.1", hold.port)
    assert ports.holder(hold.port) is None


def test_nobody_else_is_given_a_held_port() -> None:
    with (
        held(lambda: PortHold("127.0.0.1")) as hold,
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind(("127.0.0.1", hold.port))


@contextlib.contextmanager
def held(take: Callable[[], PortHold]) -> Iterator[PortHold]:
    hold = take()
    try:
        yield hold
    finally:
        hold.release()


HOLD = """
import sys
from pytest_ddtree.servers.ports import PortHold
try:
    PortHold(sys.argv[1], int(sys.argv[2])).release()
except OSError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
@pytest.mark.parametrize("take", [PortHold, PortHold.low])
def test_a_held_port_has_one_holder(take: Callable[[str], PortHold], host: str) -> None:
    def second() -> str:
        done = subprocess.run(
            [sys.executable, "-c", HOLD, host, str(first.port)], capture_output=True, text=True, check=False
        )
        return done.stderr.strip()

    with held(lambda: take("127.0.0.1")) as first:
        with pytest.raises(OSError, match=f"port {first.port} is in use"):
            PortHold(host, first.port)
        assert f"port {first.port} is in use" in second()
    assert second() == "", "the refused holds left nothing behind"
    PortHold(host, first.port).release()


def test_low_ports_leave_room_for_derived_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the dice fell alike for each of five sessions.
    monkeypatch.setattr("random.sample", lambda population, k: list(population)[:k])
    with contextlib.ExitStack() as stack:
        holds = [stack.enter_context(held(lambda: PortHold.low("127.0.0.1"))) for _ in range(5)]
        assert len({hold.port for hold in holds}) == 5
        assert all(30000 <= hold.port <= 32767 for hold in holds)


def test_our_own_listener_is_named() -> None:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        holder = ports.holder(mine.getsockname()[1])
    assert holder is not None
    assert holder.startswith(f"{os.getpid()} (")
