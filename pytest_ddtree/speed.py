"""The cells of one session: each measured once, on prompts that every config answers in the same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_ddtree.grid import CellKey, Config
from pytest_ddtree.liveness import check_serving
from pytest_ddtree.matrix import sampling_of
from pytest_ddtree.measuring import measure_rounds, refuse_unnatural_rounds
from pytest_ddtree.options import Settings
from pytest_ddtree.results.model import CellFigures, Round, key_json
from pytest_ddtree.results.runs import prompts_digest
from pytest_ddtree.servers.handle import Server
from pytest_ddtree.servers.told import whole
from pytest_ddtree.workload.cell import CellNotMeasured, CellSpec, UnnaturalAnswers
from pytest_ddtree.workload.endings import UNCHOSEN, EndingLimits
from pytest_ddtree.workload.natural import natural_for
from pytest_ddtree.workload.rounds import SamplingRule, decide
from pytest_ddtree.workload.shape import infeasible, longest_output
from pytest_ddtree.workload.steps import steps_disagree
from pytest_ddtree.workload.watching import Watch, request_limit, running_limit

if TYPE_CHECKING:
    from pytest_ddtree.run import Run


FEWEST = 2
"""Rounds that have an interval."""


class Infeasible(Exception):
    """A cell that the server cannot hold: nothing is wrong, and nothing can be measured."""

    kind = "infeasible"


class OutOfTime(Infeasible):
    """The session's time budget is spent before the cell had two rounds; the rounds that it has are kept."""

    kind = "out of time"


def rule_of(settings: Settings, at_least: int = 0) -> SamplingRule:
    """When a cell has rounds enough; `at_least` asks for more than the options do."""
    return SamplingRule(
        precision=settings.precision,
        min_rounds=max(at_least, settings.min_rounds),
        max_rounds=max(settings.rounds, at_least),
    )


def enough(rounds: Sequence[Round], settings: Settings, at_least: int = 0) -> bool:
    """Whether these rounds are all that a cell needs."""
    return decide([one.tok_s for one in rounds], rule_of(settings, at_least)).stop


