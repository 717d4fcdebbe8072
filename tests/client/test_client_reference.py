"""The client against the embedded server, over every endpoint that it speaks."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddtree.client.errors import RefusesLogprobs
from pytest_ddtree.client.prometheus import total
from pytest_ddtree.client.records import Request, Sampling
from pytest_ddtree.client.sync import Client
from pytest_ddtree.workload.load import closed_loop
from pytest_ddtree.workload.measure import measure
from pytest_ddtree.workload.prompts import PromptMaker

WEIGHTS = Path(__file__).parents[2] / "pytest_ddtree" / "reference" / "weights"
TREE = ["--speculative-algorithm", "DDTREE"]
TREE += ["--speculative-ddtree-budget", "8", "--speculative-ddtree-topk", "4"]


def serve(*arguments: str) -> Iterator[str]:
    if not (WEIGHTS / "target" / "model.safetensors").is_file():
        pytest.skip("the reference weights are not there")
    command = [sys.executable, "-m", "pytest_ddtree.reference", "--port", "0", "--enable-metrics"]
    with subprocess.Popen(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if "fired up" in line:
                    break
            found = re.search(r"http://[\d.]+:\d+", "".join(lines))
            assert found is not None, "".join(lines)
            yield found[0]
        finally:
            process.terminate()
            process.stdout.read()


@pytest.fixture(scope="module")
def baseline() -> Iterator[str]:
    yield from serve()


@pytest.fixture(scope="module")
def tree() -> Iterator[str]:
    yield from serve(*TREE)


@pytest.fixture(scope="module")
def maker() -> PromptMaker:
    return PromptMaker(WEIGHTS / "target")


def request_of(maker: PromptMaker, index: int, tokens: int = 16) -> Request:
    prompt = maker.make(60, index)
    sampling = Sampling(max_new_tokens=tokens, ignore_eos=True)
    return Request(sampling=sampling, input_ids=prompt.ids, tag=prompt.tag)


def test_the_tree_answers_as_the_baseline_and_its_tokens_score_as_argmax(
    baseline: str, tree: str, maker: PromptMaker
) -> None:
    with Client(baseline) as plain, Client(tree) as drafting:
        request = request_of(maker, 0)
        expected, record = plain.generate(request), drafting.generate(request)
        assert (expected.outcome, record.outcome) == ("ok", "ok")
        assert record.output_ids == expected.output_ids
        assert record.accept_length is not None
        assert expected.accept_length is None
        assert drafting.server_info()["speculative_draft_model_path"] == str(WEIGHTS / "draft"), "the default"
        assert request.input_ids is not None
        scores = plain.score([*request.input_ids, *record.output_ids], len(request.input_ids))
        assert len(scores) == 16
        assert max(score.gap for score in scores) < 1e-3
        with pytest.raises(RefusesLogprobs):
            drafting.score([*request.input_ids, *record.output_ids], len(request.input_ids))


def test_emitted_tokens_have_the_logprobs_that_teacher_forcing_gives_them(
    baseline: str, maker: PromptMaker
) -> None:
    with Client(baseline) as client:
        request = request_of(maker, 1)
        record, emitted = client.baseline_with_logprobs(request, 3)
        assert request.input_ids is not None
        forced = client.score([*request.input_ids, *record.output_ids], len(request.input_ids), top=3)
    assert [one.position for one in emitted] == [one.position for one in forced]
    for one, other in zip(emitted, forced, strict=True):
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


def test_a_load_gives_the_figures_that_the_servers_own_counters_confirm(
    tree: str, maker: PromptMaker
) -> None:
    with Client(tree) as client:
        client.flush_cache()
        before = client.metrics()
        requests = [request_of(maker, 10 + index) for index in range(8)]
        cell = measure(client.loop.run(closed_loop(client.asynchronous, requests, concurrency=4)))
        after = client.metrics()
    assert (cell.ok, cell.output_tokens, cell.prompt_tokens) == (8, 128, 480)
    assert cell.exact_counts
    assert cell.accept_length is not None
    assert cell.accept_length > 1
    for name, expected in (("sglang:generation_tokens_total", 128), ("sglang:prompt_tokens_total", 480)):
        assert (total(after, name) or 0) - (total(before, name) or 0) == expected


@pytest.mark.parametrize("stream", [True, False])
def test_openais_endpoints_count_as_generate_does(baseline: str, maker: PromptMaker, stream: bool) -> None:
    request = request_of(maker, 2)
    with Client(baseline) as client, Client(baseline, api="completions", loop=client.loop) as other:
        expected, record = client.generate(request), other.generate(request, stream=stream)
    assert record.outcome == "ok"
    assert record.exact_counts
    assert record.text == expected.text
    assert (record.completion_tokens, record.prompt_tokens) == (16, 60)
    assert record.chunks[-1].tokens == 16


def test_a_chat_is_counted_and_its_reasoning_kept_apart(baseline: str) -> None:
    request = Request(sampling=Sampling(max_new_tokens=24), text="Write a function `add(a, b)`.")
    with Client(baseline, api="chat") as client:
        record = client.generate(request)
    assert record.outcome == "ok"
    assert record.exact_counts
    assert record.completion_tokens <= 24
    assert record.chunks[-1].tokens == record.completion_tokens


def test_a_request_that_is_too_long_is_rejected_with_the_servers_words(baseline: str) -> None:
    request = Request(sampling=Sampling(max_new_tokens=1), input_ids=(7,) * 20_000)
    with Client(baseline) as client:
        record = client.generate(request)
    assert (record.outcome, record.http_status) == ("rejected", 400)
    assert "context length" in (record.error or "")
