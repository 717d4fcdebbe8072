"""Everything that the pool must know to bring servers up; built once by the plugin's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pytest_ddtree.dialects.base import BaselineKind
from pytest_ddtree.dialects.conditions import carried
from pytest_ddtree.grid import Config
from pytest_ddtree.servers.lock import SharedLocks

ServerKind = Literal["reference", "sglang", "systemd", "url"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How servers are brought up. Argument lists are split already; times are seconds; token counts are tokens."""

    kind: ServerKind
    run_dir: Path
    """Logs go to `run_dir/logs/<config id>-<n>.log`."""
    model: str | None = None
    """None: the embedded server's own weights."""
    draft_model: str | None = None
    server_args: tuple[str, ...] = ()
    """For every server, baseline included."""
    spec_args: tuple[str, ...] = ()
    """For speculative servers only."""
    baseline_args: tuple[str, ...] = ()
    """For the baseline only."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of every server."""
    python: str | None = None
    """The interpreter that has SGLang (None: the one that runs now)."""
    sglang_src: Path | None = None
    """A checkout that is put first on PYTHONPATH."""
    launch_prefix: tuple[str, ...] = ()
    """What the command line begins with: `numactl ...`, `docker run ... image`, `srun ...`."""
    node_prefixes: tuple[tuple[str, ...], ...] = ()
    """For a model on several nodes one prefix each, the first for the node that answers HTTP; they come and go together."""
    stop_command: tuple[str, ...] = ()
    """Stops what an unknown launcher started; `{name}` is replaced with the launch id."""
    dialect: str | None = None
    """A dialect's name or the path of a custom one in TOML; None: probed."""
    url: str | None = None
    more_urls: tuple[str, ...] = ()
    """Further speculative servers that somebody else runs, each with a config of its own."""
    baseline_url: str | None = None
    ssh: str | None = None
    unit: str | None = None
    sudo: bool = False
    start_timeout_s: float = 1800.0
    stop_timeout_s: float = 30.0
    lock_timeout_s: float = 600.0
    """How long to wait for another run on the same GPU."""
    locks: SharedLocks | None = None
    """Where several pools of one session run at once: they hold their locks together."""
    api_key: str | None = None
    gpus: tuple[str, ...] | None = None
    """GPU indices or UUIDs of this pool (None: what CUDA_VISIBLE_DEVICES says, else all)."""
    baseline_gpus: tuple[str, ...] | None = None
    """GPUs of the baseline alone, which is then up beside a speculative server (None: it takes turns on `gpus`)."""
    max_concurrency: int | None = None
    """Largest concurrency that the session will send; becomes --max-running-requests on every server."""
    context_length: int | None = None
    """Tokens that the longest request needs, prompt and answer."""
    seed: int | None = None
    block_size: int | None = None
    """The draft checkpoint's own block size where it is known."""
    slots: int | None = None
    """Servers that may run at once (None: 2 for the embedded one, all that somebody else runs, else 1)."""
    host: str = "127.0.0.1"
    port: int | None = None
    """None: a free one for each start."""

    def of(self, config: Config, variant: BaselineKind = "matched") -> ServerSettings:
        """The settings for one config's server: with the arguments that only this config has.

        A matched baseline has the conditions that the user gave to the speculative servers alone.
        """
        if not config.speculative:
            own = replace(self, gpus=self.baseline_gpus) if self.baseline_gpus is not None else self
            if variant == "best":
                return own
            taken_over = carried(self.spec_args, self.server_args, self.baseline_args)
            return replace(own, baseline_args=(*taken_over, *self.baseline_args))
        if config.axis is None or not config.axis.arguments:
            return self
        return replace(self, spec_args=(*self.spec_args, *config.axis.arguments))

    @property
    def servers_at_once(self) -> int:
        """How many servers may be up at the same time."""
        if self.slots is not None:
            return max(1, self.slots)
        if self.kind == "url":
            return 1 + len(self.more_urls) + 1
        return 2 if self.kind == "reference" or self.baseline_gpus is not None else 1

    @property
    def baseline_apart(self) -> bool:
        """Whether the baseline and the speculative servers never need each other's place."""
        return self.baseline_gpus is not None and self.slots is None
