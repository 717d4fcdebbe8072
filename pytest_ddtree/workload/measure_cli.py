"""`pytest-ddtree measure URL`: one cell against any server, from the shell."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.errors import ControlError
from pytest_ddtree.client.loop import LoopThread, loop_factory
from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.workload.cell import (
    CellNotMeasured,
    CellResult,
    CellSpec,
    MakeRequests,
    measure_cell,
    sampling_for,
)
from pytest_ddtree.workload.counted import fit_prompt, server_count
from pytest_ddtree.workload.datasets import load_questions
from pytest_ddtree.workload.prompts import PromptMaker
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.shape import infeasible, longest_output, request_count
from pytest_ddtree.workload.texts import WORKLOADS, Workload, shipped
from pytest_ddtree.workload.watching import Watch, running_limit

MEASURED = 0
NOT_MEASURED = 1
USAGE = 2
INTERRUPTED = 130


def parser() -> argparse.ArgumentParser:
    """The arguments of the command."""
    cli = argparse.ArgumentParser(
        prog="pytest-ddtree measure",
        description="Measure one cell: tok/s, latencies and accept length at one context, concurrency and output.",
        epilog="Exit code: 0 measured, 1 not measured (the reason is on standard error), 2 wrong arguments.",
    )
    cli.add_argument("url", help="of the server, such as http://127.0.0.1:30000")
    cli.add_argument("--api", choices=("generate", "completions", "chat"), default="generate")
    cli.add_argument("--context", type=_positive, default=1024, metavar="TOKENS", help="prompt length (1024)")
    cli.add_argument("--concurrency", type=_positive, default=1, metavar="N", help="requests under way (1)")
    cli.add_argument("--output", type=_positive, default=256, metavar="TOKENS", help="answer length (256)")
    cli.add_argument(
        "--workload", choices=WORKLOADS, default="code", help="what the prompts are about (code)"
    )
    cli.add_argument("--questions", type=Path, metavar="FILE", help="questions of your own: txt, json, jsonl")
    cli.add_argument("--temperature", type=float, default=0.0)
    cli.add_argument("--seed", type=int, default=0, help="of prompts, lengths and sampling (0)")
    cli.add_argument("--turnovers", type=_positive, default=4, help="requests per stream and round (4)")
    cli.add_argument(
        "--equal-lengths", action="store_true", help="no jitter of +-25 %% on the answer lengths"
    )
    cli.add_argument("--together", action="store_true", help="start all streams at once")
    cli.add_argument(
        "--cache",
        choices=("flushed", "warm", "untouched"),
        default="flushed",
        help="the prefix cache before each round: emptied, filled with its prompts, or left as it is (flushed)",
    )
    cli.add_argument(
        "--precision", type=float, default=0.02, help="half width of the interval of tok/s (0.02)"
    )
    cli.add_argument("--max-rounds", type=_positive, default=30)
    cli.add_argument("--max-seconds", type=float, metavar="S", help="start no round that would end later")
    cli.add_argument("--deadline", type=float, default=600.0, metavar="S", help="of one request (600)")
    cli.add_argument(
        "--tokenizer", type=Path, metavar="DIR", help="model directory (default: the server's own)"
    )
    cli.add_argument("--model", help="name of the model for the OpenAI endpoints (default: the first listed)")
    cli.add_argument("--api-key", help="sent as a bearer token")
    cli.add_argument(
        "--reader", choices=("auto", "kernel", "loop"), default="auto", help="what stamps arrivals"
    )
    cli.add_argument("--json", type=Path, metavar="FILE", help="write everything measured here")
    return cli


def run(argv: Sequence[str]) -> int:
    """Measure one cell as asked on the command line; returns the exit code."""
    options = parser().parse_args(argv)
    try:
        workload = _workload(options)
        rule = SamplingRule(
            precision=options.precision,
            min_rounds=min(4, options.max_rounds),
            max_rounds=options.max_rounds,
            max_seconds=options.max_seconds,
        )
    except (ValueError, OSError) as error:
        print(f"pytest-ddtree measure: {error}", file=sys.stderr)
        return USAGE
    try:
        with LoopThread(loop_factory(options.concurrency)) as loop:
            result = loop.run(_measure(options, workload, rule))
    except (Infrastructure, ValueError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return NOT_MEASURED
    except KeyboardInterrupt:
        print("not measured: interrupted", file=sys.stderr)
        return INTERRUPTED
    if options.json is not None:
        options.json.write_text(json.dumps(result.to_json(), indent=1) + "\n", "utf-8")
    print(summary(result))
    return MEASURED


def summary(result: CellResult) -> str:
    """The figures of a cell for people."""
    spec, rounds = result.spec, result.rounds
    interval = result.decision.interval
    rate = f"{rounds[0].output_tok_s:.1f}"
    if interval is not None:
        rate = f"{interval.centre:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
    lines = [
        f"context {spec.context}, concurrency {spec.concurrency}, output {spec.output}, temperature {spec.temperature:g}",
        f"output tok/s       {rate}  ({result.decision})",
    ]
    decode = [one.decode_tok_s for one in rounds if one.decode_tok_s is not None]
    if decode:
        lines.append(f"decode-only tok/s  {sum(decode) / len(decode):.1f}")
    for title, name, unit, factor in (
        ("TTFT", "ttft", "ms", 1e3),
        ("time per token", "time_per_token", "ms", 1e3),
        ("latency", "latency", "s", 1.0),
        ("chunk gap", "chunk_gap", "ms", 1e3),
    ):
        parts = [part for one in rounds if (part := getattr(one, name)) is not None]
        if parts:
            middle = [
                sum(getattr(part, key) for part in parts) / len(parts) * factor
                for key in ("p50", "p90", "p99")
            ]
            lines.append(
                f"{title:<18} p50 {middle[0]:.2f}  p90 {middle[1]:.2f}  p99 {middle[2]:.2f} {unit}"
                f"  (means over rounds of n = {parts[0].n})"
            )
    steps = [one.verify_steps for one in rounds if one.verify_steps]
    if len(steps) == len(rounds):
        accept = sum(one.output_tokens for one in rounds) / sum(steps)
        lines.append(f"accept length      {accept:.3f}")
    cached = sum(one.cached_tokens or 0 for one in rounds)
    lines.append(f"cached tokens      {cached}")
    return "\n".join(lines)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _workload(options: argparse.Namespace) -> Workload:
    workload = shipped(options.workload)
    if options.questions is None:
        return workload
    return Workload(f"{workload.name}-own", workload.texts, load_questions(options.questions))


async def _measure(options: argparse.Namespace, workload: Workload, rule: SamplingRule) -> CellResult:
    spec = CellSpec(
        context=options.context,
        concurrency=options.concurrency,
        output=options.output,
        temperature=options.temperature,
        turnovers=options.turnovers,
        jitter=0.0 if options.equal_lengths else 0.25,
        stagger=not options.together,
        seed=options.seed,
        cache=options.cache,
    )
    async with AsyncClient(
        options.url,
        api_key=options.api_key,
        timeout_s=options.deadline,
        reader=options.reader,
        api=options.api,
        model=options.model,
    ) as client:
        info = await _info(client)
        reason = infeasible(
            concurrency=spec.concurrency,
            context=spec.context,
            output=longest_output(spec.output, spec.jitter),
            max_total_tokens=_integer(info.get("max_total_num_tokens")),
            max_request_tokens=_integer(info.get("context_length")),
            max_running=running_limit(info),
        )
        if reason is not None:
            raise CellNotMeasured(f"infeasible: {reason}")
        if spec.cache != "untouched" and not info:
            raise CellNotMeasured(
                "this server has no /flush_cache; say --cache untouched to measure it as it is"
            )
        maker = _maker(options, workload, info)
        extra = await _spec_details(client) if info and options.api != "generate" else {}
        if maker is not None:
            make = _from_ids(maker, spec, extra)
        else:
            make = await _from_texts(client, workload, spec, rule, extra)
        await client.prepare(spec.concurrency)
        return await measure_cell(
            client,
            make,
            spec,
            rule,
            kernel_stamps=lambda: client.transport.reader == "kernel",
            deadline_s=options.deadline,
            progress=lambda text: print(text, file=sys.stderr, flush=True),
            watch=Watch(client),
        )


async def _info(client: AsyncClient) -> dict[str, Any]:
    """What an SGLang server says about itself; empty for another server that answers at all."""
    try:
        return await client.server_info()
    except ControlError as error:
        if error.status is None:
            raise
        return {}


async def _spec_details(client: AsyncClient) -> Mapping[str, Any]:
    """What asks SGLang for the verify steps of an OpenAI answer; nothing where the server refuses to be asked."""
    wanted = {"return_spec_tokens_details": True}
    request = Request(
        sampling=Sampling(max_new_tokens=1, extra=wanted), text="a", tag="asking for verify steps"
    )
    return wanted if (await client.generate(request)).outcome != "rejected" else {}


def _maker(options: argparse.Namespace, workload: Workload, info: dict[str, Any]) -> PromptMaker | None:
    """Prompts by token ids, or None where the endpoint takes text and counts itself."""
    if options.api == "chat":
        return None
    model = options.tokenizer or info.get("tokenizer_path") or info.get("model_path")
    if model is None and options.api == "completions":
        return None
    if model is None:
        raise CellNotMeasured("the server does not name its model; say --tokenizer DIR")
    return PromptMaker(Path(model), workload=workload, seed=options.seed)


def _from_ids(maker: PromptMaker, spec: CellSpec, extra: Mapping[str, Any]) -> MakeRequests:
    def make(first: int, lengths: Sequence[int]) -> list[Request]:
        prompts = maker.make_many(spec.context, len(lengths), first=first)
        return [
            Request(
                sampling=sampling_for(spec, length, seed=first + number, extra=extra),
                input_ids=prompt.ids,
                tag=prompt.tag,
            )
            for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
        ]

    return make


async def _from_texts(
    client: AsyncClient, workload: Workload, spec: CellSpec, rule: SamplingRule, extra: Mapping[str, Any]
) -> MakeRequests:
    """Prompts as text, fitted with the server's own count: enough for the warm-up and the fewest rounds.

    Later rounds send them again, so a prefix cache that is not flushed would serve them.
    """
    wanted = spec.concurrency + rule.min_rounds * request_count(spec.concurrency, spec.turnovers)
    gate = asyncio.Semaphore(min(spec.concurrency, 16))
    count = server_count(client)

    async def fitted(index: int) -> tuple[str, str]:
        async with gate:
            prompt = await fit_prompt(count, workload, spec.context, index, seed=spec.seed)
        return prompt.text, prompt.tag

    texts = await asyncio.gather(*(fitted(index) for index in range(wanted)))

    def make(first: int, lengths: Sequence[int]) -> list[Request]:
        chosen = [texts[(first + number) % wanted] for number in range(len(lengths))]
        return [
            Request(sampling=sampling_for(spec, length, seed=first + number, extra=extra), text=text, tag=tag)
            for number, ((text, tag), length) in enumerate(zip(chosen, lengths, strict=True))
        ]

    return make


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) else None
