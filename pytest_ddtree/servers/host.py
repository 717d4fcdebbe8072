"""Commands on the host of a unit: this one, or another through the system's own ssh with the user's configuration."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass

from pytest_ddtree.servers.errors import ServerError, SetupRefused

_SSH = (
    "ssh",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=15",
    "-o",
    "ServerAliveInterval=10",
    "-o",
    "ServerAliveCountMax=3",
)
_SSH_FAILED = 255
_NEVER = (
    "Could not resolve hostname",
    "Permission denied",
    "Host key verification failed",
    "Bad configuration option",
)
"""What ssh says where trying again does not help; a host that does not answer may come back."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class Host:
    """Where commands run, and whether through `sudo -n`."""

    ssh: str | None = None
    sudo: bool = False

    @property
    def title(self) -> str:
        return self.ssh or "this host"

    def argv(self, script: str) -> list[str]:
        """The local command line that runs a shell script there."""
        words = [*(("sudo", "-n") if self.sudo else ()), "sh", "-c", script]
        return [*_SSH, self.ssh, shlex.join(words)] if self.ssh else words

    def run(self, script: str, *, stdin: str = "", timeout_s: float = 60.0) -> Done:
        """Run a shell script there. Raises ServerError when the host cannot be reached or sudo asks for a password."""
        argv = self.argv(script)
        try:
            done = subprocess.run(
                argv,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except OSError as error:
            raise SetupRefused(f"{argv[0]} cannot be run here", why=str(error)) from error
        except subprocess.TimeoutExpired as error:
            raise ServerError(
                f"{self.title} did not answer within {timeout_s:g} s", why=script[:200]
            ) from error
        if self.ssh and done.returncode == _SSH_FAILED:
            refused = any(words in done.stderr for words in _NEVER)
            raise (SetupRefused if refused else ServerError)(
                f"{self.ssh} cannot be reached by ssh",
                why=done.stderr.strip()[:400] or None,
                hint=f"try `ssh -o BatchMode=yes {self.ssh} true`; keys and host names come from your own ssh configuration",
            )
        if self.sudo and done.returncode != 0 and "sudo:" in done.stderr:
            raise SetupRefused(
                f"sudo on {self.title} does not work without a password",
                why=done.stderr.strip()[:400],
                hint="allow it for systemctl and systemd-run in sudoers, or use a user unit",
            )
        return Done(done.returncode, done.stdout, done.stderr)

    def tunnel(self, local_port: int, address: str, remote_port: int) -> list[str]:
        """The command line that forwards a local port to a port of that host, on an address as URLs have it."""
        assert self.ssh is not None
        forward = f"127.0.0.1:{local_port}:{address}:{remote_port}"
        return [*_SSH, "-N", "-o", "ExitOnForwardFailure=yes", "-L", forward, self.ssh]