class Speed:
    """Measures cells."""

    def __init__(self, run: Run, *, on_measured: Callable[[Config, CellFigures], None]) -> None:
        self._run = run
        self._settings = run.settings
        self._on_measured = on_measured
        self._indices: dict[tuple[str, int], tuple[int, ...]] = {}
        self._written: dict[tuple[str, CellKey], tuple[Round, ...]] = {}
        """What this session stored of each cell: an attempt that broke off is gone on with, for the store keeps the first of two."""

    def use_prompts(self, chosen: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """Use the prompts that an earlier part of this run chose: (`CellKey.prompts`, context) -> their numbers."""
        self._indices.update({cell: tuple(numbers) for cell, numbers in chosen.items()})

    def measure(
        self, config: Config, key: CellKey, *, at_least: int = 0, natural: EndingLimits | None = None
    ) -> CellFigures:
        """The figures of one cell, measured once; with `at_least` more rounds are added to fewer.

        `natural` is how natural its answers must be, where the usual limits ask for too much.

        Raises:
            Infeasible: the server cannot hold it, or (OutOfTime) the time budget is spent.
            Infrastructure: it could not be measured.
        """
        run = self._run
        known = run.results.cells.get((config.id, key))
        if known is not None and len(known.rounds) >= at_least:
            return known
        before = self._before(config, key)
        if before and enough(before, self._settings, at_least):
            refuse_unnatural_rounds(before, natural)
            return self._keep(config, key, before)
        if run.budget.spent:
            if known is not None:
                return known
            raise OutOfTime(f"{key.id}: {run.budget}")
        run.judged_anew(config)
        server = run.get(config, best=not config.speculative)
        self._refuse_infeasible(server, key)
        chooses = not config.speculative and (key.prompts, key.context) not in self._indices
        try:
            rounds = self._rounds(server, config, key, before, at_least, UNCHOSEN if chooses else natural)
        except UnnaturalAnswers:
            if not chooses:
                raise
            self._choose_prompts(server, key)
            rounds = self._rounds(server, config, key, (), at_least, natural)
        except CellNotMeasured:
            # A dead server explains more than the requests that failed.
            check_serving(run, config)
            raise
        server.check_alive()
        if len(rounds) < FEWEST:
            raise OutOfTime(f"{key.id}: {run.budget} after {len(rounds)} round, which has no spread")
        return self._keep(config, key, rounds)

    def turn(self, config: Config, key: CellKey, count: int, *, certain: int, natural: EndingLimits) -> None:
        """Rounds of one cell up to `count`, and no more whatever their spread; `measure` takes them over.

        For servers that take turns round by round; `certain` rounds are to be there in the end.

        Raises:
            Infeasible: the server cannot hold it.
            Infrastructure: it could not be measured, or its server died while others had their turn.
        """
        before = self._before(config, key)
        if len(before) >= count:
            return
        # One that is not there any more is no start of this pass, and was judged by nobody: it is not replaced.
        server = self._run.handle(config) or self._run.get(config)
        server.check_alive()
        self._refuse_infeasible(server, key)
        rule = SamplingRule(min_rounds=count, max_rounds=count)
        try:
            self._load(server, config, key, before, rule, limits=natural, certain=certain)
        except CellNotMeasured:
            check_serving(self._run, config)
            raise
        server.check_alive()

    def again(self, config: Config, key: CellKey) -> tuple[Round, ...]:
        """The first rounds of a cell once more, to see drift: the same prompts, stored apart and no part of the cell's figures.

        Raises:
            Infrastructure: it could not be measured.
        """
        run = self._run
        known = run.results.cells[(config.id, key)]
        count = max(FEWEST, min(len(known.rounds), self._settings.min_rounds))
        rule = SamplingRule(min_rounds=count, max_rounds=count)
        server = run.get(config, None if run.is_up(config) else "drift", best=not config.speculative)
        return self._load(server, config, key, (), rule, again=1)

    def _keep(self, config: Config, key: CellKey, rounds: tuple[Round, ...]) -> CellFigures:
        stopped = decide([one.tok_s for one in rounds], rule_of(self._settings, len(rounds))).verdict
        if stopped == "more":
            # Nothing but the time budget stops a cell before its rule does.
            stopped = "max_seconds"
        self._check_steps(config, rounds)
        figures = CellFigures(config=config.id, key=key, rounds=rounds, stopped=stopped)
        # Rounds alone do not tell a reader which precision was asked for, and so not that it was missed.
        self._run.store("cell", config=config.id, **key_json(key), cache=key.cache, stopped=stopped)
        self._run.results.cells[(config.id, key)] = figures
        self._on_measured(config, figures)
        return figures

    def _check_steps(self, config: Config, rounds: Sequence[Round]) -> None:
        """Warn where the answers and the server's own counter tell different numbers of verify steps."""
        run = self._run
        for one in rounds:
            if steps_disagree(one.verify_steps, one.counted_steps):
                text = (
                    f"{config.id} {one.key.id}, round {one.number + 1}: the answers tell {one.verify_steps} verify steps, the server's "
                    f"counter {one.counted_steps}: the accept length is uncertain"
                )
                if text not in run.results.warnings:
                    run.results.warnings.append(text)
                    run.store("warning", text=text)

    def _before(self, config: Config, key: CellKey) -> tuple[Round, ...]:
        """The rounds that there are of a cell, whether or not it was ever complete. Raises Infeasible."""
        known = self._run.results.cells.get((config.id, key))
        written = self._written.get((config.id, key), ())
        if known is not None and len(known.rounds) >= len(written):
            return known.rounds
        return self._stored(config, key)

    def _stored(self, config: Config, key: CellKey) -> tuple[Round, ...]:
        """Rounds that an interrupted run, or an attempt that broke off, measured. Raises Infeasible."""
        written = self._written.get((config.id, key))
        if written is not None:
            return written
        recall = self._run.recall
        if recall is None:
            return ()
        reason = recall.infeasible(config, key)
        if reason is not None:
            raise Infeasible(reason)
        return recall.rounds(config, key)

    def _rounds(
        self,
        server: Server,
        config: Config,
        key: CellKey,
        before: tuple[Round, ...],
        at_least: int,
        limits: EndingLimits | None = None,
    ) -> tuple[Round, ...]:
        left = self._run.budget.left_s
        rule = rule_of(self._settings, at_least)
        if not math.isinf(left):
            rule = replace(rule, max_seconds=left)
        return self._load(server, config, key, before, rule, limits=limits)

    def _spec(self, key: CellKey) -> CellSpec:
        settings = self._settings
        return CellSpec(
            context=key.context,
            concurrency=key.concurrency,
            output=settings.output,
            temperature=key.temperature,
            turnovers=settings.turnovers,
            seed=settings.seed,
            cache=key.cache,
        )

    def _load(
        self,
        server: Server,
        config: Config,
        key: CellKey,
        before: tuple[Round, ...],
        rule: SamplingRule,
        *,
        again: int = 0,
        limits: EndingLimits | None = None,
        certain: int = 0,
    ) -> tuple[Round, ...]:
        run, settings = self._run, self._settings
        indices = self._indices.get((key.prompts, key.context))
        # Where nothing is cached there is nothing to empty, and the report says so.
        uncached = key.cache == "flushed" and server.info.get("disable_radix_cache") is True
        measuring = measure_rounds(
            run.async_client(server),
            run.maker(key.workload),
            key,
            self._spec(key),
            rule,
            config=config.id,
            eos=run.facts.eos,
            indices=indices,
            before=before,
            stamp=lambda one: replace(
                one,
                start_no=server.start_no,
                again=again,
                prompts="" if indices is None else prompts_digest(indices),
                cache="radix off" if uncached else one.cache,
            ),
            extra=sampling_of(key, run.facts.sampling),
            keep=lambda one: self._store(one, before),
            client_lag=settings.client_lag,
            deadline_s=settings.request_timeout,
            spent=run.ledger.add,
            watch=self._watch(server),
            natural_limits=limits,
            certain=certain,
        )
        return run.await_(measuring, None)

    def _store(self, one: Round, before: tuple[Round, ...]) -> None:
        self._run.store("round", round=one.as_json())
        if one.again == 0:
            name = (one.config, one.key)
            self._written[name] = (*self._written.get(name, before), one)

    def _watch(self, server: Server) -> Watch:
        settings = self._settings
        return Watch(
            self._run.async_client(server),
            log=server.log_path,
            refresh=server.refresh_log,
            # What was switched off on purpose is no fallback, and the embedded server has no graphs.
            graphs=settings.server != "reference" and server.info.get("disable_cuda_graph") is not True,
            local_gpus=settings.server in ("sglang", "systemd") and settings.ssh is None,
            gpus=self._run.servers.pool.settings.of(server.config).gpus,
        )

    def refusal(self, config: Config, key: CellKey) -> str | None:
        """Why the server of a config, which is up, cannot hold a cell; None where it can."""
        server = self._run.handle(config)
        return None if server is None else self._refusal(server, key)

    def _refusal(self, server: Server, key: CellKey) -> str | None:
        maker = self._run.maker(key.workload)
        reason: str | None
        if key.cache == "warm" and server.info.get("disable_radix_cache") is True:
            reason = "the server has no prefix cache (disable_radix_cache), so none can be warm"
        elif not maker.fits(key.context):
            reason = f"a prompt of {key.workload} has at least {maker.minimum} tokens"
        else:
            reason = infeasible(
                concurrency=key.concurrency,
                context=key.context,
                output=longest_output(self._settings.output),
                max_total_tokens=whole(server.info.get("max_total_num_tokens")),
                max_request_tokens=request_limit(server.info),
                max_running=running_limit(server.info),
            )
        return None if reason is None else f"{key.id}: {reason}"

    def _refuse_infeasible(self, server: Server, key: CellKey) -> None:
        text = self._refusal(server, key)
        if text is not None:
            self._run.store(
                "infeasible", config=server.config.id, **key_json(key), cache=key.cache, text=text
            )
            raise Infeasible(text)

    def _choose_prompts(self, server: Server, key: CellKey) -> None:
        """Choose prompts whose natural answer on the baseline is long enough, for every config."""
        run, settings = self._run, self._settings
        run.progress(
            f"baseline: choosing prompts of {key.context} tokens ({key.prompts}) with long natural answers"
        )
        choosing = natural_for(
            run.async_client(server),
            run.maker(key.workload),
            replace(self._spec(key), concurrency=max(settings.concurrency)),
            deadline_s=settings.request_timeout,
            extra=sampling_of(key, run.facts.sampling),
        )
        indices = run.await_(choosing, "warm-up")
        self._indices[(key.prompts, key.context)] = indices
        run.store("prompts", workload=key.prompts, context_tokens=key.context, indices=list(indices))
        # Readers drop the rounds with the prompts before.
        self._written = {
            (config, cell): rounds
            for (config, cell), rounds in self._written.items()
            if (cell.prompts, cell.context) != (key.prompts, key.context)
        }
