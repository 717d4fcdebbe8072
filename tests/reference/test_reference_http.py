"""The HTTP surface: shapes as captured from a real server, errors, streams, departures."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_process import server

CAPTURE = Path(__file__).parents[1] / "data" / "tree8w.generate.sse"
PROMPT = list(range(10, 60))
GREEDY = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}


@pytest.fixture(scope="module")
def speculative(tiny):
    with server(
        tiny, "--speculative-ddtree-budget", "8", "--enable-metrics", "--reasoning-parser", "qwen3"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def baseline(tiny):
    with server(tiny, "--enable-cache-report", speculative=False) as running:
        yield running


def events(response):
    return [line[len("data: ") :] for line in response.iter_lines() if line.startswith("data: ")]


def stream(client, path, body):
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        found = events(response)
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


def test_stream_has_the_shape_of_the_capture(speculative):
    captured = [
        json.loads(line[6:]) for line in CAPTURE.read_text().splitlines() if line.startswith("data: {")
    ]
    with speculative.client() as client:
        chunks = stream(client, "/generate", {"input_ids": PROMPT, "sampling_params": GREEDY})
    for ours, theirs in ((chunks[0], captured[0]), (chunks[1], captured[1]), (chunks[-1], captured[-1])):
        assert list(ours) == list(theirs)
        assert set(ours["meta_info"]) == set(theirs["meta_info"])
        for key, value in theirs["meta_info"].items():
            if value is not None:
                assert type(ours["meta_info"][key]) is type(value), key
    for before, after in itertools.pairwise(chunks):
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert after["text"].startswith(before["text"])
    last = chunks[-1]["meta_info"]
    assert last["finish_reason"] == {"type": "length", "length": 16}
    assert last["completion_tokens"] == len(chunks[-1]["output_ids"]) == 16
    assert last["spec_accept_length"] == pytest.approx(16 / last["spec_verify_ct"])


def test_both_servers_answer_alike_streamed_or_not(speculative, baseline):
    body = {"input_ids": PROMPT, "sampling_params": GREEDY}
    with speculative.client() as ours, baseline.client() as theirs:
        whole = theirs.post("/generate", json=body).json()
        assert ours.post("/generate", json=body).json()["output_ids"] == whole["output_ids"]
        assert stream(ours, "/generate", body)[-1]["output_ids"] == whole["output_ids"]
        assert "spec_verify_ct" not in whole["meta_info"]


def test_lists_are_answered_in_order(baseline):
    prompts = [PROMPT[:5], PROMPT[:9], PROMPT]
    with baseline.client() as client:
        many = client.post("/generate", json={"input_ids": prompts, "sampling_params": GREEDY}).json()
        for prompt, answer in zip(prompts, many, strict=True):
            single = client.post("/generate", json={"input_ids": prompt, "sampling_params": GREEDY}).json()
            assert answer["output_ids"] == single["output_ids"]
        chunks = stream(client, "/generate", {"input_ids": prompts, "sampling_params": GREEDY})
        last = {chunk["index"]: chunk for chunk in chunks}
        assert [last[index]["output_ids"] for index in range(3)] == [answer["output_ids"] for answer in many]
        texts = client.post("/generate", json={"text": ["a", "bc"], "sampling_params": GREEDY}).json()
        assert [text["meta_info"]["prompt_tokens"] for text in texts] == [1, 2]
        sampled = {**GREEDY, "temperature": 1.0, "n": 3, "sampling_seed": 5}
        several = client.post("/generate", json={"input_ids": PROMPT, "sampling_params": sampled}).json()
        assert len({tuple(answer["output_ids"]) for answer in several}) > 1


def test_logprobs_have_sglangs_shape(baseline):
    body = {
        "input_ids": PROMPT, "sampling_params": {**GREEDY, "max_new_tokens": 3}, "return_logprob": True,
        "logprob_start_len": 40, "top_logprobs_num": 2, "token_ids_logprob": [7], "return_text_in_logprobs": True,
    }  # fmt: skip
    with baseline.client() as client:
        meta = client.post("/generate", json=body).json()["meta_info"]
    assert [entry[1] for entry in meta["input_token_logprobs"]] == PROMPT[40:]
    assert meta["input_token_logprobs"][0][0] is None
    assert isinstance(meta["input_token_logprobs"][1][2], str)
    assert meta["input_top_logprobs"][0] is None
    assert [len(row) for row in meta["input_top_logprobs"][1:]] == [2] * 9
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == 3
    assert meta["output_token_ids_logprobs"][0][0][1] == 7
    for token, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True):
        assert token[:2] == top[0][:2], "greedy emits the best token"


def test_cached_tokens_and_flush(baseline):
    body = {"input_ids": list(range(70, 170)), "sampling_params": GREEDY}
    with baseline.client() as client:
        client.post("/flush_cache")
        counts = [client.post("/generate", json=body).json()["meta_info"]["cached_tokens"] for _ in range(2)]
        assert client.get("/flush_cache").status_code == 200
        counts.append(client.post("/generate", json=body).json()["meta_info"]["cached_tokens"])
    assert counts == [0, 99, 0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "Either text or input_ids"),
        ({"text": "a", "input_ids": [1]}, "Either text or input_ids"),
        ({"input_ids": []}, "non-empty list"),
        ({"input_ids": [1, "2"]}, "list of integers"),
        ({"input_ids": [100000]}, "outside the vocabulary of 320"),
        ({"input_ids": [-1]}, "outside the vocabulary"),
        (
            {"input_ids": [1] * 2048},
            r"The input \(2048 tokens\) is longer than the model's context length \(2048",
        ),
        (
            {"input_ids": [1] * 2000, "sampling_params": {"max_new_tokens": 100}},
            "Requested token count exceeds the model's maximum context length of 2048 tokens",
        ),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature must be non-negative"),
        ({"text": "a", "sampling_params": {"temperature": "hot"}}, "temperature must be a number"),
        ({"text": "a", "sampling_params": {"top_p": 0}}, "top_p must be in"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 1.5}}, "max_new_tokens must be an integer"),
        ({"text": "a", "sampling_params": {"nonsense": 1}}, "Unknown sampling parameter 'nonsense'"),
        ({"text": "a", "sampling_params": {"regex": "a+"}}, "no constrained decoding"),
        ({"text": "a", "sampling_params": {"logit_bias": {"999": 1}}}, "outside the vocabulary"),
        (
            {"text": "a", "sampling_params": {"stop_token_ids": [7, -400], "min_new_tokens": 1}},
            "ids, got -400",
        ),
        ({"text": "a", "nonsense": 1}, "Unknown parameter 'nonsense'"),
        (
            {"text": "a", "return_logprob": True},
            "DFLASH speculative decoding does not support return_logprob yet.",
        ),
    ],
)
def test_bad_requests_are_answered_with_400(speculative, body, words):
    with speculative.client() as client:
        answer = client.post("/generate", json=body)
        assert answer.status_code == 400
        assert re.search(words, answer.json()["error"]["message"])


def test_a_server_takes_what_it_says_it_takes(tiny):
    """Little memory, and a context that the warm-up's text does not fit into."""
    with (
        server(tiny, "--context-length", "6", "--max-total-tokens", "5", speculative=False) as running,
        running.client() as client,
    ):
        assert client.get("/health").status_code == 200
        longest = client.get("/server_info").json()["max_req_input_len"]
        for length, status in ((longest, 200), (longest + 1, 400)):
            body = {"input_ids": [7] * length, "sampling_params": {"max_new_tokens": 1}}
            assert client.post("/generate", json=body).status_code == status


