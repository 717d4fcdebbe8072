"""The session of one build in a comparison of builds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_ddtree.grid import Config
from pytest_ddtree.options import Settings
from pytest_ddtree.plan import Plan
from pytest_ddtree.results.builds import BuildSpec
from pytest_ddtree.results.runs import SESSION
from pytest_ddtree.run import Run
from pytest_ddtree.servers.lock import SharedLocks
from pytest_ddtree.servers.told import whole

Keep = Callable[..., None]


class BuildRun(Run):
    """The session of one build: its records carry the build's name, and its servers go when another build's turn comes."""

    def __init__(
        self,
        spec: BuildSpec,
        settings: Settings,
        configs: tuple[Config, ...],
        *,
        folder: Path,
        keep: Keep,
        progress: Callable[[str], None],
        locks: SharedLocks | None = None,
    ) -> None:
        """`locks`: those of all builds, where their servers are up at once."""
        super().__init__(
            settings, configs, Plan(), progress=lambda text: progress(f"build {spec.name}: {text}")
        )
        self.spec = spec
        self.run_dir = folder / spec.name
        self.chosen: dict[tuple[str, int], tuple[int, ...]] = {}
        """Prompts that this build's baseline made necessary; the other builds use them too."""
        self._keep = keep
        self._said = False
        self._locks = locks

    @property
    def shared_locks(self) -> SharedLocks | None:
        return self._locks

    @property
    def build_name(self) -> str | None:
        return self.spec.name

    def store(self, kind: str, **fields: Any) -> None:
        """Append one record, with the build's name, to the file that all builds share."""
        if not self._said:
            self._said = True
            self._keep(
                "fingerprint", build=self.spec.name, scope=SESSION, fingerprint=self.fingerprint.as_json()
            )
        if kind == "round":
            fields = {"round": {**fields["round"], "build": self.spec.name}}
        elif kind == "prompts":
            self.chosen[(fields["workload"], fields["context_tokens"])] = tuple(fields["indices"])
        elif kind == "verdict":
            fields.setdefault("against", self.spec.name)
        self._keep(kind, build=self.spec.name, **fields)

    def begin_stay(self, config: Config) -> None:
        """Have the server of a config up for a stay: the one that was judged, or a new start. Raises Infrastructure.

        One that died since it was judged is not replaced: what is measured would be another process than the one that was judged.
        """
        server = self.handle(config)
        if server is not None and server.broken:
            server.check_alive()
        self.get(config, "ab")

    def cache_tokens(self, config: Config) -> int | None:
        """How many tokens the cache of a config's server holds, as it says; None where it does not, or is not up."""
        server = self.handle(config)
        if server is None or not server.running:
            return None
        return whole(server.info.get("max_total_num_tokens"))

    def release(self) -> None:
        """Stop this build's servers and give the GPU back; the next one that is asked for is a new start."""
        self.servers.release()
