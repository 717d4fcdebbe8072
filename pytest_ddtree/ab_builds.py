"""The builds of a comparison: a run of each, made when it is first asked for, and which of them have the machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from pytest_ddtree.build_run import BuildRun, Keep
from pytest_ddtree.errors import Infrastructure, NotKept
from pytest_ddtree.grid import Config
from pytest_ddtree.options import Settings
from pytest_ddtree.results.builds import BuildSpec
from pytest_ddtree.servers.errors import ServerError
from pytest_ddtree.servers.lock import SharedLocks
from pytest_ddtree.servers.source import state
from pytest_ddtree.worktrees import NoWorktree, Worktrees


def in_words_of(spec: BuildSpec, text: str) -> str:
    """What is said of an interpreter or a checkout, with the option that gave it: a build is one, too."""
    option = {"python": "--ddtree-python", "source": "--ddtree-sglang-src"}.get(spec.kind)
    if option is None:
        return text
    own = f"--ddtree-build={spec.name}="
    return text.replace(f"{option} {spec.where}", f"{own}{spec.where}").replace(option, f"{own}PATH")


class Builds:
    """Hands out the run of each build. `close` stops every server and removes what was made."""

    def __init__(
        self,
        settings: Settings,
        specs: Sequence[BuildSpec],
        configs: tuple[Config, ...],
        *,
        folder: Path,
        keep: Keep,
        progress: Callable[[str], None],
    ) -> None:
        self.names = tuple(spec.name for spec in specs)
        """The base first."""
        self._settings = settings
        self._specs = {spec.name: spec for spec in specs}
        self._configs = configs
        self._folder = folder
        self._keep = keep
        self._progress = progress
        self._locks = SharedLocks() if settings.ab_at_once else None
        self._runs: dict[str, BuildRun] = {}
        self._worktrees: Worktrees | None = None

    def run(self, name: str) -> BuildRun:
        """The run of a build; starts no server. Raises Infrastructure."""
        if name not in self._runs:
            spec = self._specs[name]
            self._runs[name] = self._run_of(spec, self._settings_of(spec))
        return self._runs[name]

    def _run_of(self, spec: BuildSpec, settings: Settings) -> BuildRun:
        return BuildRun(
            spec,
            settings,
            self._configs,
            folder=self._folder,
            keep=self._keep,
            progress=self._progress,
            locks=self._locks,
        )

    def check(self) -> None:
        """Refuse options with which no server of a build can be had; starts none, and makes no worktree. Raises ServerError."""
        for spec in self._specs.values():
            if spec.kind == "git":
                continue
            try:
                self.run(spec.name).check()
            except ServerError as error:
                what, hint = in_words_of(spec, error.what), in_words_of(spec, error.hint or "")
                if spec.arguments and self._taken_without_arguments(spec):
                    hint = f"mend --ddtree-build={shlex.quote(f'{spec.name}=args:{spec.where}')}"
                raise type(error)(f"build {spec.name}: {what}", why=error.why, hint=hint or None) from None

    def _taken_without_arguments(self, spec: BuildSpec) -> bool:
        """Whether what a build adds is what is refused, and not what all builds have."""
        run = self._run_of(spec, self._settings)
        try:
            run.check()
        except ServerError:
            return False
        finally:
            run.close()
        return True

    @contextmanager
    def named(self, name: str) -> Iterator[BuildRun]:
        """A build's run; what breaks names the build. Raises Infrastructure."""
        run = self.run(name)
        try:
            yield run
        except NotKept:
            raise
        except Infrastructure as error:
            raise Infrastructure(f"build {name}: {type(error).__name__}: {error}") from error

    @contextmanager
    def held(self, name: str) -> Iterator[BuildRun]:
        """A build's run while it has the machine: what breaks names the build, and its servers are gone afterwards."""
        with self.named(name) as run:
            try:
                yield run
            finally:
                run.release()

    @contextmanager
    def held_together(self, names: Sequence[str]) -> Iterator[None]:
        """Builds that have the machine at the same time: the servers of all are gone afterwards, whatever else breaks."""
        with ExitStack() as stack:
            for name in names:
                stack.callback(self._release, name)
            yield

    def alarm(self) -> None:
        """Begin to stop every server and return at once; for signal handlers."""
        for run in self._runs.values():
            run.alarm()

    def close(self) -> None:
        """Stop the servers, remove the worktrees. May be called twice."""
        with ExitStack() as stack:
            if self._worktrees is not None:
                stack.callback(self._worktrees.close)
            for run in self._runs.values():
                stack.callback(run.close)

    def _release(self, name: str) -> None:
        with self.named(name) as run:
            run.release()

    def _settings_of(self, spec: BuildSpec) -> Settings:
        settings = self._settings
        if spec.kind == "python":
            return replace(settings, python=Path(spec.where))
        if spec.kind == "args":
            return replace(settings, server_args=(*settings.server_args, *spec.arguments))
        path = Path(spec.where) if spec.kind == "source" else self._worktree(spec)
        return replace(settings, sglang_src=importable(path))

    def _worktree(self, spec: BuildSpec) -> Path:
        """A checkout of a revision beside the results; gone when the session is, however it ends."""
        assert self._settings.sglang_src is not None
        if spec.where == "HEAD" and state(self._settings.sglang_src).dirty:
            self._progress(
                f"build {spec.name}: git:HEAD has none of the uncommitted changes in {self._settings.sglang_src}; "
                f"{spec.name}={self._settings.sglang_src} would"
            )
        try:
            if self._worktrees is None:
                self._worktrees = Worktrees(self._settings.sglang_src, self._folder / "worktrees")
            return self._worktrees.add(spec.name, spec.where)
        except NoWorktree as error:
            raise Infrastructure(f"build {spec.name}: {error}") from None


def importable(checkout: Path) -> Path:
    """The folder of a checkout that goes on PYTHONPATH: SGLang keeps its package under `python/`."""
    return checkout / "python" if (checkout / "python" / "sglang").is_dir() else checkout