def test_bad_json_is_answered_with_400(speculative):
    with speculative.client() as client:
        for content in (b"{", b"[1]", b"\xff\xfe", b""):
            assert client.post("/generate", content=content).status_code == 400
            assert client.post("/v1/completions", content=content).status_code == 400


def test_completions_agree_with_generate(baseline):
    with baseline.client() as client:
        ids = client.post("/generate", json={"text": "hello", "sampling_params": GREEDY}).json()
        body = {"model": "m", "prompt": "hello", "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        whole = client.post("/v1/completions", json={**body, "logprobs": 2}).json()
        assert whole["choices"][0]["text"] == ids["text"]
        assert whole["usage"]["completion_tokens"] == 16
        assert len(whole["choices"][0]["logprobs"]["tokens"]) == 16
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = stream(client, "/v1/completions", {**body, "stream_options": options})
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == ids["text"]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == whole["usage"]
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts)


def test_completions_echo_every_prompt(baseline):
    prompts, prompt_tokens = ["hello", "a b c"], []
    body = {"model": "m", "prompt": prompts, "max_tokens": 2, "temperature": 0, "ignore_eos": True, "n": 2}
    with baseline.client() as client:
        for prompt in prompts:
            answer = client.post("/generate", json={"text": prompt, "sampling_params": GREEDY}).json()
            prompt_tokens.append(answer["meta_info"]["prompt_tokens"])
        bare = client.post("/v1/completions", json=body).json()["choices"]
        whole = client.post("/v1/completions", json={**body, "echo": True, "logprobs": 1}).json()["choices"]
        chunks = stream(client, "/v1/completions", {**body, "echo": True, "logprobs": 1})
        ids = {**body, "prompt": [[20, 21], [30]], "echo": True}
        texts = [choice["text"] for choice in client.post("/v1/completions", json=ids).json()["choices"]]
    assert texts[0] != texts[2]
    assert [choice["index"] for choice in whole] == [0, 1, 2, 3]
    for index, (plain, echoed) in enumerate(zip(bare, whole, strict=True)):
        assert echoed["text"] == prompts[index // 2] + plain["text"]
        logprobs = echoed["logprobs"]
        assert {len(row) for row in logprobs.values()} == {prompt_tokens[index // 2] + 2}
        assert logprobs["token_logprobs"][0] is None
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(chunk["text"] for chunk in own) == echoed["text"]
        streamed = [token for chunk in own for token in chunk["logprobs"]["tokens"]]
        assert streamed == logprobs["tokens"]


@pytest.mark.parametrize(
    ("key", "value", "harmless"),
    [
        ("best_of", 3, 1),
        ("suffix", "end", ""),
        ("stream_reasoning", False, True),
        ("continue_final_message", True, False),
        ("add_generation_prompt", False, True),
        ("nonsense", 1, None),
    ],
)
def test_what_would_change_the_answer_is_refused_or_done(baseline, key, value, harmless):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with baseline.client() as client:
        answer = client.post("/v1/chat/completions", json={**body, key: value})
        assert answer.status_code == 400
        assert key in answer.json()["message"]
        if harmless is not None:
            assert client.post("/v1/chat/completions", json={**body, key: harmless}).status_code == 200


def test_chat_streams_what_it_answers(speculative):
    body = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "temperature": 0,
        "ignore_eos": True, "return_meta_info": True, "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    with speculative.client() as client:
        whole = client.post("/v1/chat/completions", json=body).json()
        message = whole["choices"][0]["message"]
        assert whole["choices"][0]["meta_info"]["spec_verify_ct"] > 0
        body.pop("return_meta_info")
        chunks = stream(client, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        text = "".join(chunk["choices"][0]["delta"]["content"] or "" for chunk in chunks if chunk["choices"])
        assert text == message["content"]
        assert chunks[-2]["choices"][0]["finish_reason"] == "length"
        assert chunks[-1]["usage"]["completion_tokens"] == 20


def test_a_streamed_chat_scores_every_token(baseline):
    """Also those whose text is held back: half a character, or what may become a marker."""
    body = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "temperature": 1, "seed": 3,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 1,
    }  # fmt: skip
    with baseline.client() as client:
        whole = client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
        chunks = [chunk["choices"][0] for chunk in stream(client, "/v1/chat/completions", body)]
    scored = [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]]
    assert len(whole) == 40
    assert [entry["token"] for entry in scored] == [entry["token"] for entry in whole]


def test_information_and_metrics(speculative):
    with speculative.client() as client:
        info = client.get("/server_info").json()
        assert info == {**client.get("/get_server_info").json(), "internal_states": info["internal_states"]}
        assert (info["speculative_algorithm"], info["speculative_ddtree_budget"], info["speculative_ddtree_topk"]) == (
            "DDTREE", 8, 4,
        )  # fmt: skip
        assert info["max_speculative_num_draft_tokens"] == 9
        assert info["blas_threads"] == 1
        assert info["internal_states"][0]["effective_max_running_requests_per_dp"] == 48
        assert client.get("/health").status_code == client.get("/health_generate").status_code == 200
        assert client.get("/model_info").json()["architectures"] == ["Qwen3ForCausalLM"]
        assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 2048

        def counter(name):
            lines = [
                line
                for line in client.get("/metrics").text.splitlines()
                if line.startswith(f"sglang:{name}{{")
            ]
            return float(lines[0].rpartition(" ")[2])

        names = ("generation_tokens_total", "spec_verify_calls_total", "num_requests_total")
        before = {name: counter(name) for name in names}
        meta = client.post("/generate", json={"input_ids": PROMPT, "sampling_params": GREEDY}).json()[
            "meta_info"
        ]
        after = {name: counter(name) for name in names}
        assert after["num_requests_total"] == before["num_requests_total"] + 1
        assert after["generation_tokens_total"] >= before["generation_tokens_total"] + 16
        assert after["spec_verify_calls_total"] == before["spec_verify_calls_total"] + meta["spec_verify_ct"]
        assert counter("num_running_reqs") == counter("kv_used_tokens") == 0


def test_log_has_the_captured_lines(speculative):
    for words in (
        (
            "Initialized DFLASH draft runner. attention_backend=numpy, model=DFlashDraftModel, block_size=8, "
            "draft_window_size=None, compact_cache=False"
        ),
        "Initialized DDTree worker. block_size=8, tree_budget=8, max_tree_nodes=9",
        "max_total_num_tokens=65536",
        "The server is fired up and ready to roll!",
    ):
        assert words in speculative.log


def wait_idle(client):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        state = client.get("/server_info").json()["internal_states"][0]
        if state["num_running_reqs"] == state["num_queue_reqs"] == 0:
            return state
        time.sleep(0.05)
    pytest.fail("the server does not become idle")


def running_now(client):
    return client.get("/server_info").json()["internal_states"][0]["num_running_reqs"]


LONG = {"input_ids": PROMPT, "sampling_params": {**GREEDY, "max_new_tokens": 1900}}


def test_departed_client_frees_everything(speculative):
    with speculative.client() as client:
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
            next(response.iter_lines())
        state = wait_idle(client)
        with (
            httpx.Client(base_url=speculative.url, timeout=0.2, trust_env=False, verify=False) as hasty,
            pytest.raises(httpx.ReadTimeout),
        ):
            hasty.post("/generate", json=LONG)
        assert wait_idle(client)["kv_available_tokens"] == state["kv_available_tokens"] == 65536


@contextmanager
def several(client, *rids, tokens=1900):
    """Streams of running requests with these ids, their first line read."""
    params = {**GREEDY, "max_new_tokens": tokens}
    with ExitStack() as stack:
        streams = []
        for rid in rids:
            body = {"input_ids": PROMPT, "sampling_params": params, "stream": True, "rid": rid}
            response = stack.enter_context(client.stream("POST", "/generate", json=body))
            lines = response.iter_lines()
            next(lines)
            streams.append((response, lines))
        yield streams


def finish_of(lines):
    found = [line for line in lines if line.startswith("data: {")]
    return json.loads(found[-1][len("data: ") :])["meta_info"]["finish_reason"]


def test_departed_client_takes_no_other_with_it(speculative):
    """Its id may begin another's, or be the same."""
    with speculative.client() as client, several(client, "same", "same", "same-1", tokens=300) as streams:
        streams[0][0].close()
        for _, lines in streams[1:]:
            assert finish_of(lines) == {"type": "length", "length": 300}
        wait_idle(client)


def test_requests_with_one_id_are_aborted_together(speculative):
    with speculative.client() as client:
        with several(client, "twin", "twin", "other") as streams:
            client.post("/abort_request", json={"rid": "twin"})
            for _, lines in streams[:2]:
                assert finish_of(lines)["type"] == "abort"
            assert running_now(client) == 1
        wait_idle(client)


def test_health_of_a_busy_server_needs_no_place_in_the_batch(tiny):
    with (
        server(tiny, "--max-running-requests", "1", speculative=False) as running,
        running.client() as client,
    ):
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()  # which ends the request once nobody holds it
            next(lines)
            assert client.get("/health").status_code == 200
            assert running_now(client) == 1, "the one that has the place has not ended meanwhile"
        wait_idle(client)


def test_abort_ends_the_answer(speculative):
    with speculative.client() as client:

        def abort():
            deadline = time.monotonic() + 60
            while not running_now(client) and time.monotonic() < deadline:
                time.sleep(0.01)
            client.post("/abort_request", json={"rid": "mine"})

        with ThreadPoolExecutor(1) as pool:
            aborted = pool.submit(abort)
            answer = client.post("/generate", json={**LONG, "rid": "mine-1"}).json()
            aborted.result()
        assert answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert len(answer["output_ids"]) < 1900
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            assert client.post("/flush_cache").status_code == 400, "a busy server must not flush"
            client.post("/abort_request", json={"abort_all": True})
            assert '"type":"abort"' in list(lines)[-4]


def test_api_key_and_incremental_stream(tiny):
    arguments = ("--api-key", "secret", "--incremental-streaming-output", "--stream-interval", "3")
    with server(tiny, *arguments, "--served-model-name", "it") as running, running.client() as client:
        assert client.post("/generate", json={"text": "a"}).status_code == 401
        assert client.get("/health").status_code == 200
        client.headers["Authorization"] = "Bearer secret"
        assert client.get("/v1/models").json()["data"][0]["id"] == "it"
        body = {"input_ids": PROMPT, "sampling_params": GREEDY}
        whole = client.post("/generate", json=body).json()
        chunks = stream(client, "/generate", body)
        assert [token for chunk in chunks for token in chunk["output_ids"]] == whole["output_ids"]
        assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
        assert all(len(chunk["output_ids"]) >= 3 for chunk in chunks[:-1])


def test_port_in_use_is_refused_at_once(tiny):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "pytest_ddtree.reference",
            "--port",
            str(port),
            "--model-path",
            str(tiny[0]),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3
    assert f"port {port} on 127.0.0.1 cannot be used: Address already in use" in done.stderr


def test_signal_ends_a_busy_server_cleanly(tiny):
    body = {**LONG, "stream": True}
    # The second in the middle of a pass of seconds, for the end of which nobody waits.
    for number, faults in ((signal.SIGTERM, []), (signal.SIGINT, ["slower:100000"])):
        with server(tiny, "--plant-switch") as running, running.client() as client:
            client.post("/plant", json={"plant": faults})
            with client.stream("POST", "/generate", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                running.process.send_signal(number)
                assert running.process.wait(60) == 0
                try:
                    rest = list(lines)
                except httpx.RemoteProtocolError:
                    rest = []
                assert not rest or "abort" in "".join(rest)
        assert "Traceback" not in running.log
        assert ("Answers that were cut off: 1" in running.log) == bool(faults)


@pytest.fixture(scope="module")
def client(baseline):
    with baseline.client() as opened:
        yield opened


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 3000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    ["text", "input_ids", "sampling_params", "rid", "stream", "return_logprob", "logprob_start_len",
     "top_logprobs_num", "prompt", "messages", "max_tokens", "stop", "n", "temperature", "stream_options", "logprobs"]
)  # fmt: skip
param_keys = st.sampled_from(
    ["max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "stop_token_ids", "logit_bias", "n",
     "min_new_tokens", "sampling_seed", "frequency_penalty", "repetition_penalty", "ignore_eos"]
)  # fmt: skip
bodies = st.dictionaries(keys, json_values, max_size=5) | st.fixed_dictionaries(
    {"text": st.text(max_size=8), "sampling_params": st.dictionaries(param_keys, json_values, max_size=4)}
)


@settings(max_examples=60)
@given(body=bodies, path=st.sampled_from(["/generate", "/v1/completions", "/v1/chat/completions"]))
def test_any_body_is_answered(baseline, client, body, path):
    answer = client.post(path, json=body)
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 200 and body.get("stream") is not True:
        answer.json()
    assert baseline.process.poll() is None
