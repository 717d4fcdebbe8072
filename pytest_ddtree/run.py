"""One session: servers, clients, prompts and results, each made when first asked for and then remembered.

Knows nothing of pytest. What it needs of the baseline is in the `Plan`; the baseline is asked first, because where one GPU holds
one server it is gone when a config runs.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

from pytest_ddtree.budget import Budget
from pytest_ddtree.client.client import Api, AsyncClient
from pytest_ddtree.client.loop import LoopThread
from pytest_ddtree.client.sync import Client
from pytest_ddtree.coding_eval import CodingEval
from pytest_ddtree.contract import Contract
from pytest_ddtree.dialects.effective import Mismatch
from pytest_ddtree.errors import Infrastructure, NotKept, NotVerified
from pytest_ddtree.exactness.verdict import Verdict
from pytest_ddtree.explaining import Explainer
from pytest_ddtree.gating import Gating
from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.matrix import cells_of
from pytest_ddtree.model_files import ModelFacts, model_facts, no_tokenizer
from pytest_ddtree.needed_of_baseline import NeededOfBaseline
from pytest_ddtree.options import Settings, settings_json
from pytest_ddtree.plan import Place, Plan
from pytest_ddtree.report.findings import Report
from pytest_ddtree.rerun import Rerun
from pytest_ddtree.results.fingerprint import Fingerprint, session_fingerprint
from pytest_ddtree.results.gatekeeper import GatePolicy
from pytest_ddtree.results.model import CellFigures, Results
from pytest_ddtree.results.overhead import Activity, Ledger, over_sessions
from pytest_ddtree.results.resume import Resumed
from pytest_ddtree.results.runs import SESSION, pick_run, read_run
from pytest_ddtree.results.secrets import known_secrets
from pytest_ddtree.results.store import StoreCorrupt, refuse_in_use
from pytest_ddtree.resuming import DormantServer, Recall
from pytest_ddtree.sampling import Sampled
from pytest_ddtree.server_setup import run_name
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.lock import SharedLocks
from pytest_ddtree.serving import Servers
from pytest_ddtree.session_file import SessionFile
from pytest_ddtree.speed import Speed, enough
from pytest_ddtree.staging import Pilot
from pytest_ddtree.verifying import Verifier
from pytest_ddtree.windows import WindowProbe
from pytest_ddtree.workload.choice import Makers
from pytest_ddtree.workload.prompts import PromptMaker

T = TypeVar("T")


async def _coroutine(awaited: Awaitable[T]) -> T:
    return await awaited


class Run:
    """Everything that a session shares. Not thread-safe, apart from `alarm` and `close`."""

    def __init__(
        self,
        settings: Settings,
        configs: tuple[Config, ...],
        plan: Plan,
        policy: GatePolicy | None = None,
        *,
        budget: Budget | None = None,
        began: float | None = None,
        place: Place | None = None,
        makers: Makers | None = None,
        progress: Callable[[str], None],
        rerun: Rerun = Rerun(),  # noqa: B008 - frozen and without state
        on_verified: Callable[[Config, Verdict], None] = lambda config, verdict: None,
        on_measured: Callable[[Config, CellFigures], None] = lambda config, figures: None,
    ) -> None:
        self.settings = settings
        self.configs = configs
        self.plan = plan
        self.budget = budget or Budget()
        self.progress = progress
        self.results = Results(strict=settings.strict)
        self.ledger = Ledger(began=began)
        self.pilot = Pilot(configs, progress=progress)
        self.started = datetime.now(UTC)
        self.place = place
        self.run_dir = settings.results / (place.run if place is not None else run_name(self.started))
        if place is not None:
            self.run_dir /= place.folder
        self.facts: ModelFacts = model_facts(settings)
        self.fingerprints: dict[str, Fingerprint] = {}
        self.resumed: Resumed | None = None
        self.recall: Recall | None = None
        self.servers = Servers(self)
        self.verifier = Verifier(self, on_verified=on_verified)
        self.contract = Contract(self)
        self.explainer = Explainer(self, self.verifier.answers)
        self.rerun = rerun
        self.sampled = Sampled(self)
        self.speed = Speed(self, on_measured=on_measured)
        self.gating = Gating(self, policy)
        self.coding = CodingEval(self)
        self.windows = WindowProbe(self)
        self._loop = LoopThread()
        self.secrets = known_secrets(settings.api_key, os.environ)
        self.file = SessionFile(self)
        self._makers = makers
        self._concluded = False
        self._needed = NeededOfBaseline(self)

    @property
    def has_baseline(self) -> bool:
        """Whether there is a non-speculative server: a URL alone has none."""
        return self.settings.has_baseline

    @property
    def build_name(self) -> str | None:
        """What the user calls this build, where several are compared."""
        return None

    @property
    def shared_locks(self) -> SharedLocks | None:
        """The locks that this session holds together with others in this process, whose servers are up at the same time."""
        return None

    def engine_version(self) -> str:
        """The version of a build whose sources are not known, without a start where that can be."""
        return self.servers.version()

    def store(self, kind: str, **fields: Any) -> None:
        """Append one record to the session's results file. Raises NotKept."""
        self.file.append(kind, fields)

    def store_late(self, kind: str, **fields: Any) -> None:
        """Append a record that belongs to no test; where it cannot be written the end of the session says so."""
        # Another process may have taken the file meanwhile: then every test says so.
        with suppress(NotKept, StoreCorrupt):
            self.store(kind, **fields)

    def note_test(self, nodeid: str, outcome: str, text: str) -> None:
        """Keep what became of a test: a failure, and a success where an earlier session of this run failed."""
        before = {} if self.resumed is None else self.resumed.stored.results.failing
        if outcome != "passed" or nodeid in before or nodeid in self.results.failing:
            self.results.note_test(nodeid, outcome, text)
            self.store_late("test", nodeid=nodeid, outcome=outcome, text=text)

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes this session's figures comparable with another's; read on first use."""
        if SESSION not in self.fingerprints:
            date = self.started.isoformat()
            self.fingerprints[SESSION] = session_fingerprint(self.settings, self.facts, date=date)
        return self.fingerprints[SESSION]

    def resume(self, name: str) -> None:
        """Go on with an interrupted run: its rounds count, what is missing is measured.

        Raises:
            NoSuchRun: there is no such run, or several.
            StoreCorrupt: its file cannot be read, or another session writes it now.
            ResumeRefused: something that figures depend on is not what it was; every difference is named.
        """
        path = pick_run(self.settings.results, name)
        if not self.settings.plan:
            refuse_in_use(path)
        resumed = Resumed(read_run(path))
        resumed.check(SESSION, self.fingerprint, settings_json(self.settings))
        self.resumed = resumed
        self.run_dir = resumed.stored.path.parent
        self.recall = Recall(resumed, self.plan, self.settings, lambda rounds: enough(rounds, self.settings))
        self.results.starts += resumed.stored.results.starts
        self.speed.use_prompts(resumed.stored.prompts)
        self.progress(resumed.summary())

    def report(self) -> Report:
        """Everything that reports show."""
        return Report(self.results, self.started.isoformat(), self.run_dir.name, dict(self.fingerprints))

    def server(self, config: Config) -> Server:
        """The server of a config, ready. What is needed of the baseline is fetched before a speculative server takes its place.

        Of a resumed run a config that is complete gets a handle that starts its server only when something asks for more.

        Raises:
            Infrastructure: it did not start, or something of the baseline could not be had.
        """
        if self.recall is not None and self.recall.complete(config):
            self.recall.take(config, self.results)
            return DormantServer(config, self.settings.model or "", lambda: self._wake(config))
        return self._live(config)

    def _live(self, config: Config) -> Server:
        if self.plan.needs_baseline and self.has_baseline:
            self._needed.before(config)
        if not config.speculative:
            return self.get(config)
        self.pilot.admit(config)
        self.windows.before(config)
        try:
            server = self.get(config)
        except Infrastructure as error:
            self.pilot.failed(config, error)
            raise
        self.windows.while_up(config)
        if config in self.plan.sampled:
            self.sampled.prepare(config)
        return server

    def _wake(self, config: Config) -> Server:
        """Start the server of a config that was taken over: a new process, of which nothing is known yet."""
        if self.recall is not None:
            self.recall.drop(config)
        self.verifier.forget(config)
        return self._live(config)

    def judged_anew(self, config: Config) -> None:
        """Before more is measured on a config that was taken over from an interrupted run: its new process is judged first.

        Raises:
            NotVerified: it is corrupt now.
        """
        if self.recall is None or not self.recall.complete(config):
            return
        if not config.speculative:
            self.recall.drop(config)
            return
        self._wake(config)
        verdict = self.verify(config)
        if not verdict.passed:
            raise NotVerified(
                f"{config.id} is {verdict.kind} after the run was resumed: {'; '.join(verdict.reasons)}"
            )

    def mismatches(self, config: Config) -> list[Mismatch]:
        """Knobs of a config's server that are not what was asked; a complete config of a resumed run had none."""
        if self.recall is not None and self.recall.complete(config):
            return []
        return self.get(config).mismatches()

    def get(self, config: Config, reason: str | None = None, *, best: bool = False) -> Server:
        """The server of a config, ready; `reason` says why a start is needed that the order of configs does not explain.

        With `best` the baseline runs with its own best flags, which stands under every speedup; where these equal the flags that
        match the speculative servers it is the same server.
        """
        self.file.check()
        if reason is None and self.recall is not None:
            reason = self.recall.reason(config)
        return self.servers.get(config, reason, best=best)

    def warn(self, text: str) -> None:
        """Store a warning and show it in every report, once."""
        if text not in self.results.warnings:
            self.results.warnings.append(text)
            self.store_late("warning", text=text)

    def check(self) -> None:
        """Refuse options with which no server of this session can be had; starts none. Raises Infrastructure."""
        self.servers.check()

    def unsupported(self, configs: Iterable[Config]) -> dict[Config, str]:
        """The configs that the build cannot express, each with what it has instead; starts no server. Raises Infrastructure."""
        return self.servers.unsupported(configs)

    def flags(self) -> frozenset[str]:
        """The flags that the build's help lists; none where it was not asked. Starts no server. Raises Infrastructure."""
        return self.servers.flags()

    def left_running(self) -> list[str]:
        """What keeps the servers that are up from being as they were after their start; starts nothing. Raises Infrastructure."""
        return self.servers.left_running()

    def handle(self, config: Config) -> Server | None:
        """The server that a config had last, if any; starts nothing."""
        return self.servers.handle(config)

    def report_fault(self, config: Config, why: str) -> None:
        """The server of a config does not do its work: the next `get` starts it once more, a second fault ends the config."""
        self.servers.report_fault(config, why)

    def is_up(self, config: Config) -> bool:
        """Whether the server of a config runs now; starts nothing."""
        return self.servers.is_up(config)

    def async_client(self, server: Server, api: Api = "generate") -> AsyncClient:
        """The asynchronous client of one endpoint of a server, one per address, for the session's own loop."""
        return self.servers.client(server, api)

    def client(self, server: Server) -> Client:
        """A synchronous client of a server, on the session's own loop."""
        return Client(server.url, api_key=self.settings.api_key, loop=self._loop)

    def await_(self, awaited: Awaitable[T], activity: Activity | None = "verify") -> T:
        """The result of what is awaited in the session's own loop; Ctrl-C cancels it.

        `activity` is what the time counts as; None where the awaited says it itself.
        """

        with nullcontext() if activity is None else self.ledger.during(activity):
            return self._loop.run(_coroutine(awaited))

    def begin(self, awaited: Awaitable[T]) -> Future[T]:
        """Let something run in the session's own loop while the caller goes on; `wait` gives its result."""
        return self._loop.begin(_coroutine(awaited))

    def wait(self, coming: Future[T], activity: Activity = "verify") -> T:
        """The result of what `begin` began; Ctrl-C cancels it."""
        with self.ledger.during(activity):
            return self._loop.wait(coming)

    def maker(self, workload: str, thinking: bool | None = None) -> PromptMaker:
        """Makes prompts of one workload class for the target model; `thinking` in place of what the options say of it.

        Raises:
            NotVerified: the model's tokenizer is not on this host.
        """
        if self._makers is None:
            if self.facts.target is None:
                raise NotVerified(no_tokenizer(self.settings))
            self._makers = Makers(self.settings, self.facts.target)
        return self._makers.of(workload, thinking)

    def verify(self, config: Config) -> Verdict:
        """The verdict on a config, made once. Raises Infrastructure."""
        try:
            verdict = self.verifier.verify(config)
        except Infrastructure as error:
            self.pilot.failed(config, error)
            raise
        self.pilot.judged(config, verdict)
        return verdict

    def measure(self, config: Config, key: CellKey) -> CellFigures:
        """The figures of one cell, measured once. Raises Infrastructure or Infeasible."""
        return self.speed.measure(config, key)

    def alarm(self) -> None:
        """Begin to stop every server and return at once; for signal handlers."""
        self.servers.alarm()

    def conclude(self) -> None:
        """Write what was recorded as expected figures, and collect the last warnings for the report. May be called twice."""
        if self._concluded:
            return
        self._concluded = True
        if not self.results.empty and self.file.exists:
            account = self.ledger.account()
            before = self.resumed.stored if self.resumed is not None else None
            self.results.overhead = str(
                account
                if before is None
                else over_sessions([*before.accounts, account.as_json()], before.sessions + 1)
            )
            self.store_late("overhead", **account.as_json(), text=str(account))
        self.gating.close(cells_of(self.settings))

    def close(self) -> None:
        """Stop the servers, then the loop. May be called twice, also by a signal handler's way out."""
        self.conclude()
        self.coding.close()
        # A full disk, which is said already: the last starts stay unwritten.
        with suppress(NotKept):
            self.servers.close()
        self.file.close()
        self._loop.close()
