"""`pytest-ddtree measure URL`: one cell against any server, from the shell."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_ddtree.client.loop import LoopThread, loop_factory
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.option_values import argument, url
from pytest_ddtree.workload.cell import CellSpec
from pytest_ddtree.workload.datasets import load_questions
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.shape import JITTER
from pytest_ddtree.workload.summary import summary
from pytest_ddtree.workload.texts import WORKLOADS, Workload, shipped
from pytest_ddtree.workload.url_cell import Target, measure_url

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
    cli.add_argument("url", type=argument(url), help="of the server, such as http://127.0.0.1:30000")
    cli.add_argument("--api", choices=("generate", "completions", "chat"), default="generate")
    cli.add_argument("--context", type=_positive, default=1024, metavar="TOKENS", help="prompt length (1024)")
    cli.add_argument("--concurrency", type=_positive, default=1, metavar="N", help="requests under way (1)")
    cli.add_argument("--output", type=_positive, default=256, metavar="TOKENS", help="answer length (256)")
    cli.add_argument(
        "--workload", choices=WORKLOADS, default="code", help="what the prompts are about (code)"
    )
    cli.add_argument("--questions", type=Path, metavar="FILE", help="questions of your own: txt, json, jsonl")
    cli.add_argument("--temperature", type=_temperature, default=0.0)
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
    cli.add_argument("--max-seconds", type=_seconds, metavar="S", help="start no round that would end later")
    cli.add_argument("--deadline", type=_seconds, default=600.0, metavar="S", help="of one request (600)")
    cli.add_argument(
        "--round-deadline", type=_seconds, metavar="S", help="of all requests of a round together (none)"
    )
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
        if options.json is not None:
            # What cannot be written is better known before minutes of measuring than after them.
            options.json.open("a").close()
    except (ValueError, OSError) as error:
        print(f"pytest-ddtree measure: {error}", file=sys.stderr)
        return USAGE
    spec = CellSpec(
        context=options.context,
        concurrency=options.concurrency,
        output=options.output,
        temperature=options.temperature,
        turnovers=options.turnovers,
        jitter=0.0 if options.equal_lengths else JITTER,
        stagger=not options.together,
        seed=options.seed,
        cache=options.cache,
    )
    target = Target(
        url=options.url,
        api=options.api,
        model=options.model,
        api_key=options.api_key,
        tokenizer=options.tokenizer,
        reader=options.reader,
        deadline_s=options.deadline,
        round_deadline_s=options.round_deadline,
    )
    try:
        with LoopThread(loop_factory(options.concurrency)) as loop:
            cell = loop.run(measure_url(target, workload, spec, rule, progress=_progress))
    except (Infrastructure, ValueError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return NOT_MEASURED
    except KeyboardInterrupt:
        print("not measured: interrupted", file=sys.stderr)
        return INTERRUPTED
    print(summary(cell))
    if options.json is not None:
        options.json.write_text(json.dumps(cell.to_json(), indent=1) + "\n", "utf-8")
    return MEASURED


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no time: more than 0 seconds")
    return value


def _temperature(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no temperature: 0 or more")
    return value


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _workload(options: argparse.Namespace) -> Workload:
    workload = shipped(options.workload)
    if options.questions is None:
        return workload
    return Workload(f"{workload.name}-own", workload.texts, load_questions(options.questions))
