"""First contact with a real SGLang: start, load both checkpoints, answer, judge, measure, write everything down.

    python benchmarks/gpu/first_contact.py --out contact --model TARGET --draft DRAFT \\
        [--tree-src CHECKOUT/python] [--fault NAME=FOLDER ...] [--server-args "..."] \\
        [--engine-answers engine-answers.json]

All servers run side by side on one GPU, each with a small key-value pool, so that the whole thing takes about
two minutes with a tiny model. `--tree-src` is a build that has DDTree in the spelling of dialect D; `--fault`
names a scratch copy of that build with a fault in it. Nothing here asserts: the JSON says what was seen.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from arguments import build, checkpoint, faulty, file, leave, pair
from captures import capture, capture_log
from contact_prompts import contact_prompts, document_prompts
from launching import Started, wait_all

from pytest_ddtree.client.client import AsyncClient
from pytest_ddtree.client.errors import ScoreError
from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.errors import Infrastructure
from pytest_ddtree.exactness.baseline import measure_floor
from pytest_ddtree.exactness.floor import NoiseFloor
from pytest_ddtree.exactness.judged import JudgedAnswer, all_gaps
from pytest_ddtree.exactness.levels import collect, self_consistency, teacher_force
from pytest_ddtree.exactness.parallel import each
from pytest_ddtree.exactness.prompts import BaselineAnswers, Prompt
from pytest_ddtree.exactness.rule import Rule, judge
from pytest_ddtree.workload.load import closed_loop
from pytest_ddtree.workload.measure import measure

DEFAULT_ARGS = (
    "--attention-backend triton --sampling-backend pytorch --grammar-backend none --mem-fraction-static 0.3 "
    "--max-total-tokens 150000 --max-running-requests 64 --enable-metrics"
)


def servers(options: argparse.Namespace) -> list[Started]:
    """The baseline, the chain, and with a tree build its own baseline, its trees and the faulty copies."""
    common = [options.python, "-m", "sglang.launch_server", "--model-path", str(options.model)]
    common += shlex.split(options.server_args)
    draft = ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(options.draft)]

    def one(name: str, extra: Sequence[str], source: Path | None = None) -> Started:
        env = {"PYTHONUNBUFFERED": "1"}
        if source is not None:
            path = [str(source), os.environ.get("PYTHONPATH", "")]
            env["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
            env.update(dict(options.tree_env))
        return Started(name=name, argv=[*common, *extra], log=options.out / f"{name}.raw.log", env=env)

    def tree(width: int, *more: str) -> list[str]:
        return [
            *draft,
            "--speculative-dflash-enable-ddtree",
            "--speculative-num-draft-tokens",
            str(width),
            "--disable-overlap-schedule",
            *more,
        ]

    window = ("--speculative-draft-window-size", "128")
    found = [one("base", ()), one("chain", draft), one("chain-w128", [*draft, *window])]
    if options.tree_src is not None:
        source = options.tree_src
        found += [
            one("fork-base", ("--disable-overlap-schedule",), source),
            one("b7-k7-wnone", tree(8), source),
            one("b8-k8-w128", tree(9, *window), source),
            one("b16-k16-wnone", tree(17), source),
        ]
    for name, folder in options.fault:
        found.append(one(f"fault-{name}", tree(9), folder))
    return [server for server in found if not options.only or server.name in options.only]


def shares(answers: Sequence[JudgedAnswer]) -> dict[str, Any]:
    """Off tokens and largest gaps of judged answers."""
    gaps = all_gaps(answers)
    return {
        "tokens": int(gaps.size),
        "off": sum(answer.off for answer in answers),
        "largest_nats": [round(float(gap), 4) for gap in sorted(gaps, reverse=True)[:5]],
        "over_1_nat": int((gaps > 1).sum()),
    }


def accept(records: Mapping[str, Record]) -> dict[str, Any]:
    """Accept length over all answers, and of documents and problems apart."""
    out: dict[str, Any] = {}
    for part in ("", "problem-", "code-"):
        chosen = [record for tag, record in records.items() if tag.startswith(part) and record.verify_steps]
        if chosen:
            steps = sum(record.verify_steps or 0 for record in chosen)
            out[part.rstrip("-") or "all"] = round(
                sum(record.completion_tokens for record in chosen) / steps, 4
            )
    return out


def engine_records(prompts: Sequence[Prompt], answers: Mapping[str, Any], output: int) -> dict[str, Record]:
    """Answers of the embedded engine as records, cut to `output` tokens."""
    found = {}
    for prompt in prompts:
        if prompt.tag not in answers:
            continue
        request = Request(sampling=Sampling(max_new_tokens=output), input_ids=prompt.ids, tag=prompt.tag)
        ids = tuple(answers[prompt.tag]["ids"])[:output]
        found[prompt.tag] = Record(request=request, outcome="ok", sent_ns=0, end_ns=0, output_ids=ids)
    return found


async def speed(url: str, model: Path, concurrencies: Sequence[int], output: int) -> list[dict[str, Any]]:
    """tok/s and accept length of 4 x concurrency requests of 186 tokens, after as many to warm up."""
    cells = []
    async with AsyncClient(url) as client:
        for number, concurrency in enumerate(concurrencies):
            count = max(6, 3 * concurrency)
            made = document_prompts(model, {186: 2 * count}, seed=100 + number)
            asked = [
                Request(
                    sampling=Sampling(max_new_tokens=output, ignore_eos=True),
                    input_ids=prompt.ids,
                    tag=prompt.tag,
                )
                for prompt in made
            ]
            await closed_loop(client, asked[:count], concurrency=concurrency, deadline_s=60)
            cell = measure(await closed_loop(client, asked[count:], concurrency=concurrency, deadline_s=60))
            cells.append(
                {
                    "concurrency": concurrency,
                    "requests": cell.requests,
                    "ok": cell.ok,
                    "failures": dict(cell.failures),
                    "tok_s": round(cell.output_tok_s, 1),
                    "accept_length": cell.accept_length,
                    "ttft_p50_ms": None if cell.ttft is None else round(cell.ttft.p50 * 1e3, 2),
                    "chunks": cell.chunks,
                    "coalesced": cell.coalesced,
                    "client": None if cell.client is None else asdict(cell.client),
                }
            )
    return cells


async def judged(
    server: Started,
    judge_url: str,
    prompts: Sequence[Prompt],
    floor: NoiseFloor,
    baseline: BaselineAnswers,
    output: int,
) -> dict[str, Any]:
    """Answers of one server at concurrency 1 and 8 under the baseline's prefill."""
    found: dict[str, Any] = {}
    async with AsyncClient(server.url) as client, AsyncClient(judge_url) as judging:
        for concurrency in (1, 8):
            records = await collect(client, prompts, output=output, concurrency=concurrency)
            answers = await teacher_force(judging, prompts, records, concurrency=16, baseline=baseline)
            verdict = judge(answers, floor, Rule(), config=server.name, level="full")
            found[f"full@{concurrency}"] = {
                **shares(answers),
                "verdict": verdict.as_json(),
                "summary": verdict.summary(),
                "accept_length": accept(records),
                "off_by_prompt": {answer.tag: answer.off for answer in answers if answer.off},
                "steps_by_prompt": {
                    tag: [record.completion_tokens, record.verify_steps] for tag, record in records.items()
                },
            }
    return found


