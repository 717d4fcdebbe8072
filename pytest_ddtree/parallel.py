"""Several groups of servers at once, one a worker of pytest-xdist: who gets which group, and what comes of their results."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddtree.plan import Place
from pytest_ddtree.session import MERGED, PLACE, settings_of

if TYPE_CHECKING:
    from pytest_ddtree.options import Settings

INPUT = "ddtree_place"
"""Key of what the controller tells a worker."""
REFUSED = "ddtree_refused"
"""Key of what a worker tells the controller when it refuses to run."""


def places(settings: Settings) -> int:
    """How many workers can have a server of their own: GPU groups, or URLs; 0 where one server is managed."""
    return len(settings.url) if settings.server == "url" else len(settings.gpu_groups)


def refusal(settings: Settings, workers: int) -> str | None:
    """Why so many workers cannot run, and what to do; None where they can."""
    there = places(settings)
    if there == 0:
        return (
            f"-n {workers} starts several workers, and each would start a server of its own on the same GPU. Run without -n, or give each "
            f"worker GPUs of its own (--ddtree-gpu-groups 0,1/2,3 with -n 2), or the addresses of running servers with --ddtree-url, one "
            f"a worker."
        )
    what = "--ddtree-url" if settings.server == "url" else "--ddtree-gpu-groups"
    if there != workers:
        return (
            f"-n {workers} and {there} of {what} do not agree: each worker needs a place of its own, with -n {there}"
            if there > 1
            else f"-n {workers} needs {workers} of {what}, not one: two workers that measure on one server disturb each other. "
            "Run without -n, or add places"
        )
    if settings.baseline_url and len(settings.baseline_url) != workers:
        return f"-n {workers} needs {workers} of --ddtree-baseline-url, not {len(settings.baseline_url)}: each worker measures its own"
    for given, name in (
        (settings.update_expected or settings.update_new, "--ddtree-update-expected and --ddtree-update-new"),
        (bool(settings.build), "--ddtree-build"),
        (settings.resume is not None, "--ddtree-resume"),
    ):
        if given:
            return f"{name} with -n {workers}: run it without -n"
    return None


def take_place(config: pytest.Config) -> None:
    """In a worker: remember which place the controller gave it."""
    told = getattr(config, "workerinput", {}).get(INPUT)
    if told is not None:
        config.stash[PLACE] = Place(*told)


def tell_refusal(config: pytest.Config, text: str) -> None:
    """In a worker: let the controller know of a usage error, which would otherwise show as workers that are gone for no reason."""
    config.workeroutput[REFUSED] = text  # type: ignore[attr-defined]


class Controller:
    """Deals configs out to workers, gives each a group, and merges what they found."""

    def __init__(self, config: pytest.Config, name: str) -> None:
        self._config = config
        self._name = name
        self._free = list(range(places(settings_of(config))))
        self._held: dict[str, int] = {}
        self.lost: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """One config a worker at a time, whatever `--dist` says."""
        from pytest_ddtree.config_scheduling import ConfigScheduling

        return ConfigScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Give a worker a free group; one that replaces a dead worker gets that one's."""
        worker = node.workerinput["workerid"]
        group = self._held[worker] = self._free.pop(0)
        node.workerinput[INPUT] = (self._name, group, f"{group_name(group)}-{worker}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """A worker ended; `error` says how, unless it was done. Its supervisor stops its servers.

        Raises UsageError for what a worker refused: every one of them would.
        """
        refused = getattr(node, "workeroutput", {}).get(REFUSED)
        if refused is not None:
            raise pytest.UsageError(refused)
        worker = node.workerinput["workerid"]
        group = self._held.pop(worker, None)
        if group is None:
            return
        self._free.insert(0, group)
        if error is not None:
            self.lost.append(
                f"worker {worker} ({group_name(group)}) died ({error}); its servers are stopped by their supervisor, and what it had "
                "measured is kept"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """All workers are done: put their results together, before any report is written."""
        from pytest_ddtree.report.merged import merge
        from pytest_ddtree.results.store import StoreCorrupt

        folder = settings_of(self._config).results / self._name
        names = [group_name(group) for group in range(places(settings_of(self._config)))]
        try:
            found = merge(folder, names)
        except StoreCorrupt as error:
            self.lost.append(f"the results of the workers cannot be put together: {error}")
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            return
        if found is None:
            return
        found.results.warnings.extend(self.lost)
        self._config.stash[MERGED] = found
        if session.exitstatus == pytest.ExitCode.OK and (found.results.corrupt or not found.written):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def group_name(group: int) -> str:
    """What a group is called in folders and reports."""
    return f"group{group}"


def new_name() -> str:
    """The name of a run of several workers."""
    from pytest_ddtree.server_setup import run_name

    return run_name(datetime.now(UTC))
