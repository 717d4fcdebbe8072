"""Runs that were stored: finding them, and rebuilding their figures and verdicts from the records. Writes nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from pytest_ddtree.client.records import TokenScore
from pytest_ddtree.coding.summary import summary_from_json
from pytest_ddtree.exactness.judged import WorstToken
from pytest_ddtree.exactness.verdict import Verdict, VerdictKind
from pytest_ddtree.grid import CellKey
from pytest_ddtree.results.fingerprint import Fingerprint
from pytest_ddtree.results.gates import name_of
from pytest_ddtree.results.model import CellFigures, Results, Round, StartInfo, key_from_json
from pytest_ddtree.results.order import drifts
from pytest_ddtree.results.overhead import added, over_sessions
from pytest_ddtree.results.plausible import check_ab, check_gate, check_round, named
from pytest_ddtree.results.store import StoreCorrupt, Stored, parse

FILE = "results.jsonl"
SESSION = "session"
"""Scope of the fingerprint that holds for the whole run; every other scope is a config id."""


def scope_of(scope: str, build: str | None) -> str:
    """What a fingerprint is filed under: `session` or a config id, of a build in a comparison `NAME:session` or `NAME:CONFIG`."""
    return scope if build is None else f"{build}:{scope}"


class NoSuchRun(ValueError):
    """There is no stored run of that name; the text lists those that there are."""


@dataclass(slots=True)
class StoredRun:
    """What the file of one run holds. Rounds in the order in which they were measured, each once."""

    path: Path
    headers: list[Mapping[str, Any]] = field(default_factory=list)
    """What each session that wrote this run began with: the first one, and every one that resumed it."""
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    results: Results = field(default_factory=Results)
    mismatches: dict[str, tuple[str, ...]] = field(default_factory=dict)
    infeasible: dict[tuple[str, CellKey], str] = field(default_factory=dict)
    """Cells that the server of a config cannot hold, with the reason."""
    stopped: dict[tuple[str, CellKey], str] = field(default_factory=dict)
    """Why no more rounds of a cell were measured, as `CellFigures.stopped`."""
    clauses: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    """(config id, name) -> what came out of a clause of the contract."""
    judged_clauses: list[Verdict] = field(default_factory=list)
    """The verdicts that clauses of the contract gave, which are in `results.verdicts` too."""
    prompts: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    """(`CellKey.prompts`, context) -> numbers of the prompts that were chosen because the first ones had no natural answers."""
    builds: dict[str, Results] = field(default_factory=dict)
    """In a comparison of builds: the results of each."""
    judged: list[tuple[str, str, Verdict]] = field(default_factory=list)
    """In a comparison of builds: (build, whose non-speculative answers it was judged against, verdict)."""
    faults: list[tuple[str, str, str]] = field(default_factory=list)
    """In a comparison of builds: (build, config, what is wrong with its server whatever it answers)."""
    ab: Mapping[str, Any] = field(default_factory=dict)
    """In a comparison of builds: how they took turns and what is judged, as `AbDesign.as_json`; empty in other runs."""
    compared: set[str] = field(default_factory=set)
    """In a comparison of builds: the configs that came to an outcome."""
    accounts: list[Mapping[str, Any]] = field(default_factory=list)
    """Where the time of each session went that ended by itself (`Account.as_json`)."""
    torn: int = 0
    """Bytes of an unfinished last line, which were not read."""

    @property
    def id(self) -> str:
        """The name of the run's folder."""
        return self.path.parent.name

    @property
    def sessions(self) -> int:
        """How many sessions wrote this run."""
        return len(self.headers)

    @property
    def started(self) -> str:
        """Date of the run as it was written, empty where it was not."""
        return str(self.headers[0].get("started", "")) if self.headers else ""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options of the run as plain values: those of its first session."""
        return next(self.every_settings, {})

    @property
    def every_settings(self) -> Iterator[Mapping[str, Any]]:
        """The options of each session of the run."""
        for header in self.headers:
            value = header.get("settings", {})
            yield value if isinstance(value, Mapping) else {}

    @property
    def session(self) -> Fingerprint:
        """The run's own fingerprint; empty for a run of schema 1."""
        return self.fingerprints.get(SESSION, Fingerprint({}))


def find_runs(directory: Path) -> tuple[Path, ...]:
    """The result files under a results directory, oldest first; empty where there is none."""
    if not directory.is_dir():
        return ()
    return tuple(sorted(directory.glob(f"*/{FILE}"), key=lambda path: (path.parent.name, path)))


