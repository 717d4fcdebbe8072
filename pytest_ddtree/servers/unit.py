"""One service of a host, as systemctl and journalctl show and change it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pytest_ddtree.dialects.base import value
from pytest_ddtree.servers import unitfile
from pytest_ddtree.servers.errors import ServerError, SetupRefused, StartFailed, StopFailed
from pytest_ddtree.servers.host import Host
from pytest_ddtree.servers.processes import in_url

ROOT = "/run/systemd/system"
"""Where drop-ins go that do not outlive the machine."""
DROP_IN = "90-pytest-ddtree.conf"
DEFAULT_PORT = 30000
"""Where SGLang listens when its command line does not say."""


class Unit:
    """A service by its name; `.service` may be left out of it. Every call raises ServerError for a host that does not answer."""

    def __init__(self, host: Host, name: str, root: str = ROOT) -> None:
        self.host = host
        self.name = name if name.endswith(".service") else f"{name}.service"
        self.folder = f"{root}/{self.name}.d"
        """Holds our drop-in."""
        self._quoted = shlex.quote(self.name)

    def read(self) -> str:
        """The unit as systemd has it, without a drop-in of ours. Raises SetupRefused."""
        done = self.host.run(f"systemctl cat {self._quoted}")
        if not done.ok:
            raise SetupRefused(
                f"unit {self.name} cannot be read on {self.host.title}",
                why=done.err.strip()[:400] or None,
                hint="check --ddtree-unit and --ddtree-ssh",
            )
        if DROP_IN in done.out:
            raise ServerError(
                f"unit {self.name} still has a drop-in of an earlier run: {self.folder}/{DROP_IN}",
                hint="another run uses the unit now, or its lease has not ended yet: wait some minutes, or remove the file and run "
                "`systemctl daemon-reload`",
            )
        return done.out

    def address(self, words: Sequence[str]) -> tuple[str, int]:
        """Where a server with this command line answers on its own host. Raises SetupRefused for what only systemd could tell."""
        host, port = value(words, "--host") or "127.0.0.1", value(words, "--port") or str(DEFAULT_PORT)
        for flag, text, known in (
            ("--host", host, not set(host) & set("%$")),
            ("--port", port, port.isdigit()),
        ):
            if not known:
                raise SetupRefused(
                    f"unit {self.name} has {flag} {text!r}, so it is not known where its server answers",
                    hint=f"say it in --ddtree-server-args '{flag} ...': the last of equal flags counts",
                )
        return in_url(host), int(port)

    def shown(self) -> str:
        """What `systemctl cat` prints now, whatever that is."""
        return self.host.run(f"systemctl cat {self._quoted}").out

    def active(self) -> bool:
        """Whether it runs, or is about to."""
        state = self.host.run(f"systemctl is-active {self._quoted}").out.strip()
        return state in {"active", "activating", "reloading"}

    def write(self, text: str) -> None:
        """Put our drop-in there; it counts from the next restart. Raises StartFailed."""
        folder = shlex.quote(self.folder)
        done = self.host.run(f"mkdir -p {folder} && cat > {folder}/{DROP_IN}", stdin=text)
        if not done.ok:
            raise StartFailed(
                f"the drop-in of unit {self.name} cannot be written on {self.host.title}",
                why=done.err.strip()[:400],
                hint="use an account that may, or sudo without a password",
            )

    def restart(self, timeout_s: float) -> None:
        """Read all files anew, and restart. Raises StartFailed."""
        done = self.host.run(
            f"systemctl daemon-reload && systemctl restart {self._quoted}", timeout_s=timeout_s
        )
        if not done.ok:
            raise StartFailed(
                f"systemctl restart of {self.name} failed on {self.host.title}", why=done.err.strip()[:400]
            )

    def stop(self, timeout_s: float = 120.0) -> None:
        """Stop it. Raises StopFailed."""
        done = self.host.run(f"systemctl stop {self._quoted}", timeout_s=timeout_s)
        if not done.ok:
            raise StopFailed(
                f"systemctl stop of {self.name} failed on {self.host.title}", why=done.err.strip()[:400]
            )

    def exit_code(self) -> int | None:
        """The exit code once it has ended, negative for a signal; None while it runs."""
        done = self.host.run(
            f"systemctl show {self._quoted} -p ActiveState -p ExecMainStatus -p ExecMainCode"
        )
        return unitfile.exit_status(done.out)

    def now(self) -> int:
        """Seconds since 1970 by the clock of its host, which its journal goes by. Raises StartFailed."""
        done = self.host.run("date +%s")
        if not done.out.strip().isdigit():
            raise StartFailed(
                f"{self.host.title} does not tell its time", why=(done.out + done.err).strip()[:400] or None
            )
        return int(done.out)

    def journal(self, since: int, first: int) -> str:
        """Its journal since a time of its host's clock, from line `first` (1 or more) on; empty where there is none to read."""
        done = self.host.run(
            f"journalctl -u {self._quoted} --since=@{since} -o cat --no-pager | tail -n +{first}"
        )
        return done.out if done.ok else ""
