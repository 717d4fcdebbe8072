"""Every way in which a server can answer or fail is an outcome of the record, on every kind of reader."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from scripted_server import (
    HEAD,
    LAST_CHUNK,
    Asked,
    Script,
    ScriptedServer,
    as_json,
    chunk,
    generate_events,
    plain,
    sse,
    stream,
)

from pytest_ddtree.client.transport import transport

LENGTH = {"type": "length", "length": 4}
STOP = {"type": "stop", "matched": 8}
EVENTS = generate_events([[5], [6, 7], [8]], finish=LENGTH, meta={"spec_verify_ct": 2})


def test_a_stream_gives_ids_text_times_and_counts(connect: Any, ask: Any) -> None:
    _, client = connect(stream(EVENTS, gap_s=0.01))
    record = client.generate(ask())
    assert record.outcome == "ok"
    assert record.output_ids == (5, 6, 7, 8)
    assert record.text == "t5 t6 t7 t8 "
    assert [one.tokens for one in record.chunks] == [1, 3, 4]
    assert (record.prompt_tokens, record.cached_tokens, record.accept_length) == (4, 0, 2.0)
    assert record.exact_counts
    assert record.sent_ns < record.chunks[0].at_ns <= record.chunks[-1].at_ns <= record.end_ns


def test_arrivals_lie_between_the_sends_that_they_belong_to(connect: Any, ask: Any) -> None:
    # Long enough for a reader that is held up for a while.
    server, client = connect(stream(EVENTS, gap_s=0.2))
    record = client.generate(ask())
    sent = [at for at, _, data in server.sent if b"output_ids" in data]
    for index, one in enumerate(record.chunks):
        assert one.at_ns >= sent[index]
        assert index + 1 == len(sent) or one.at_ns < sent[index + 1]


def test_incremental_streams_are_put_together(connect: Any, ask: Any) -> None:
    events = generate_events([[5], [6, 7], [8]], finish=LENGTH, incremental=True)
    _, client = connect(stream(events))
    record = client.generate(ask())
    assert (record.outcome, record.output_ids, record.text) == ("ok", (5, 6, 7, 8), "t5 t6 t7 t8 ")


def test_what_an_answer_says_about_counts_is_not_taken_for_one(connect: Any, ask: Any) -> None:
    said = 'a "completion_tokens": 99 and an "error" too'
    events = [json.loads(event[6:]) | {"text": said} for event in EVENTS]
    _, client = connect(stream([sse(event) for event in events]))
    record = client.generate(ask())
    assert (record.outcome, record.text) == ("ok", said)
    assert [one.tokens for one in record.chunks] == [1, 3, 4]


def test_an_answer_that_is_not_streamed_is_one_chunk(connect: Any, ask: Any) -> None:
    meta = {"finish_reason": LENGTH, "prompt_tokens": 4, "completion_tokens": 4}
    _, client = connect(as_json({"text": "abcd", "output_ids": [5, 6, 7, 8], "meta_info": meta}))
    record = client.generate(ask(), stream=False)
    assert (record.outcome, record.output_ids, [one.tokens for one in record.chunks]) == (
        "ok",
        (5, 6, 7, 8),
        [4],
    )


def test_several_events_in_one_read_are_counted_as_coalesced(connect: Any, ask: Any) -> None:
    _, client = connect(Script([(0.0, HEAD + b"".join(map(chunk, EVENTS)) + LAST_CHUNK)]))
    record = client.generate(ask())
    assert record.ok
    assert record.coalesced == 1
    assert len({one.at_ns for one in record.chunks}) == 1


def test_one_event_in_several_reads_arrives_with_its_last_one(connect: Any, ask: Any) -> None:
    event = EVENTS[0]
    writes = [(0.0, HEAD), (0.0, chunk(event[:10])), (0.05, chunk(event[10:]))]
    writes += [(0.0, chunk(b"".join(EVENTS[1:]))), (0.0, LAST_CHUNK)]
    server, client = connect(Script(writes))
    record = client.generate(ask())
    assert record.ok
    assert record.chunks[0].at_ns >= server.sent[2][0]


def test_a_stream_without_done_is_good_once_it_has_finished(connect: Any, ask: Any) -> None:
    _, client = connect(stream(EVENTS, done=False))
    assert client.generate(ask()).ok


def test_a_connection_that_is_reset_after_the_finish_does_not_undo_the_answer(connect: Any, ask: Any) -> None:
    _, client = connect(stream(EVENTS, done=False, last=False, end="close"))
    assert client.generate(ask()).ok


def test_an_event_of_a_megabyte_is_read(connect: Any, ask: Any) -> None:
    big = json.loads(EVENTS[-1][6:])
    big["text"] = "x" * 1_000_000
    _, client = connect(stream([*EVENTS[:-1], sse(big)]))
    record = client.generate(ask())
    assert record.ok
    assert record.completion_tokens == 4


@pytest.mark.parametrize(
    ("script", "outcome", "says"),
    [
        pytest.param(
            stream(generate_events([[]], finish=STOP)), "empty", "without a single token", id="empty"
        ),
        pytest.param(stream(EVENTS[:2]), "cut", "without a finish reason after 3 tokens", id="no-finish"),
        pytest.param(stream([]), "cut", "after 0 tokens", id="nothing-at-all"),
        pytest.param(
            stream([*EVENTS[:1], EVENTS[1][:40]], done=False),
            "cut",
            "inside an event",
            id="cut-inside-an-event",
        ),
        pytest.param(stream(EVENTS[:2], last=False, end="close"), "reset", "after 3 tokens", id="closed"),
        pytest.param(stream(EVENTS[:2], last=False, end="reset"), "reset", "after 3 tokens", id="reset"),
        pytest.param(Script([], "close"), "reset", "closed", id="closed-before-the-head"),
        pytest.param(Script([(0.0, HEAD[:20])], "close"), "reset", "closed", id="closed-inside-the-head"),
        pytest.param(Script([(0.0, b"SSH-2.0-x\r\n")], "close"), "malformed", "no HTTP", id="no-http"),
        pytest.param(
            stream([EVENTS[0], b'data: {"text": tr\n\n']), "malformed", "in the event", id="truncated-json"
        ),
        pytest.param(stream([b'data: {"text": "a"}\n\n']), "malformed", "meta_info", id="no-meta"),
        pytest.param(stream([b"data: 7\n\n"]), "malformed", "in the event", id="no-object"),
        pytest.param(
            Script([(0.0, HEAD + chunk(EVENTS[0]) + b"zz\r\n")], "close"), "malformed", "HTTP", id="bad-chunk"
        ),
        pytest.param(
            stream([EVENTS[0], sse({"error": {"message": "out of memory"}})]),
            "error_event",
            "out of memory",
            id="error-event",
        ),
        pytest.param(
            stream(generate_events([[5]], finish={"type": "abort", "message": "too slow"})),
            "aborted",
            "too slow",
            id="abort",
        ),
        pytest.param(
            plain(503, b'{"error":{"message":"The request queue is full."}}'), "rejected", "queue", id="503"
        ),
        pytest.param(
            plain(500, b"Internal Server Error"), "rejected", "Internal Server Error", id="500-no-json"
        ),
        pytest.param(
            stream(generate_events([[5]], finish={"type": "length", "length": 1})),
            "short",
            "1 of 4",
            id="short",
        ),
        pytest.param(
            stream(generate_events([[5, 6, 7, 8, 9]], finish=LENGTH)), "malformed", "5 tokens", id="too-many"
        ),
    ],
)
def test_every_failure_has_its_outcome_and_says_what_happened(
    connect: Any, ask: Any, script: Script, outcome: str, says: str
) -> None:
    _, client = connect(script)
    record = client.generate(ask())
    assert record.outcome == outcome
    assert not record.ok
    assert says in (record.error or "")


def test_what_came_before_a_failure_is_kept(connect: Any, ask: Any) -> None:
    _, client = connect(stream(EVENTS[:2], last=False, end="reset"))
    record = client.generate(ask())
    assert (record.output_ids, record.http_status) == ((5, 6, 7), 200)


def test_a_stop_although_eos_was_to_be_ignored_is_short(connect: Any, ask: Any) -> None:
    _, client = connect(stream(generate_events([[5]], finish=STOP)))
    assert client.generate(ask()).ok
    assert client.generate(ask(ignore_eos=True)).outcome == "short"
    assert client.generate(ask(ignore_eos=True, stop=("t5",))).ok


def test_more_counted_than_sent_is_no_answer(connect: Any, ask: Any) -> None:
    value = json.loads(EVENTS[-1][6:])
    value["output_ids"] = [5, 6]
    _, client = connect(stream([sse(value)]))
    assert client.generate(ask()).outcome == "malformed"


@pytest.mark.parametrize(
    ("writes", "deadline_s"),
    # Time enough for a first chunk to come where one is sent.
    [([], 0.2), ([(0.0, HEAD)], 0.2), ([(0.0, HEAD), (0.0, chunk(EVENTS[0]))], 1.0)],
)
def test_a_server_that_never_ends_meets_the_deadline(
    connect: Any, ask: Any, writes: list[Any], deadline_s: float
) -> None:
    _, client = connect(Script(writes, "hang"))
    client.prepare(1)
    record = client.generate(ask(), deadline_s=deadline_s)
    assert record.outcome == "timeout"
    assert f"{deadline_s:g} s" in (record.error or "")
    assert len(record.chunks) == (1 if len(writes) == 2 else 0)


def test_nobody_listening_is_a_reset(connect: Any, ask: Any) -> None:
    server, client = connect(stream(EVENTS))
    server.stop_listening()
    record = client.generate(ask())
    assert record.outcome == "reset"
    assert "Connect" in (record.error or "")


def test_connections_are_reused_and_opened_beforehand(connect: Any, ask: Any) -> None:
    server, client = connect(stream(EVENTS))
    client.prepare(3)
    for _ in range(5):
        assert client.generate(ask()).ok
    assert server.connections == 3
    assert len({asked.connection for asked in server.asked}) == 1


def test_a_connection_that_the_server_closed_while_idle_is_replaced(connect: Any, ask: Any) -> None:
    server, client = connect(stream(EVENTS, end="close"))
    assert [client.generate(ask()).outcome for _ in range(5)] == ["ok"] * 5
    assert server.connections == 5


def test_a_request_that_the_server_dropped_at_work_is_not_sent_again(
    connect: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a kept connection too: only one that was closed while idle says nothing about the request."""
    monkeypatch.setattr(transport, "_STALE_NS", 50_000_000)

    def handler(asked: Asked) -> Script:
        return Script([(0.3, b"")], "close") if len(server.asked) == 2 else stream(EVENTS)

    server: ScriptedServer
    server, client = connect(handler)
    assert [client.generate(ask()).outcome for _ in range(3)] == ["ok", "reset", "ok"]
    assert len(server.asked) == 3


