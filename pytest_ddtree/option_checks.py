"""Which options go together: what one value cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pytest_ddtree.option_values import OptionError

if TYPE_CHECKING:
    from pytest_ddtree.options import Settings


FOR_THE_USERS_SGLANG = ("python", "launch_prefix", "stop_command", "node_prefix", "dialect")
"""Options that say how the user's own SGLang is started or read. Who gives one means that server, not the embedded one."""


def check_kind(given: Collection[str], server: str) -> None:
    """Refuse options of the user's SGLang where no kind of server was named and the embedded one would be measured instead.

    `given` has the fields of the options that were given. With `--ddtree-server reference` they are left alone, because an ini file
    may serve several kinds. Raises OptionError.
    """
    if server != "reference" or "server" in given:
        return
    for name in FOR_THE_USERS_SGLANG:
        if name in given:
            raise OptionError(
                f"--ddtree-{name.replace('_', '-')} is about an SGLang server, but without --ddtree-server the embedded server is "
                "tested: add --ddtree-server sglang (or --ddtree-server reference, if the embedded one is meant)"
            )


def check_together(settings: Settings) -> None:
    """Refuse options that contradict each other, or that need one which is missing. Raises OptionError."""

    def refuse(text: str) -> None:
        raise OptionError(text)

    if settings.server == "url" and not settings.url:
        refuse("--ddtree-server url needs --ddtree-url URL, the address of the running server")
    if settings.server != "url" and settings.url:
        refuse(
            f"--ddtree-url {settings.url[0]} contradicts --ddtree-server {settings.server}: give one of them"
        )
    if settings.server != "systemd" and settings.unit:
        refuse(
            f"--ddtree-unit {settings.unit} contradicts --ddtree-server {settings.server}: give one of them"
        )
    if settings.min_rounds > settings.rounds:
        refuse(f"--ddtree-min-rounds {settings.min_rounds} is more than --ddtree-rounds {settings.rounds}")
    if settings.ab_passes % 2:
        refuse(
            f"--ddtree-ab-passes {settings.ab_passes}: an even number of passes lets no build run first more often"
        )
    if settings.axis and settings.server == "url":
        refuse(
            "--ddtree-axis needs servers that are started here: the arguments of a running one cannot be changed"
        )
    if settings.resume is not None and settings.build:
        refuse(
            "--ddtree-resume goes on with one build's run; a comparison of builds (--ddtree-build) starts anew: leave one of them out. "
            "`pytest-ddtree compare RUN` compares what an interrupted one measured"
        )
    if settings.build and settings.server in ("url", "systemd"):
        refuse(
            f"--ddtree-build compares servers that are started here; of --ddtree-server {settings.server} each build would be the same one"
        )
    if settings.build and settings.axis:
        refuse(
            "--ddtree-axis contradicts --ddtree-build: builds are compared under the same arguments; give them with args:"
        )
    if settings.build and (settings.update_expected or settings.update_new):
        refuse(
            "--ddtree-build compares builds with each other and records no expected figures: update them in a session of one build"
        )
    if settings.records_from_build and settings.records is None:
        refuse("--ddtree-records-from-build needs --ddtree-records DIR, where the records of that build are")
    if settings.records_from_build and settings.build:
        refuse(
            "--ddtree-records-from-build contradicts --ddtree-build, which records each build's own answers"
        )
    if settings.baseline_url and settings.server != "url":
        refuse("--ddtree-baseline-url goes with --ddtree-url: the other kinds start their own baseline")
    if settings.server == "systemd" and not settings.unit:
        refuse("--ddtree-server systemd needs --ddtree-unit NAME")
    if settings.coding_samples > 1 and settings.coding_temperature == 0:
        refuse(
            f"--ddtree-coding-samples {settings.coding_samples} needs --ddtree-coding-temperature above 0: greedy answers are all the same"
        )
    if settings.ssh and settings.server != "systemd":
        refuse("--ddtree-ssh goes with --ddtree-server systemd and --ddtree-unit NAME")
    _check_places(settings, refuse)
    if settings.server == "sglang":
        for name in ("model", "draft_model"):
            if getattr(settings, name) is None:
                refuse(f"--ddtree-server sglang needs --ddtree-{name.replace('_', '-')} PATH")


def _check_places(settings: Settings, refuse: Callable[[str], None]) -> None:
    if settings.gpu_groups and settings.server not in ("reference", "sglang"):
        refuse(
            f"--ddtree-gpu-groups is for servers that are started here, not for --ddtree-server {settings.server}"
        )
    if settings.baseline_gpus is not None:
        _check_baseline_gpus(settings, refuse)
    if len(settings.gpu_groups) > 1 and settings.resume is not None:
        refuse("--ddtree-resume takes no run of several GPU groups up: give one group, or none")
    if not settings.node_prefix:
        return
    if settings.server != "sglang":
        refuse("--ddtree-node-prefix goes with --ddtree-server sglang")
    if len(settings.node_prefix) < 2:
        refuse(
            "--ddtree-node-prefix is given once a node, at least twice; one node has --ddtree-launch-prefix"
        )
    if settings.launch_prefix:
        refuse(
            "--ddtree-node-prefix and --ddtree-launch-prefix contradict each other: each node has its own prefix"
        )
    if not any(word.partition("=")[0] == "--dist-init-addr" for word in settings.server_args):
        refuse(
            "several nodes need the address where the first one waits for the others: add --dist-init-addr HOST:PORT to "
            "--ddtree-server-args"
        )


def _check_baseline_gpus(settings: Settings, refuse: Callable[[str], None]) -> None:
    if settings.server != "sglang":
        refuse(f"--ddtree-baseline-gpus goes with --ddtree-server sglang, not {settings.server}")
    if len(settings.gpu_groups) != 1:
        refuse(
            "--ddtree-baseline-gpus needs --ddtree-gpu-groups with one group, the GPUs of the speculative servers; of several groups "
            "each has a baseline of its own"
        )
    if shared := set(settings.baseline_gpus or ()) & set(
        settings.gpu_groups[0] if settings.gpu_groups else ()
    ):
        refuse(f"--ddtree-baseline-gpus and --ddtree-gpu-groups both name GPU {', '.join(sorted(shared))}")
    if settings.build:
        refuse("--ddtree-baseline-gpus contradicts --ddtree-build: the builds take turns on the same GPUs")
