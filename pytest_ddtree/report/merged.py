"""One run of several workers: the records of all, in one file, with the baseline of each group under a name of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_ddtree.errors import NotKept
from pytest_ddtree.report.findings import Report
from pytest_ddtree.results.model import Results, baseline_id
from pytest_ddtree.results.overhead import added
from pytest_ddtree.results.runs import FILE, SESSION, StoredRun, read_run, rebuild
from pytest_ddtree.results.store import Store, Stored, parse

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Merged:
    """What the workers of a run found, as a session of one process would have it."""

    stored: StoredRun
    written: bool = True
    """Whether the common file is there; where it could not be written, the workers' own are."""

    @property
    def results(self) -> Results:
        return self.stored.results

    @property
    def run_dir(self) -> Path:
        return self.stored.path.parent

    def report(self) -> Report:
        """Everything that reports show."""
        return Report(self.results, self.stored.started, self.stored.id, dict(self.stored.fingerprints))


def merge(folder: Path, groups: Sequence[str]) -> Merged | None:
    """Write `results.jsonl` of a run's folder from those of its workers, `groups[i]-*`; None where no worker wrote anything.

    The files of the workers stay. Raises StoreCorrupt, naming file and line.
    """
    parts: list[tuple[str, list[Record]]] = []
    for group in groups:
        records: list[Record] = []
        for path in sorted(folder.glob(f"{group}-*/{FILE}")):
            records += parse(path.read_bytes(), str(path)).records
        if records:
            parts.append((group, records))
    if not parts:
        return None
    path = folder / FILE
    try:
        with Store(path) as store:
            if not store.records:
                for record in merged(parts):
                    fields = {name: value for name, value in record.items() if name not in ("schema", "kind")}
                    store.append(record["kind"], **fields)
    except NotKept as error:
        # A part of it would be taken for the whole; the workers' own files hold everything.
        path.unlink(missing_ok=True)
        found = rebuild(Stored(tuple(merged(parts)), 0, 0), path)
        found.results.warnings.append(str(error))
        return Merged(found, written=False)
    return Merged(read_run(path))


def merged(parts: Iterable[tuple[str, Sequence[Record]]]) -> Iterator[Record]:
    """The records of all groups: one head and one fingerprint of the session, the first group's baseline under its usual name.

    Where the workers' time went is added up: the account of one of them would say nothing of the run.
    """
    accounts: list[Record] = []
    headed = False
    for place, (group, records) in enumerate(parts):
        own = baseline_id(group) if place else "baseline"
        grouped: set[str] = set()
        for record in records:
            if record["kind"] == "overhead":
                accounts.append(record)
                continue
            head = record["kind"] == "run"
            if (head and headed) or (place and record.get("scope") == SESSION):
                # A worker that replaced a dead one of its group began once more.
                continue
            headed = headed or head
            config = _config(record)
            if place and config not in (None, "baseline") and config not in grouped:
                grouped.add(str(config))
                yield {"kind": "group", "config": config, "group": group}
            renamed = _renamed(record, own)
            yield {**renamed, "group": group} if place and record["kind"] == "prompts" else renamed
    if accounts:
        account = added(accounts)
        yield {"kind": "overhead", **account.as_json(), "text": str(account)}


def _config(record: Record) -> Any:
    for part in (record, *(record[name] for name in ("round", "verdict", "coding") if name in record)):
        if isinstance(part, Mapping) and "config" in part:
            return part["config"]
    return None


def _renamed(record: Record, own: str) -> Record:
    if own == "baseline":
        return record
    changed = dict(record)
    for name in ("config", "scope"):
        if changed.get(name) == "baseline":
            changed[name] = own
    for name in ("round", "verdict", "coding"):
        part = changed.get(name)
        if isinstance(part, Mapping) and part.get("config") == "baseline":
            changed[name] = {**part, "config": own}
    return changed
