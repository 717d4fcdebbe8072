"""Real answers of every endpoint, decoded by the client: outcomes, counts, accept lengths, error texts, counters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_ddtree.client import generate, openai
from pytest_ddtree.client.answers import error_text
from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.prometheus import parse_metrics, total
from pytest_ddtree.client.records import Record, Request, Sampling

DATA = Path(__file__).parents[1] / "data"
SERVERS = (("sglang-0.5.16", "base"), ("sglang-0.5.16", "chain"), ("sglang-0.0.0.dev0", "b8-k8-w128"))
EACH = pytest.mark.parametrize(("build", "name"), SERVERS, ids=[name for _, name in SERVERS])
STEPS = {"base": None, "chain": 18, "b8-k8-w128": 17}
"""`spec_verify_ct` of the 24 tokens."""


def body(build: str, name: str, what: str) -> bytes:
    return (DATA / build / f"{name}.{what}").read_bytes()


def record(build: str, name: str, what: str, status: int = 200) -> Record:
    content = body(build, name, what)
    exchange = Exchange(sent_ns=0, end_ns=10, status=status, body=content, arrivals=((5, len(content)),))
    request = Request(sampling=Sampling(max_new_tokens=24), input_ids=tuple(range(10, 196)))
    decode = openai.decode if what.startswith(("chat", "completions")) else generate.decode
    return decode(request, exchange, stream=what.endswith(".sse"))


@EACH
@pytest.mark.parametrize("endpoint", ["generate", "completions", "chat"])
def test_streamed_and_whole_answers_agree(build: str, name: str, endpoint: str) -> None:
    streamed, whole = (record(build, name, f"{endpoint}.{form}") for form in ("sse", "json"))
    for answer in (streamed, whole):
        assert answer.outcome == "ok", answer.error
        assert (answer.completion_tokens, answer.exact_counts) == (24, True)
        assert answer.finish_reason is not None
        assert answer.finish_reason["type"] == "length"
    assert (streamed.text, streamed.output_ids) == (whole.text, whole.output_ids)
    assert streamed.chunks[-1].tokens == 24


@EACH
def test_generate_tells_the_verify_steps(build: str, name: str) -> None:
    for what in ("generate.sse", "generate.json"):
        answer = record(build, name, what)
        assert answer.verify_steps == STEPS[name]
        assert len(answer.output_ids) == 24
        if STEPS[name] is not None:
            assert answer.accept_length == pytest.approx(24 / STEPS[name])
            assert answer.accept_length == pytest.approx(answer.meta["spec_accept_length"])


@EACH
def test_a_speculative_chunk_holds_several_tokens(build: str, name: str) -> None:
    chunks = record(build, name, "generate.sse").chunks
    counts = [chunk.tokens for chunk in chunks]
    assert counts == sorted(set(counts))
    assert (len(counts) == 24) == (name == "base")


def test_all_servers_gave_the_same_tokens() -> None:
    """Greedy on the same prompt: chain and tree emit what the plain server emits."""
    ids = {record(build, name, "generate.json").output_ids for build, name in SERVERS}
    assert len(ids) == 1


@EACH
def test_a_prompt_that_is_too_long_is_rejected_or_an_error_event(build: str, name: str) -> None:
    words = "The input (20000 tokens) is longer than the model's context length (16384 tokens)."
    rejected = record(build, name, "error.too_long.json", status=400)
    streamed = record(build, name, "error.too_long_stream.sse")
    assert (rejected.outcome, streamed.outcome) == ("rejected", "error_event")
    for answer in (rejected, streamed):
        assert words in (answer.error or "")


@EACH
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("too_many_new", "You requested a total of 20186 tokens"),
        ("empty", "input_ids cannot be empty"),
        ("negative", "temperature must be"),
        ("no_such_path", "Not Found"),
        ("not_json", "JSON decode error"),
        ("chat_without_messages", "Field required"),
    ],
)
def test_error_bodies_become_words(build: str, name: str, what: str, words: str) -> None:
    assert words in error_text(body(build, name, f"error.{what}.json"))


def test_speculative_servers_refuse_logprobs_in_these_words() -> None:
    for build, name in SERVERS[1:]:
        text = error_text(body(build, name, "error.logprobs.json"))
        assert text == "DFLASH speculative decoding does not support return_logprob yet."


def test_the_baseline_scores_given_tokens() -> None:
    meta = json.loads(body("sglang-0.5.16", "base", "generate.logprobs.json"))["meta_info"]
    assert len(meta["input_token_logprobs"]) == 3
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 4


@EACH
def test_counters_give_the_accept_length(build: str, name: str) -> None:
    metrics = parse_metrics(body(build, name, "metrics.txt").decode())
    tokens, steps = (
        total(metrics, f"sglang:{counter}")
        for counter in ("generation_tokens_total", "spec_verify_calls_total")
    )
    assert tokens == 152
    if name == "base":
        assert steps is None
    else:
        assert steps is not None
        assert 1 < tokens / steps < 8
