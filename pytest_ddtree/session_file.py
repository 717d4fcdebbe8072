"""What a session keeps on disk: one file to which every record is appended, and what becomes of a session that cannot write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_ddtree import __version__
from pytest_ddtree.errors import NotKept
from pytest_ddtree.options import settings_json
from pytest_ddtree.results.runs import FILE, SESSION
from pytest_ddtree.results.secrets import mask_values, scrub
from pytest_ddtree.results.store import Store

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


class SessionFile:
    """The results file of a session, which exists from its first record on; that says what was asked, and of what."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._store: Store | None = None
        self.lost: NotKept | None = None
        """Why nothing of this session can be kept any more."""
        self.unwritten: list[str] = []
        """Other files that could not be written, in words."""

    @property
    def exists(self) -> bool:
        """Whether this session wrote to it."""
        return self._store is not None

    def append(self, kind: str, fields: dict[str, Any]) -> None:
        """Append one record.

        Raises:
            NotKept: it cannot be written, or something before it could not.
        """
        self.check()
        try:
            self._append(kind, fields)
        except NotKept as error:
            self.lose(error)
            self.check()

    def lose(self, error: NotKept) -> None:
        """From now on nothing is measured, for it could not be kept; every report says why, once."""
        if self.lost is not None:
            return
        run = self._run
        # The run of one of several workers, and a comparison of builds, cannot be taken up again.
        again = run.place is None and run.build_name is None
        more = f", then --ddtree-resume {run.run_dir.name} goes on where this run stopped" if again else ""
        self.lost = NotKept(f"{error}{more}")
        run.results.warnings.append(str(self.lost))

    def check(self) -> None:
        """Raise NotKept where something of this session could not be written."""
        if self.lost is not None:
            raise NotKept(str(self.lost))

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._store is not None:
            self._store.close()

    def _append(self, kind: str, fields: dict[str, Any]) -> None:
        if self._store is None:
            self._store = self._opened()
        self._store.append(kind, **scrub(fields, self._run.secrets))

    def _opened(self) -> Store:
        """The file with what comes first in it; in a resumed run, after what is there already."""
        run = self._run
        store = self._store = Store(run.run_dir / FILE)
        store.append(
            "run",
            plugin=__version__,
            started=run.started.isoformat(),
            settings=mask_values(settings_json(run.settings)),
            resumed=run.resumed is not None,
        )
        if run.resumed is None or SESSION not in run.resumed.stored.fingerprints:
            store.append("fingerprint", scope=SESSION, fingerprint=run.fingerprint.as_json())
        return store
