"""Loads against a real socket server: order, concurrency, deadlines, whole cells."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from scripted_server import HEAD, Asked, Script, generate_events, plain, stream

from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.workload.cell import CellNotMeasured, CellSpec, measure_cell
from pytest_ddtree.workload.load import closed_loop, stagger_starts, warm_up
from pytest_ddtree.workload.measure import measure
from pytest_ddtree.workload.natural import NoLongAnswers, natural_numbers
from pytest_ddtree.workload.prompts import Prompt
from pytest_ddtree.workload.rounds import SamplingRule
from pytest_ddtree.workload.selfcheck import ClientLimits


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
    # Far longer than it takes to send the first three.
    _, client = serve(lambda asked: answer(asked, 0.05))
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
    began = time.perf_counter_ns()
    load = client.loop.run(closed_loop(client.asynchronous, requests(4), concurrency=4, starts_s=starts))
    sent = [record.sent_ns for record in load.records]
    # A loop may be late, never early.
    assert all((at - began) / 1e9 > start for at, start in zip(sent, starts, strict=True))
    assert sent == sorted(sent)


def test_a_cells_deadline_ends_what_runs_and_sends_no_more(serve: Any) -> None:
    _, client = serve(lambda asked: Script([(0.0, HEAD)], "hang"))
    load = client.loop.run(closed_loop(client.asynchronous, requests(6), concurrency=2, cell_deadline_s=0.2))
    assert [record.outcome for record in load.records] == ["timeout", "timeout"]
    assert load.not_sent == 4
    assert measure(load).failures == {"timeout": 2, "not_sent": 4}


def test_nothing_more_is_sent_to_a_server_that_hangs(serve: Any) -> None:
    server, client = serve(
        lambda asked: Script([(0.0, HEAD)], "hang") if len(server.asked) > 2 else answer(asked)
    )
    load = client.loop.run(closed_loop(client.asynchronous, requests(20), concurrency=2, deadline_s=1.0))
    assert measure(load).failures == {"timeout": 2, "not_sent": 16}
    assert len(server.asked) == 4


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
    limits = ClientLimits(cpu_share=100.0, lag_of_latency=100.0, coalesced_share=1.0)
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
    limits = ClientLimits(cpu_share=100.0, lag_of_latency=100.0, coalesced_share=1.0)
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
    chosen = client.loop.run(natural_numbers(client.asynchronous, make, 3, output=40))
    assert chosen == (1, 4, 7)
    with pytest.raises(NoLongAnswers, match="only 2 of 6"):
        client.loop.run(natural_numbers(client.asynchronous, make, 3, output=40, attempts=2))


def test_a_baseline_that_fails_chooses_nothing(serve: Any) -> None:
    _, client = serve(lambda asked: plain(500, b"dead"))
    make = lambda index: Prompt((9, index), str(index))  # noqa: E731
    with pytest.raises(NoLongAnswers, match="dead"):
        client.loop.run(natural_numbers(client.asynchronous, make, 1, output=40))


def test_a_load_can_be_cancelled_from_outside(serve: Any) -> None:
    _, client = serve(lambda asked: Script([(0.0, HEAD)], "hang"))
    with pytest.raises(TimeoutError):
        client.loop.run(closed_loop(client.asynchronous, requests(4), concurrency=2), timeout=0.2)
    assert client.generate(requests(1)[0], deadline_s=0.1).outcome == "timeout"
