"""The window probe in a session: which servers answer its tasks, when, and what is made of the answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_ddtree.errors import Infrastructure, NotVerified
from pytest_ddtree.grid import Config
from pytest_ddtree.liveness import check_serving
from pytest_ddtree.servers import behaviour
from pytest_ddtree.servers.behaviour import Evidence, NoRoom, ProbeFailed, Reading, Tasks
from pytest_ddtree.servers.told import whole

if TYPE_CHECKING:
    from pytest_ddtree.run import Run
    from pytest_ddtree.servers.handle import Server

REASON = "window-probe"
"""Why a server with the full context is started that is not in the grid."""


SURE_WINDOW = 256
"""Up to this window the embedded drafter was seen to change on 46 % of far tasks or more; farther back it may not look at all."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe of one config says: what fails its test, why nothing could be seen, and the line for reports."""

    failure: str | None = None
    skipped: str | None = None
    text: str = ""


class WindowProbe:
    """Asks each config's tasks while its server is up anyway; what differs is judged when the test asks."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._readings: dict[tuple[Config, int], Reading | Exception] = {}
        self._tasks: dict[int, Tasks | NoRoom] = {}

    def before(self, config: Config) -> None:
        """Call before a config's server is first used: the server with the full context answers first, where one is needed.

        In the grid it comes before those with a window. Where it is not, it costs an extra start: always on the embedded server,
        where that is a second or two, and in profile full.
        """
        settings = self._run.settings
        if config.window is None or config not in self._run.plan.windows:
            return
        full = replace(config, window=None)
        # With several workers another one may have it.
        in_grid = full in self._run.plan.configs and self._run.place is None
        if not in_grid and (
            settings.server == "reference" or (settings.profile == "full" and settings.server != "url")
        ):
            for window in self._windows(full):
                self._read(full, window, REASON)

    def while_up(self, config: Config) -> None:
        """Call when a config's server is up: one with the full context answers the tasks of all windows that wait for it."""
        if config.window is None:
            for window in self._windows(config):
                self._read(config, window)

    def judge(self, config: Config) -> Probed:
        """What the tasks show.

        Raises:
            Infrastructure: a server died, or a task could not be answered.
        """
        assert config.window is not None
        windowed = self._known(config)
        full = self._readings.get((replace(config, window=None), config.window))
        if isinstance(windowed, NoRoom):
            return Probed(skipped=str(windowed))
        if isinstance(full, Exception) and not isinstance(full, NoRoom):
            raise NotVerified(f"{config.id}: no answers with the full context to compare with: {full}")
        found = behaviour.compare(windowed, full) if isinstance(full, Reading) else behaviour.alone(windowed)
        return self._conclude(config, found, compared=isinstance(full, Reading))

    def _conclude(self, config: Config, found: Evidence, *, compared: bool) -> Probed:
        run = self._run
        text = f"{config.id}: {found.summary()}"
        run.store("window", config=config.id, acts=found.acts, hides=found.hides, text=found.text)
        run.progress(text)
        if found.hides:
            return Probed(failure=text, text=text)
        if found.acts:
            return Probed(text=text)
        if not compared:
            text += ". With `none` in --ddtree-window as well the comparison is a sharper one"
        if run.settings.profile == "full" or (compared and self._sure(config)):
            return Probed(failure=text, text=text)
        run.warn(text)
        return Probed(text=text)

    def _sure(self, config: Config) -> bool:
        """Whether a window that acts could not have left every task as it was: in float32, where it is far from the whole text."""
        assert config.window is not None
        if config.window > SURE_WINDOW:
            return False
        reading = self._readings.get((config, config.window))
        return isinstance(reading, Reading) and reading.exact

    def _windows(self, full: Config) -> list[int]:
        """Windows of the configs that differ from this one in the window alone and are probed."""
        planned = self._run.plan.windows
        return sorted(one.window for one in planned if one.window and replace(one, window=None) == full)

    def _known(self, config: Config) -> Reading | NoRoom:
        assert config.window is not None
        self._read(config, config.window)
        known = self._readings[config, config.window]
        if isinstance(known, Reading | NoRoom):
            return known
        if isinstance(known, Infrastructure):
            raise known
        raise NotVerified(f"{config.id}: {known}")

    def _read(self, config: Config, window: int, reason: str | None = None) -> None:
        if (config, window) in self._readings:
            return
        run = self._run
        try:
            server = run.get(config, reason)
            tasks = self._tasks_for(server, window)
            run.progress(f"{config.id}: {len(tasks.near) + len(tasks.far)} copy tasks around window {window}")
            width = behaviour.WIDTH if run.settings.server == "reference" else 1
            reading = behaviour.read(run.async_client(server), tasks, exact=_exact(server), width=width)
            self._readings[config, window] = run.await_(reading)
        except ProbeFailed as error:
            try:
                check_serving(run, config)
            except Infrastructure as dead:
                self._readings[config, window] = dead
            else:
                self._readings[config, window] = error
        except (NoRoom, Infrastructure) as error:
            self._readings[config, window] = error

    def _tasks_for(self, server: Server, window: int) -> Tasks:
        if window not in self._tasks:
            limits = [whole(server.info.get(name)) for name in ("max_req_input_len", "context_length")]
            longest = min([limit for limit in limits if limit] or [max(self._run.settings.context)])
            maker = self._run.maker("code")
            text = maker.make(max(4096, 2 * longest), 0, purpose="window").ids
            try:
                count = behaviour.EXACT_TASKS if _exact(server) else behaviour.TASKS
                seed = self._run.settings.seed
                self._tasks[window] = behaviour.tasks(text, window, longest=longest, count=count, seed=seed)
            except NoRoom as error:
                self._tasks[window] = error
        made = self._tasks[window]
        if isinstance(made, NoRoom):
            raise made
        return made


def _exact(server: Server) -> bool:
    return server.info.get("dtype") == "float32"
