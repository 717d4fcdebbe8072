"""Free ports, held until the server takes them, and who holds one that is not free."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket

from pytest_ddtree.servers import proc

_DERIVED = 10_000


class PortHold:
    """A port that is bound but not listening, so that nobody else gets it while a model loads for minutes.

    Both this socket and the server's set SO_REUSEADDR, hence the server's bind and listen succeed beside it (Linux). For the
    same reason a second hold's bind would succeed too, so a claim that allows no second keeps holds apart: a name in the
    abstract namespace (unix(7)), which is the network namespace's as ports are, and goes with its process.
    Port 0 takes a free one. Raises OSError if the port is taken.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._claim = socket.socket(socket.AF_UNIX)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self.port: int = self._socket.getsockname()[1]
            self._claim_port()
            if listening(host, self.port):
                raise OSError(f"port {port} is in use")
        except OSError:
            self.release()
            raise

    def _claim_port(self) -> None:
        try:
            self._claim.bind(f"\0pytest-ddtree-port-{self.port}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                f"port {self.port} is in use: it is held for a server that is about to start"
            ) from None

    @classmethod
    def low(cls, host: str) -> PortHold:
        """A free port from 30000 to 32767, whose neighbour 10000 higher is free too.

        Some builds listen there as well (gRPC), so a port above 55535 cannot be used; below 30000 SGLang picks its NCCL ports, and
        from 32768 on the kernel its own. Takes any free port where none of these is. Raises OSError.
        """
        for port in random.sample(range(30000, 32768), 64):
            try:
                hold = cls(host, port)
            except OSError:
                continue
            if free(host, port + _DERIVED):
                return hold
            hold.release()
        return cls(host)

    def release(self) -> None:
        """Give the port up; the server has it now, or nobody needs it."""
        self._socket.close()
        self._claim.close()


def listening(host: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def holder(port: int) -> str | None:
    """`pid (command)` of the process that listens on a TCP port, None if it may not be seen."""
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(path) as file:
            next(file)
            for line in file:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for pid in filter(str.isdigit, os.listdir("/proc")) if inodes else ():
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.readlink(f"/proc/{pid}/fd/{fd}") in inodes:
                    return f"{pid} ({proc.command(int(pid))})"
    return None