async def contact(ready: Mapping[str, Started], options: argparse.Namespace, note: Any) -> None:
    """Everything that needs servers; `note(key, value)` keeps what is known so far on disk."""
    prompts, engine = contact_prompts(options.model), {}
    if options.engine_answers is not None:
        engine = json.loads(options.engine_answers.read_text())
        prompts = [Prompt(tag, tuple(ids)) for tag, ids in engine.pop("prompts").items()]
    async with AsyncClient(ready["base"].url) as client:
        baseline, floor = await measure_floor(
            client, prompts, output=options.output, concurrencies=(1, 8, 32)
        )
        note("floor", floor.as_json())
        for name, answers in engine.items():
            if not isinstance(answers, dict):
                continue
            records = engine_records(prompts, answers, options.output)
            seen = await teacher_force(client, prompts, records, concurrency=16, baseline=baseline)
            verdict = judge(seen, floor, Rule(), config=f"engine {name}", level="full")
            steps = sum(answer["verify_steps"] or 0 for answer in answers.values())
            tokens = sum(len(answer["ids"]) for answer in answers.values())
            note(
                f"engine.{name}",
                {
                    **shares(seen),
                    "summary": verdict.summary(),
                    "verdict": verdict.as_json(),
                    "accept_length": round(tokens / steps, 4) if steps else None,
                },
            )
    others = [server for name, server in ready.items() if name != "base"]

    async def one(server: Started) -> None:
        try:
            seen = await judged(server, ready["base"].url, prompts, floor, baseline, options.output)
        except Infrastructure as error:
            seen = {"failed": str(error)}
        note(f"judged.{server.name}", seen)

    # Side by side: the answers do not depend on what the other servers do, and time on a GPU is dear.
    await each(one, others, 4)
    for name in ("chain", "b8-k8-w128", "fault-mask"):
        if name in ready:
            await level_self(ready[name], prompts, options.output, name, floor, note)
    for name, server in ready.items():
        if not name.startswith("fault-"):
            note(f"speed.{name}", await speed(server.url, options.model, (1, 8, 32), options.output))