def pick_run(directory: Path, name: str) -> Path:
    """The result file that `name` means: `last`, `last-1`, a run's name or a unique beginning of it, or a path.

    Raises:
        NoSuchRun: nothing or more than one thing of that name.
    """
    runs = find_runs(directory)
    word, _, back = name.partition("-")
    if word == "last" and (not back or back.isdigit()):
        place = 1 + int(back or 0)
        if place > len(runs):
            raise NoSuchRun(f"{name}: there are {len(runs)} runs under {directory}")
        return runs[-place]
    path = Path(name)
    for candidate in (path, path / FILE):
        if candidate.is_file():
            return candidate
    found = [run for run in runs if run.parent.name.startswith(name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(run.parent.name for run in (found or runs)[-5:]) or "none"
    what = "more than one run begins so" if found else "no such run"
    raise NoSuchRun(f"{name}: {what}; under {directory}: {listed}")


def read_run(path: Path) -> StoredRun:
    """Everything in the file of a run, whatever the version of its records.

    Raises:
        StoreCorrupt: naming file and line; the file is left as it is.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreCorrupt(f"{path}: cannot be read: {error}") from None
    return rebuild(parse(data, str(path)), path)


def rebuild(stored: Stored, path: Path) -> StoredRun:
    """A run from its records. Kinds of records that this version does not know are passed over. Raises StoreCorrupt."""
    run = StoredRun(path=path, torn=stored.torn)
    seen: set[tuple[Any, ...]] = set()
    for number, record in enumerate(stored.records, start=1):
        try:
            _take(run, record, seen)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreCorrupt(
                f"{path}, line {number}: a record of kind {record['kind']!r} that cannot be read "
                f"({type(error).__name__}: {error}). The file was left as it is."
            ) from None
    if run.sessions > 1 and run.accounts:
        # The starts and rounds are those of all sessions, so the time has to be.
        run.results.overhead = str(over_sessions(run.accounts, run.sessions))
    cells = cells_of(one for one in run.rounds if one.build is None)
    run.results.cells.update(
        {name: replace(figures, stopped=run.stopped.get(name, "")) for name, figures in cells.items()}
    )
    run.results.drift = [str(one) for one in drifts(one for one in run.rounds if one.build is None)]
    for build in dict.fromkeys(one.build for one in run.rounds if one.build is not None):
        run.builds.setdefault(build, Results()).cells.update(
            cells_of(one for one in run.rounds if one.build == build)
        )
    return run


def cells_of(rounds: Iterable[Round]) -> dict[tuple[str, CellKey], CellFigures]:
    """The figures of each cell from its rounds, in the order in which they came; repeats that look for drift are left out."""
    grouped: dict[tuple[str, CellKey], list[Round]] = {}
    for one in rounds:
        if one.again == 0:
            grouped.setdefault((one.config, one.key), []).append(one)
    return {
        (config, key): CellFigures(
            config=config, key=key, rounds=tuple(sorted(members, key=lambda one: one.number))
        )
        for (config, key), members in grouped.items()
    }


def _take(run: StoredRun, record: Mapping[str, Any], seen: set[tuple[Any, ...]]) -> None:
    kind = record["kind"]
    build = record.get("build")
    results = run.results if build is None else run.builds.setdefault(str(build), Results())
    if kind == "run":
        run.headers.append(record)
        # The session that judges last says what fails.
        run.results.strict = bool([*run.every_settings][-1].get("strict"))
    elif kind == "fingerprint":
        scope = scope_of(str(record["scope"]), build)
        run.fingerprints.setdefault(scope, Fingerprint.from_json(record["fingerprint"]))
    elif kind == "start":
        if record.get("ok", True):
            reason = record["reason"]
            results.starts.append(StartInfo(named(record, "config"), reason, float(record["seconds"])))
    elif kind == "effective":
        results.effective[named(record, "config")] = dict(record["effective"])
    elif kind == "mismatches":
        run.mismatches[named(record, "config")] = tuple(map(str, record["mismatches"]))
    elif kind == "infeasible":
        run.infeasible[(named(record, "config"), key_from_json(record))] = str(record["text"])
    elif kind == "cell":
        run.stopped[(named(record, "config"), key_from_json(record))] = str(record["stopped"])
    elif kind == "clause":
        run.clauses[(named(record, "config"), str(record["clause"]))] = record
    elif kind == "prompts":
        _choose(run, record, seen)
    elif kind == "verdict":
        verdict = verdict_from_json(record["verdict"])
        results.verdicts.setdefault(verdict.config, []).append(verdict)
        if "clause" in record:
            run.judged_clauses.append(verdict)
        if build is not None:
            run.judged.append((str(build), str(record.get("against", build)), verdict))
    elif kind == "round":
        check_round(record["round"])
        one = Round.from_json(record["round"])
        name = (one.build, one.config, one.key, one.number, one.again)
        # The first measurement counts: nothing that was measured is ever replaced.
        if name not in seen:
            seen.add(name)
            run.rounds.append(one)
    elif kind == "coding":
        named(record["coding"], "config")
        summary = summary_from_json(record["coding"])
        results.coding[summary.config] = summary
    elif kind == "gate":
        check_gate(record["gate"])
        _take_gate(results, {**record["gate"], "text": str(record["gate"]["text"])})
    elif kind == "test":
        run.results.note_test(str(record["nodeid"]), str(record["outcome"]), str(record["text"]))
    elif kind == "fault":
        run.faults.append((named(record, "build"), named(record, "config"), str(record["text"])))
    elif kind == "compared":
        run.compared.add(named(record, "config"))
    elif kind == "ab":
        check_ab(record)
        run.ab = record
    elif kind == "overhead":
        added([record])
        run.accounts.append(record)
        results.overhead = str(record["text"])
    elif kind == "differences":
        compared = f"{record['config']} against the {record['baseline']} baseline"
        results.differences[compared] = list(map(str, record["differences"]))
    elif kind == "group":
        results.groups[named(record, "config")] = str(record["group"])
    elif kind == "warning" and record["text"] not in results.warnings:
        # A session that resumes a run says again what it sees again.
        results.warnings.append(str(record["text"]))


def _take_gate(results: Results, gate: Mapping[str, Any]) -> None:
    """A session that resumes a run judges its cells again, with the rounds that were added: the last word counts."""
    results.gates = [one for one in results.gates if name_of(one) != name_of(gate)]
    results.gates.append(gate)


def _choose(run: StoredRun, record: Mapping[str, Any], seen: set[tuple[Any, ...]]) -> None:
    """Other prompts were chosen: rounds with the ones before are no measurements of these cells.

    In a run of several groups of servers each chooses on its own baseline, and for its own configs.
    """
    workload, context = str(record["workload"]), int(record["context_tokens"])
    group = str(record.get("group", ""))
    if not group:
        run.prompts[(workload, context)] = tuple(map(int, record["indices"]))
    kept: list[Round] = []
    for one in run.rounds:
        of_cell = (one.key.prompts, one.key.context) == (workload, context)
        if of_cell and run.results.group(one.config) == group:
            seen.discard((one.build, one.config, one.key, one.number, one.again))
        else:
            kept.append(one)
    run.rounds = kept


def prompts_digest(indices: Iterable[int]) -> str:
    """What `Round.prompts` holds for prompts of these numbers."""
    return hashlib.sha256(",".join(map(str, indices)).encode()).hexdigest()[:8]


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """The inverse of `Verdict.as_json`. Raises KeyError, TypeError or ValueError for a value that is none."""
    floor = value["floor"]
    if value["kind"] not in get_args(VerdictKind):
        raise ValueError(f"kind is {value['kind']!r}, none of {', '.join(get_args(VerdictKind))}")
    return Verdict(
        kind=value["kind"],
        level=value["level"],
        config=named(value, "config"),
        prompts=int(value["prompts"]),
        identical=int(value["identical"]),
        tokens=int(value["tokens"]),
        off=int(value["off"]),
        largest=float(value["largest_nats"]),
        gap_limit=float(value["gap_limit_nats"]),
        floor_largest=float(floor["largest_nats"]),
        floor_share=float(floor["share"]),
        floor_tokens=int(floor["tokens"]),
        p_share=float(value["p_share"]),
        criteria=tuple(value["criteria"]),
        reasons=tuple(value["reasons"]),
        worst=tuple(_worst(token) for token in value["worst"]),
    )


def _worst(value: Mapping[str, Any]) -> WorstToken:
    top = tuple((int(token), float(logprob)) for token, logprob in value["top"])
    best = top[0][1] if top else 0.0
    score = TokenScore(
        position=int(value["position"]),
        token_id=int(value["token_id"]),
        logprob=best - float(value["gap_nats"]),
        top=top,
    )
    return WorstToken(tag=str(value["tag"]), position=int(value["position"]), score=score)
