"""One cell against any URL: what a server says about itself, prompts for it, and its rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pytest_ddtree.client.client import Api, AsyncClient
from pytest_ddtree.client.errors import ControlError
from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.client.transport import Reader
from pytest_ddtree.model_files import end_tokens
from pytest_ddtree.servers.told import whole
from pytest_ddtree.workload.asking import in_order, request_maker
from pytest_ddtree.workload.cell import (
    CellNotMeasured,
    CellResult,
    CellSpec,
    MakeRequests,
    UnnaturalAnswers,
    measure_cell,
    natural_endings,
    refuse_unnatural,
    to_come,
)
from pytest_ddtree.workload.counted import fit_prompts, server_count
from pytest_ddtree.workload.endings import UNCHOSEN, Endings
from pytest_ddtree.workload.load import Load
from pytest_ddtree.workload.measure import CellMeasurement
from pytest_ddtree.workload.natural import natural_for
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.shape import infeasible, longest_output, request_count
from pytest_ddtree.workload.steps import steps_disagree, wrong_steps
from pytest_ddtree.workload.texts import Workload
from pytest_ddtree.workload.watching import Watch, request_limit, running_limit

_FITTED_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is measured: a server, how it is asked, and how long is waited for it."""

    url: str
    api: Api = "generate"
    model: str | None = None
    """Name for the OpenAI endpoints; None: the first that the server lists."""
    api_key: str | None = None
    tokenizer: Path | None = None
    """Model directory; None: the one that the server names."""
    reader: Reader = "auto"
    deadline_s: float = 600.0
    round_deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlCell:
    """What was measured, how natural the answers of each round were, and the prompts if they were chosen for that."""

    result: CellResult
    endings: tuple[Endings, ...]
    indices: tuple[int, ...] | None
    eos: frozenset[int]
    """End-of-sequence tokens, empty where the model's files do not say or are not on this host."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        chosen = None if self.indices is None else list(self.indices)
        return self.result.to_json() | {"endings": [asdict(one) for one in self.endings], "chosen": chosen}


async def measure_url(
    target: Target,
    workload: Workload,
    spec: CellSpec,
    rule: SamplingRule,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> UrlCell:
    """Measure one cell. Where answers are not natural, prompts are chosen whose answers are, as far as their ids can be seen.

    Raises Infrastructure (CellNotMeasured, ControlError and others) or ValueError, with the reason.
    """
    async with AsyncClient(
        target.url,
        api_key=target.api_key,
        timeout_s=target.deadline_s,
        reader=target.reader,
        api=target.api,
        model=target.model,
    ) as client:
        info = await _info(client)
        _refuse_infeasible(spec, info)
        directory = _model_directory(target, info)
        maker = PromptMaker(directory, workload=workload, seed=spec.seed) if directory else None
        extra = await _spec_details(client) if info and target.api != "generate" else {}
        eos = end_tokens(directory)

        async def rounds(make: MakeRequests, indices: tuple[int, ...] | None) -> UrlCell:
            found: list[Endings] = []
            watch = Watch(client)
            chooses = maker is not None and indices is None and spec.cache != "untouched"
            limits = UNCHOSEN if chooses else None

            def on_round(number: int, load: Load, cell: CellMeasurement) -> None:
                wrong = wrong_steps(load.records)
                if wrong is not None:
                    raise CellNotMeasured(wrong)
                if steps_disagree(cell.verify_steps, watch.counted_steps):
                    progress(
                        f"warning: round {number + 1}: the answers tell {cell.verify_steps} verify steps, the server's counter "
                        f"{watch.counted_steps}: the accept length is uncertain"
                    )
                coming = to_come(spec, rule.min_rounds, number)
                found.append(natural_endings(load.records, eos, limits=limits, earlier=found, coming=coming))

            await client.prepare(spec.concurrency)
            result = await measure_cell(
                client,
                make,
                spec,
                rule,
                kernel_stamps=lambda: client.transport.reader == "kernel",
                deadline_s=target.deadline_s,
                round_deadline_s=target.round_deadline_s,
                on_round=on_round,
                progress=progress,
                watch=watch,
            )
            if limits is None:
                refuse_unnatural(found)
            return UrlCell(result=result, endings=tuple(found), indices=indices, eos=eos)

        if maker is None:
            return await rounds(await _from_texts(client, workload, spec, rule, extra, progress), None)
        try:
            return await rounds(request_maker(maker, spec, extra=extra), None)
        except UnnaturalAnswers as error:
            # Chosen prompts are sent again round after round, which a cache that nobody empties would serve.
            if spec.cache == "untouched":
                raise
            progress(f"{error}; choosing prompts with long natural answers")
            indices = await natural_for(client, maker, spec, deadline_s=target.deadline_s, extra=extra)
            return await rounds(request_maker(maker, spec, indices=indices, extra=extra), indices)


async def _info(client: AsyncClient) -> dict[str, Any]:
    """What an SGLang server says about itself; empty for another server that answers at all."""
    try:
        return await client.server_info()
    except ControlError as error:
        if error.status is None:
            raise
        return {}


def _refuse_infeasible(spec: CellSpec, info: Mapping[str, Any]) -> None:
    reason = infeasible(
        concurrency=spec.concurrency,
        context=spec.context,
        output=longest_output(spec.output, spec.jitter),
        max_total_tokens=whole(info.get("max_total_num_tokens")),
        max_request_tokens=request_limit(info),
        max_running=running_limit(info),
    )
    if reason is not None:
        raise CellNotMeasured(f"infeasible: {reason}")
    if spec.cache != "untouched" and not info:
        raise CellNotMeasured("this server has no /flush_cache; say --cache untouched to measure it as it is")


async def _spec_details(client: AsyncClient) -> Mapping[str, Any]:
    """What asks SGLang for the verify steps of an OpenAI answer; nothing where the server refuses to be asked."""
    wanted = {"return_spec_tokens_details": True}
    request = Request(
        sampling=Sampling(max_new_tokens=1, extra=wanted), text="a", tag="asking for verify steps"
    )
    return wanted if (await client.generate(request)).outcome != "rejected" else {}


def _model_directory(target: Target, info: Mapping[str, Any]) -> Path | None:
    """Where the tokenizer of prompts by token ids is; None where the endpoint takes text and counts itself."""
    if target.api == "chat":
        return None
    model = target.tokenizer or info.get("tokenizer_path") or info.get("model_path")
    if model is None and target.api == "completions":
        return None
    if model is None:
        raise CellNotMeasured("the server does not name its model; say --tokenizer DIR")
    return Path(model)


async def _from_texts(
    client: AsyncClient,
    workload: Workload,
    spec: CellSpec,
    rule: SamplingRule,
    extra: Mapping[str, Any],
    progress: Callable[[str], None],
) -> MakeRequests:
    """Prompts as text, fitted with the server's own count: enough for the warm-up and the fewest rounds.

    Later rounds send them again, so a prefix cache that is not flushed would serve them.
    """
    wanted = spec.concurrency + rule.min_rounds * request_count(spec.concurrency, spec.turnovers)
    count = server_count(client)
    at_once = min(spec.concurrency, _FITTED_AT_ONCE)
    texts, left_out = await fit_prompts(
        count, workload, spec.context, wanted, seed=spec.seed, at_once=at_once
    )
    if left_out:
        progress(f"prompts that others took the place of: {len(left_out)}, such as: {left_out[0]}")

    def ask(number: int, sampling: Sampling) -> Request:
        prompt = texts[number % wanted]
        return Request(sampling=sampling, text=prompt.text, tag=prompt.tag)

    return in_order(spec, ask, extra=extra)