async def level_self(
    server: Started, prompts: Sequence[Prompt], output: int, name: str, floor: NoiseFloor, note: Any
) -> None:
    """Level `self` of one speculative server on a few prompts."""
    few = list(prompts)[:12]
    try:
        async with AsyncClient(server.url) as client:
            records = await collect(client, few, output=output, concurrency=4)
            answers = await self_consistency(client, few, records)
        verdict = judge(answers, floor, replace(Rule(), min_tokens=1), config=name, level="self")
        note(f"self.{name}", {**shares(answers), "summary": verdict.summary()})
    except (Infrastructure, ScoreError) as error:
        note(f"self.{name}", {"failed": str(error)})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=checkpoint, required=True)
    parser.add_argument("--draft", type=checkpoint, required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--server-args", default=DEFAULT_ARGS)
    parser.add_argument("--tree-src", type=build, help="folder that holds the tree build's package `sglang`")
    parser.add_argument(
        "--tree-env", type=pair, action="append", default=[], help="NAME=VALUE for the tree build's servers"
    )
    parser.add_argument(
        "--fault",
        type=faulty,
        action="append",
        default=[],
        help="NAME=FOLDER of a faulty copy of the tree build",
    )
    parser.add_argument("--only", action="append", default=[], help="names of servers; default: all")
    parser.add_argument("--engine-answers", type=file)
    parser.add_argument("--output", type=int, default=96, help="tokens per answer")
    parser.add_argument("--start-timeout", type=float, default=240.0)
    parser.add_argument(
        "--name", type=pair, action="append", default=[], help="OLD=NEW: replaced in the captures"
    )
    return parser.parse_args()


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    began = time.monotonic()

    def note(key: str, value: Any) -> None:
        result[key] = value
        (options.out / "contact.json").write_text(json.dumps(result, indent=1))
        short = json.dumps(value)
        print(f"[{time.monotonic() - began:6.1f} s] {key}: {short[:600]}", flush=True)

    started = servers(options)
    names = {
        str(options.model): "/models/target",
        str(options.draft): "/models/draft",
        **dict(options.name),
    }
    for server in started:
        server.start()
    try:
        ready = {server.name: server for server in wait_all(started, options.start_timeout)}
        note("ready_s", {name: round(server.seconds or 0, 1) for name, server in ready.items()})
        for server in started:
            if server.name not in ready:
                print(f"--- {server.name} did not come up; its log ends:")
                print("\n".join(server.log.read_text(errors="replace").splitlines()[-40:]), flush=True)
        prompt = contact_prompts(options.model)[8]
        for name, server in ready.items():
            speculative = name not in ("base", "fork-base")
            where = options.out / "captures"
            seen = capture(server.url, server.port, name, prompt.ids, where, names, speculative=speculative)
            note(f"statuses.{name}", seen)
        if "base" in ready:
            asyncio.run(contact(ready, options, note))
    finally:
        stops = {server.name: round(server.stop(), 1) for server in started}
        note("stop_s", stops)
        (options.out / "captures").mkdir(exist_ok=True)
        for server in started:
            capture_log(server.log, server.name, server.port, options.out / "captures", names)
    if "base" not in ready:
        print("the plain server did not come up, so nothing was judged", file=sys.stderr)
    return 0 if "base" in ready else 1


if __name__ == "__main__":
    leave(main)
