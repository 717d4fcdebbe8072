"""OpenAI's endpoints: what is asked, what is counted, what is approximate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Asked, Script, as_json, plain, sse, stream

from pytest_ddtree.client import generate, openai
from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.records import Request, Sampling

DATA = Path(__file__).parents[1] / "data"


def usage(tokens: int, prompt: int = 7) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def delta(finish: str | None = None, count: dict[str, Any] | None = None, **fields: Any) -> bytes:
    return sse({"choices": [{"index": 0, "delta": fields, "finish_reason": finish}], "usage": count})


CHAT = [
    delta(role="assistant", content="", count=usage(0)),
    delta(reasoning_content="think", count=usage(1)),
    delta(content="ab", count=usage(3)),
    delta(content="c", count=usage(4)),
    delta("length", count=usage(4)),
    sse({"choices": [], "usage": usage(4) | {"prompt_tokens_details": {"cached_tokens": 3}}}),
]


def test_a_chat_stream_is_counted_by_its_usage(dial: Any, ask: Any) -> None:
    server, client = dial(stream(CHAT), api="chat", model="m")
    record = client.generate(ask(text="hello", seed=3, top_k=5))
    assert (record.outcome, record.text, record.reasoning) == ("ok", "abc", "think")
    assert [one.tokens for one in record.chunks] == [1, 3, 4]
    assert record.exact_counts
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (7, 4, 3)
    assert (server.asked[0].path, server.asked[0].json) == (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 4,
            "temperature": 0.0,
            "seed": 3,
            "top_k": 5,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    )


@pytest.mark.parametrize("many", [False, True])
def test_verify_steps_come_with_sglangs_extension(dial: Any, ask: Any, many: bool) -> None:
    details: Any = {"spec_verify_ct": 2, "spec_accept_length": 2.0}
    extension = {"sglext": {"spec_tokens_details": [details] if many else details}}
    events = [*CHAT[:4], sse({"choices": [], "usage": usage(4)} | extension)]
    events.insert(4, delta("length", count=usage(4)))
    server, client = dial(stream(events), api="chat", model="m")
    record = client.generate(ask(text="hello", extra={"return_spec_tokens_details": True}))
    assert (record.outcome, record.accept_length) == ("ok", 2.0)
    assert server.asked[0].json["return_spec_tokens_details"] is True


def test_reasoning_is_found_under_either_name(dial: Any, ask: Any) -> None:
    events = [delta(reasoning="why", count=usage(2)), delta("stop", content="so", count=usage(3))]
    _, client = dial(stream(events), api="chat", model="m")
    record = client.generate(ask(text="hello"))
    assert (record.reasoning, record.text, record.outcome) == ("why", "so", "ok")


def test_without_counts_per_chunk_the_record_is_approximate(dial: Any, ask: Any) -> None:
    events = [
        delta(content="aa"),
        delta(content="bbbbbb"),
        delta("length"),
        sse({"choices": [], "usage": usage(4)}),
    ]
    _, client = dial(stream(events), api="chat", model="m")
    record = client.generate(ask(text="hello"))
    assert not record.exact_counts
    assert [one.tokens for one in record.chunks] == [1, 4]
    assert (record.outcome, record.completion_tokens) == ("ok", 4)


def test_without_any_count_the_record_is_approximate_too(dial: Any, ask: Any) -> None:
    _, client = dial(stream([delta(content="aa"), delta("stop", content="b")]), api="chat", model="m")
    record = client.generate(ask(text="hello"))
    assert (record.outcome, record.exact_counts) == ("ok", False)
    assert len(record.chunks) == 2


def test_completions_take_token_ids_and_may_send_some(dial: Any, ask: Any) -> None:
    choices = [{"index": 0, "text": "ab", "token_ids": [5, 6], "finish_reason": None}]
    last = [{"index": 0, "text": "c", "token_ids": [7, 8], "finish_reason": "length", "matched_stop": None}]
    server, client = dial(
        stream([sse({"choices": choices}), sse({"choices": last})]), api="completions", model="m"
    )
    record = client.generate(ask())
    assert (record.outcome, record.output_ids, record.text) == ("ok", (5, 6, 7, 8), "abc")
    assert [one.tokens for one in record.chunks] == [2, 4]
    assert record.exact_counts
    assert (server.asked[0].path, server.asked[0].json["prompt"]) == ("/v1/completions", [1, 2, 3, 4])


def test_an_answer_that_is_not_streamed_has_its_counts(dial: Any, ask: Any) -> None:
    message = {"role": "assistant", "content": "abc", "reasoning_content": "hm"}
    value = {
        "choices": [{"message": message, "finish_reason": "length", "matched_stop": None}],
        "usage": usage(4),
    }
    server, client = dial(as_json(value), api="chat", model="m")
    record = client.generate(ask(text="hello"), stream=False)
    assert (record.outcome, record.text, record.reasoning, record.completion_tokens) == ("ok", "abc", "hm", 4)
    assert "stream_options" not in server.asked[0].json


def test_the_model_is_asked_for_once(dial: Any, ask: Any) -> None:
    def handler(asked: Asked) -> Script:
        return as_json({"data": [{"id": "the-model"}]}) if asked.path == "/v1/models" else stream(CHAT)

    server, client = dial(handler, api="chat")
    assert client.generate(ask(text="hello")).ok
    assert client.generate(ask(text="hello")).ok
    assert [asked.path for asked in server.asked].count("/v1/models") == 1
    assert server.asked[-1].json["model"] == "the-model"


@pytest.mark.parametrize(
    ("script", "stream_it", "outcome"),
    [
        pytest.param(
            stream([CHAT[1], sse({"error": {"message": "dead"}})]), True, "error_event", id="error-event"
        ),
        pytest.param(stream(CHAT[:3]), True, "cut", id="no-finish"),
        pytest.param(stream([*CHAT[:2], b"data: {\n\n"]), True, "malformed", id="bad-json"),
        pytest.param(stream([delta("stop", count=usage(0))]), True, "empty", id="empty"),
        pytest.param(stream([delta("length", content="a", count=usage(1))]), True, "short", id="short"),
        pytest.param(stream([delta("abort", content="a", count=usage(1))]), True, "aborted", id="abort"),
        pytest.param(
            stream([delta("length", content="a", count=usage(9))]), True, "malformed", id="too-many"
        ),
        pytest.param(as_json({"error": {"message": "dead"}}), False, "error_event", id="error-body"),
        pytest.param(plain(200, b"<html>"), False, "malformed", id="no-json"),
        pytest.param(plain(401, b'{"message": "no key"}'), True, "rejected", id="401"),
    ],
)
def test_failures_have_their_outcome(
    dial: Any, ask: Any, script: Script, stream_it: bool, outcome: str
) -> None:
    _, client = dial(script, api="chat", model="m")
    record = client.generate(ask(text="hello"), stream=stream_it)
    assert record.outcome == outcome
    assert record.error


def test_the_chat_endpoint_takes_no_token_ids(dial: Any, ask: Any) -> None:
    _, client = dial(stream(CHAT), api="chat", model="m")
    with pytest.raises(ValueError, match="token ids"):
        client.generate(ask())


def test_the_meta_of_a_choice_that_a_real_server_sent_is_read(dial: Any, ask: Any) -> None:
    """Captured with `return_meta_info`: the verify steps are inside the choice, the usage has none."""
    body = (DATA / "sglang-0.0.0.dev0" / "b8-k8-w128.chat.json").read_bytes()
    _, client = dial(plain(200, body), api="chat", model="m")
    record = client.generate(ask(text="hello", tokens=24, extra={"return_meta_info": True}), stream=False)
    assert record.outcome == "ok", record.error
    assert record.completion_tokens == 24
    assert record.accept_length == 2.4


NAMES = [
    *(
        "choices",
        "usage",
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "delta",
        "message",
        "content",
        "text",
    ),
    *(
        "finish_reason",
        "type",
        "token_ids",
        "sglext",
        "spec_tokens_details",
        "meta_info",
        "output_ids",
        "reasoning",
        "tool_calls",
    ),
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 9)
    | st.floats(0, 9)
    | st.sampled_from(["", "a", "stop", "length"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(VALUES, min_size=1, max_size=3), st.booleans(), st.sampled_from([openai, generate]))
def test_no_json_whatever_its_shape_raises(values: list[Any], stream_it: bool, endpoint: Any) -> None:
    """A server's fault is an outcome of the record: a traceback would be taken for ours."""
    body = b"".join(sse(value) for value in values) if stream_it else orjson.dumps(values[0])
    exchange = Exchange(sent_ns=0, end_ns=9, status=200, body=body, arrivals=[(5, len(body))])
    request = Request(sampling=Sampling(max_new_tokens=4), text="a")
    record = endpoint.decode(request, exchange, stream=stream_it)
    assert record.ok or record.error


@pytest.mark.parametrize(
    "event",
    [
        {"usage": [1], "choices": [{"text": "a"}]},
        {"usage": {"completion_tokens": None}, "choices": []},
        {"usage": {"completion_tokens": "x"}, "choices": [{"text": "a", "finish_reason": "stop"}]},
        {"choices": [{"text": 5, "finish_reason": "stop"}]},
    ],
)
@pytest.mark.parametrize("stream_it", [True, False])
def test_a_usage_or_text_that_is_none_is_malformed(event: dict[str, Any], stream_it: bool) -> None:
    body = sse(event) if stream_it else orjson.dumps(event)
    exchange = Exchange(sent_ns=0, end_ns=9, status=200, body=body, arrivals=[(5, len(body))])
    request = Request(sampling=Sampling(max_new_tokens=4), text="a")
    assert openai.decode(request, exchange, stream=stream_it).outcome == "malformed"