def test_a_timed_out_request_leaves_no_connection_behind(connect: Any, ask: Any) -> None:
    def handler(asked: Asked) -> Script:
        return Script([(0.0, HEAD)], "hang") if len(server.asked) == 1 else stream(EVENTS)

    server: ScriptedServer
    server, client = connect(handler)
    client.prepare(1)
    assert client.generate(ask(), deadline_s=0.5).outcome == "timeout"
    assert client.generate(ask()).ok
    assert server.connections == 2


def test_the_request_says_what_was_asked(connect: Any, ask: Any) -> None:
    server, client = connect(stream(EVENTS), api_key="secret")
    client.generate(ask(temperature=0.5, top_k=7, seed=3, stop=("x",), extra={"min_new_tokens": 2}))
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/generate")
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.json == {
        "input_ids": [1, 2, 3, 4],
        "stream": True,
        "sampling_params": {
            "max_new_tokens": 4,
            "temperature": 0.5,
            "top_k": 7,
            "sampling_seed": 3,
            "stop": ["x"],
            "min_new_tokens": 2,
        },
    }


def test_a_request_needs_a_prompt_of_one_kind(connect: Any, ask: Any) -> None:
    _, client = connect(stream(EVENTS))
    with pytest.raises(ValueError, match="exactly one"):
        client.generate(replace(ask(), text="both"))
