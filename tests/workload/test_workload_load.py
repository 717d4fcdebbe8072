"""Loads against a real socket server: order, concurrency, deadlines, whole cells, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from scripted_server import (
    HEAD,
    Asked,
    Handler,
    Script,
    ScriptedServer,
    as_json,
    generate_events,
    plain,
    sse,
    stream,
)

from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.client.sync import Client
from pytest_ddtree.workload import measure_cli
from pytest_ddtree.workload.cell import CellNotMeasured, CellSpec, measure_cell
from pytest_ddtree.workload.counted import CannotCount, fit_prompt, server_count
from pytest_ddtree.workload.datasets import load_questions
from pytest_ddtree.workload.load import closed_loop, stagger_starts, warm_up
from pytest_ddtree.workload.measure import measure
from pytest_ddtree.workload.natural import NoLongAnswers, natural_prompts
from pytest_ddtree.workload.prompts import Prompt
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.selfcheck import ClientLimits
from pytest_ddtree.workload.texts import shipped

Open = Callable[[Handler], tuple[ScriptedServer, Client]]


@pytest.fixture
def serve() -> Iterator[Open]:
    with ExitStack() as stack:

        def make(handler: Handler, **options: Any) -> tuple[ScriptedServer, Client]:
            server = stack.enter_context(ScriptedServer(handler))
            return server, stack.enter_context(Client(server.url, **options))

        yield make


def answer(asked: Asked, gap_s: float = 0.0) -> Script:
    """As many tokens as asked for, two a chunk."""
    if asked.path != "/generate":
        return plain(200, b"{}")
    tokens = asked.json["sampling_params"]["max_new_tokens"]
    ids = list(range(100, 100 + tokens))
    pieces = [ids[start : start + 2] for start in range(0, tokens, 2)]
    finish = {"type": "length", "length": tokens}
    return stream(generate_events(pieces, finish=finish, meta={"spec_verify_ct": len(pieces)}), gap_s=gap_s)


def requests(count: int, tokens: int = 8) -> list[Request]:
    return [
        Request(sampling=Sampling(max_new_tokens=tokens), input_ids=(9, index), tag=str(index))
        for index in range(count)
    ]


def test_records_come_in_the_order_of_the_requests(serve: Any) -> None:
    server, client = serve(lambda asked: answer(asked, 0.002))
    load = client.loop.run(closed_loop(client.asynchronous, requests(20), concurrency=4))
    assert [record.request.tag for record in load.records] == [str(index) for index in range(20)]
    assert all(record.ok for record in load.records)
    assert server.connections == 4
    assert load.client is not None
    assert load.client.samples > 0


def test_exactly_as_many_are_under_way_as_asked_for(serve: Any) -> None:
    _, client = serve(lambda asked: answer(asked, 0.01))
    load = client.loop.run(closed_loop(client.asynchronous, requests(12), concurrency=3))
    edges = sorted(
        edge for record in load.records for edge in ((record.sent_ns, 1), (record.chunks[-1].at_ns, -1))
    )
    under_way = most = 0
    for _, change in edges:
        under_way += change
        most = max(most, under_way)
    assert most == 3


def test_starts_are_spread_over_one_service_time(serve: Any) -> None:
    _, client = serve(lambda asked: answer(asked, 0.1))
    starts = stagger_starts(4, 0.2)
    assert starts == pytest.approx((0.0, 0.05, 0.1, 0.15))
    load = client.loop.run(closed_loop(client.asynchronous, requests(4), concurrency=4, starts_s=starts))
    sent = [record.sent_ns for record in load.records]
    # A loop may begin late with the first one, never early with the others.
    assert all((later - sent[0]) / 1e9 > start - 0.04 for later, start in zip(sent, starts, strict=True))
    assert sent == sorted(sent)


def test_a_cells_deadline_ends_what_runs_and_sends_no_more(serve: Any) -> None:
    _, client = serve(lambda asked: Script([(0.0, HEAD)], "hang"))
    load = client.loop.run(closed_loop(client.asynchronous, requests(6), concurrency=2, cell_deadline_s=0.2))
    assert [record.outcome for record in load.records] == ["timeout", "timeout"]
    assert load.not_sent == 4
    assert measure(load).failures == {"timeout": 2, "not_sent": 4}


def test_a_warm_up_needs_distinct_prompts_and_enough_of_them(serve: Any) -> None:
    _, client = serve(answer)
    with pytest.raises(ValueError, match="needs as many"):
        client.loop.run(warm_up(client.asynchronous, requests(3), concurrency=4))
    with pytest.raises(ValueError, match="distinct"):
        client.loop.run(warm_up(client.asynchronous, requests(2) * 2, concurrency=4))
    assert len(client.loop.run(warm_up(client.asynchronous, requests(4), concurrency=4)).records) == 4


def make_requests(first: int, lengths: Any) -> list[Request]:
    return [
        Request(
            sampling=Sampling(max_new_tokens=length), input_ids=(1, first + number), tag=str(first + number)
        )
        for number, length in enumerate(lengths)
    ]


def test_a_cell_runs_its_rounds_with_other_prompts_and_a_flushed_cache(serve: Any) -> None:
    server, client = serve(lambda asked: answer(asked, 0.01))
    spec = CellSpec(context=2, concurrency=2, output=40)
    rule = SamplingRule(precision=0.9, min_rounds=2, max_rounds=3)
    # Whether the machine that runs the tests is busy is not what this is about.
    limits = ClientLimits(cpu_share=100.0, lag_of_latency=100.0)
    result = client.loop.run(
        measure_cell(
            client.asynchronous, make_requests, spec, rule, kernel_stamps=lambda: True, limits=limits
        )
    )
    prompts = [tuple(asked.json["input_ids"]) for asked in server.asked if asked.path == "/generate"]
    assert len(prompts) == len(set(prompts)) == 2 + 8 * len(result.rounds)
    assert [asked.path for asked in server.asked].count("/flush_cache") == len(result.rounds) >= 2
    assert result.rounds[0].accept_length == pytest.approx(2.0, rel=0.1)
    json.dumps(result.to_json())


def test_a_warm_cache_has_seen_every_prompt_of_the_round(serve: Any) -> None:
    server, client = serve(lambda asked: answer(asked, 0.01))
    spec = CellSpec(context=2, concurrency=2, output=40, turnovers=1, cache="warm")
    rule = SamplingRule(precision=0.9, min_rounds=2, max_rounds=2)
    limits = ClientLimits(cpu_share=100.0, lag_of_latency=100.0)
    client.loop.run(
        measure_cell(
            client.asynchronous, make_requests, spec, rule, kernel_stamps=lambda: True, limits=limits
        )
    )
    since_flush: list[tuple[int, int]] = []
    for asked in server.asked:
        if asked.path == "/flush_cache":
            since_flush = []
        else:
            since_flush.append((asked.json["input_ids"][1], asked.json["sampling_params"]["max_new_tokens"]))
    prompts = [prompt for prompt, _ in since_flush]
    assert sorted(prompts[:2]) == sorted(prompts[2:])
    assert [tokens for _, tokens in since_flush][:2] == [1, 1]


def test_a_failed_request_is_no_measurement(serve: Any) -> None:
    def handler(asked: Asked) -> Script:
        return plain(503, b'{"message": "full"}') if len(server.asked) > 5 else answer(asked)

    server, client = serve(handler)
    spec = CellSpec(context=2, concurrency=2, output=8, cache="untouched")
    with pytest.raises(CellNotMeasured, match="full"):
        client.loop.run(
            measure_cell(client.asynchronous, make_requests, spec, SamplingRule(), kernel_stamps=lambda: True)
        )


def test_prompts_are_chosen_by_their_natural_answer_on_the_baseline(serve: Any) -> None:
    def handler(asked: Asked) -> Script:
        index = asked.json["input_ids"][1]
        assert "ignore_eos" not in asked.json["sampling_params"]
        tokens = 40 if index % 3 else 10
        ids = [5, 6] * 20 if index % 3 == 2 else list(range(100, 100 + tokens))
        finish = {"type": "length" if tokens == 40 else "stop"}
        return stream(generate_events([ids[:tokens]], finish=finish))

    _, client = serve(handler)
    make = lambda index: Prompt((9, index), str(index))  # noqa: E731
    chosen = client.loop.run(natural_prompts(client.asynchronous, make, 3, output=40))
    assert [prompt.tag for prompt in chosen] == ["1", "4", "7"]
    with pytest.raises(NoLongAnswers, match="only 2 of 6"):
        client.loop.run(natural_prompts(client.asynchronous, make, 3, output=40, attempts=2))


def test_a_baseline_that_fails_chooses_nothing(serve: Any) -> None:
    _, client = serve(lambda asked: plain(500, b"dead"))
    make = lambda index: Prompt((9, index), str(index))  # noqa: E731
    with pytest.raises(NoLongAnswers, match="dead"):
        client.loop.run(natural_prompts(client.asynchronous, make, 1, output=40))


def counting(asked: Asked) -> Script:
    """A chat server whose tokens are words of at most five letters, with ten more for its template."""
    text = asked.json["messages"][0]["content"]
    tokens = 10 + sum(-(-len(word) // 5) for word in text.split())
    usage = {"prompt_tokens": tokens, "completion_tokens": 1}
    return as_json({"choices": [{"message": {"content": "x"}, "finish_reason": "length"}], "usage": usage})


@pytest.mark.parametrize("tokens", [60, 512, 2048])
def test_a_text_prompt_is_fitted_with_the_servers_own_count(serve: Any, tokens: int) -> None:
    server, client = serve(counting, api="chat", model="m")
    count = server_count(client.asynchronous)
    prompts = [client.loop.run(fit_prompt(count, shipped("code"), tokens, index)) for index in range(3)]
    assert {prompt.tokens for prompt in prompts} == {tokens}
    assert len({prompt.text for prompt in prompts}) == 3
    assert len(server.asked) <= 3 * 7


def test_a_text_prompt_that_cannot_be_fitted_is_told(serve: Any) -> None:
    _, client = serve(counting, api="chat", model="m")
    with pytest.raises(CannotCount, match="too short"):
        client.loop.run(fit_prompt(server_count(client.asynchronous), shipped("code"), 20, 0))
    _, silent = serve(lambda asked: as_json({"choices": []}), api="chat", model="m")
    with pytest.raises(CannotCount, match="does not count"):
        silent.loop.run(fit_prompt(server_count(silent.asynchronous), shipped("code"), 200, 0))


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.txt", "one?\n\ntwo?\n", ("one?", "two?")),
        ("a.jsonl", '{"prompt": "one?"}\n\n"two?"\n{"question": "one?"}\n', ("one?", "two?")),
        ("a.jsonl", '{"turns": ["first", "second"]}\n', ("first",)),
        (
            "a.jsonl",
            '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}',
            ("u",),
        ),
        (
            "a.json",
            '[{"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]}]',
            ("h",),
        ),
    ],
)
def test_users_files_of_every_shape_are_read(
    tmp_path: Path, name: str, content: str, found: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(content)
    assert load_questions(tmp_path / name) == found


def test_every_bad_entry_is_listed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "good"}\n{"answer": 1}\nnot json\n[]\n')
    with pytest.raises(ValueError, match=r"(?s)3 entries.*line 2.*line 3.*line 4"):
        load_questions(tmp_path / "a.jsonl")
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ValueError, match="not a list"):
        load_questions(tmp_path / "b.json")
    (tmp_path / "c.txt").write_text("")
    with pytest.raises(ValueError, match="no prompt"):
        load_questions(tmp_path / "c.txt")


def chat(asked: Asked) -> Script:
    """A chat server that counts, streams and knows no SGLang paths."""
    if asked.path == "/v1/models":
        return as_json({"data": [{"id": "m"}]})
    if asked.path != "/v1/chat/completions":
        return plain(404, b"{}")
    if not asked.json["stream"]:
        return counting(asked)
    tokens = asked.json["max_tokens"]
    events = [
        sse(
            {
                "choices": [
                    {"delta": {"content": "x "}, "finish_reason": "length" if made == tokens else None}
                ],
                "usage": {"prompt_tokens": 60, "completion_tokens": made},
            }
        )
        for made in range(1, tokens + 1)
    ]
    return stream(events, gap_s=0.01)


def test_the_command_measures_a_chat_server(
    serve: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, _ = serve(chat)
    out = tmp_path / "cell.json"
    words = [
        server.url,
        "--api",
        "chat",
        "--context",
        "60",
        "--concurrency",
        "2",
        "--output",
        "40",
        "--cache",
        "untouched",
    ]
    words += ["--max-rounds", "2", "--precision", "0.9", "--turnovers", "2", "--json", str(out)]
    code = measure_cli.run(words)
    said = capsys.readouterr()
    if "client-bound" in said.err:
        pytest.skip("this machine is too busy to measure on, and the command says so")
    assert code == measure_cli.MEASURED, said.err
    value = json.loads(out.read_text())
    assert value["spec"]["context"] == 60
    assert {one["prompt_tokens"] for one in value["rounds"]} == {4 * 60}
    assert "output tok/s" in said.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["http://127.0.0.1:9", "--cache", "untouched"], 1, "not measured", id="nobody-there"),
        pytest.param(["URL", "--api", "chat"], 1, "--cache untouched", id="cannot-flush"),
        pytest.param(["URL", "--cache", "untouched"], 1, "--tokenizer", id="no-tokenizer"),
        pytest.param(["URL", "--questions", "/nonexistent.txt"], 2, "nonexistent", id="no-file"),
        pytest.param(["URL", "--precision", "0"], 2, "precision", id="no-precision"),
    ],
)
def test_the_command_says_why_it_did_not_measure(
    serve: Any, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    server, _ = serve(chat)
    assert measure_cli.run([server.url if word == "URL" else word for word in words]) == code
    assert says in capsys.readouterr().err


def test_a_cell_that_does_not_fit_is_not_tried(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    server, _ = serve(lambda asked: as_json({"max_total_num_tokens": 1000, "model_path": "/none"}))
    assert measure_cli.run([server.url, "--concurrency", "8"]) == measure_cli.NOT_MEASURED
    assert "infeasible" in capsys.readouterr().err
    assert {asked.path for asked in server.asked} == {"/server_info"}


def test_wrong_words_are_a_usage_error() -> None:
    with pytest.raises(SystemExit) as caught:
        measure_cli.run(["http://x", "--concurrency", "0"])
    assert caught.value.code == measure_cli.USAGE


def test_a_load_can_be_cancelled_from_outside(serve: Any) -> None:
    _, client = serve(lambda asked: Script([(0.0, HEAD)], "hang"))
    with pytest.raises(TimeoutError):
        client.loop.run(closed_loop(client.asynchronous, requests(4), concurrency=2), timeout=0.2)
    assert client.generate(requests(1)[0], deadline_s=0.1).outcome == "timeout"
