"""`pytest-ddtree measure` against a real socket server, and the prompts that it makes: fitted by count, of the user's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Asked, Script, as_json, generate_events, plain, sse, stream
from tokenizers import Tokenizer, models, pre_tokenizers

from pytest_ddtree.workload import measure_cli, selfcheck
from pytest_ddtree.workload.counted import CannotCount, fit_prompt, server_count
from pytest_ddtree.workload.datasets import load_questions
from pytest_ddtree.workload.selfcheck import ClientLimits
from pytest_ddtree.workload.texts import shipped


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
        (
            "a.json",
            '[{"conversations": []}, {"conversations": [{"from": "gpt", "value": "g"}]}, {"turns": ["t"]}]',
            ("t",),
        ),
        (
            "a.jsonl",
            '{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]}',
            ("a",),
        ),
        ("a.jsonl", '{"prompt": "one\u2028line"}\r\n{"prompt": "two\x85"}\r\n', ("one\u2028line", "two")),
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


@pytest.fixture
def idle_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the machine that runs the tests is busy is not what they are about."""
    wide = ClientLimits(cpu_share=1e9, lag_of_latency=1e9, lag_of_gap=1e9, coalesced_share=1.0)
    monkeypatch.setattr(selfcheck, "ClientLimits", lambda: wide)


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


@pytest.mark.usefixtures("idle_client")
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
    assert code == measure_cli.MEASURED, said.err
    value = json.loads(out.read_text())
    assert value["spec"]["context"] == 60
    assert {one["prompt_tokens"] for one in value["rounds"]} == {4 * 60}
    assert "output tok/s" in said.out
    for untold in (
        "accept length      not told",
        "cached tokens      not told",
        "natural ends       not checked",
    ):
        assert untold in said.out


ENDS = [2]


@pytest.fixture
def model_with_an_end(tmp_path: Path) -> Path:
    """A tokenizer of single bytes, and a config that names the token that ends an answer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": ENDS}))
    return tmp_path


@pytest.mark.usefixtures("idle_client")
@pytest.mark.parametrize(
    ("steps", "says"),
    [
        pytest.param(2, "the server claims 2 verify steps and sent 4 messages", id="too-few"),
        pytest.param(200, "an accept length of 0.2", id="more-than-tokens"),
        pytest.param(-1, "spec_verify_ct is -1, which is no number", id="negative"),
        pytest.param("twelve", "spec_verify_ct is 'twelve', which is no number", id="a-word"),
    ],
)
def test_steps_that_cannot_be_true_give_no_accept_length(
    serve: Any, model_with_an_end: Path, capsys: pytest.CaptureFixture[str], steps: object, says: str
) -> None:
    def miscounting(asked: Asked) -> Script:
        if asked.path != "/generate":
            return as_json({"max_total_num_tokens": 100_000} if asked.path == "/server_info" else {})
        ids = list(range(100, 100 + asked.json["sampling_params"]["max_new_tokens"]))
        pieces = [ids[start : start + 10] for start in range(0, len(ids), 10)]
        finish = {"type": "length"}
        return stream(generate_events(pieces, finish=finish, meta={"spec_verify_ct": steps}), gap_s=0.02)

    server, _ = serve(miscounting)
    words = ["--tokenizer", str(model_with_an_end), "--context", "1500", "--output", "40", "--turnovers", "1"]
    assert measure_cli.run([server.url, *words]) == measure_cli.NOT_MEASURED
    said = capsys.readouterr().err
    assert says in said


def ending(asked: Asked, limits: dict[tuple[int, ...], int]) -> Script:
    """Every second prompt ends after ten tokens, and loops where it may not."""
    if asked.path != "/generate":
        return as_json({"max_total_num_tokens": 100_000} if asked.path == "/server_info" else {})
    prompt, sampling = tuple(asked.json["input_ids"]), asked.json["sampling_params"]
    short = limits.setdefault(prompt, len(limits)) % 2 == 0
    tokens = sampling["max_new_tokens"]
    ids = [*range(100, 110), *ENDS, *[7] * tokens][:tokens] if short else list(range(100, 100 + tokens))
    if short and "ignore_eos" not in sampling:
        ids = ids[:11]
    finish = {"type": "length" if len(ids) == tokens else "stop"}
    return stream(generate_events([ids[:5], ids[5:]], finish=finish), gap_s=0.06)


@pytest.mark.usefixtures("idle_client")
def test_the_command_measures_natural_answers_or_none(
    serve: Any, model_with_an_end: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known: dict[tuple[int, ...], int] = {}
    server, _ = serve(lambda asked: ending(asked, known))
    out = tmp_path / "cell.json"
    words = [server.url, "--tokenizer", str(model_with_an_end), "--context", "1500", "--output", "40"]
    words += ["--turnovers", "2", "--max-rounds", "2", "--precision", "0.9", "--json", str(out)]
    code = measure_cli.run(words)
    said = capsys.readouterr()
    assert code == measure_cli.MEASURED, said.err
    assert "choosing prompts with long natural answers" in said.err
    assert "0.0% of tokens after the end, distinct 4-grams 1.000" in said.out
    value = json.loads(out.read_text())
    assert len(value["chosen"]) == 3
    assert [one["tokens_after_end"] for one in value["endings"]] == [0, 0]
    assert measure_cli.run([*words, "--cache", "untouched"]) == measure_cli.NOT_MEASURED
    refused = capsys.readouterr().err
    assert "came after the natural end" in refused


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        pytest.param(["http://127.0.0.1:9", "--cache", "untouched"], 1, "not measured", id="nobody-there"),
        pytest.param(["URL", "--api", "chat"], 1, "--cache untouched", id="cannot-flush"),
        pytest.param(["URL", "--cache", "untouched"], 1, "--tokenizer", id="no-tokenizer"),
        pytest.param(["URL", "--questions", "/nonexistent.txt"], 2, "nonexistent", id="no-file"),
        pytest.param(["URL", "--precision", "0"], 2, "precision", id="no-precision"),
        pytest.param(["URL", "--json", "/nonexistent/cell.json"], 2, "nonexistent", id="no-place-for-json"),
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


@pytest.mark.parametrize("url", ["foo", "ftp://host", "http://", "http://host:99999", "http://host:y"])
def test_what_is_no_address_is_a_usage_error(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        measure_cli.run([url])
    assert caught.value.code == measure_cli.USAGE
    assert "takes a URL" in capsys.readouterr().err


def test_wrong_words_are_a_usage_error() -> None:
    with pytest.raises(SystemExit) as caught:
        measure_cli.run(["http://x", "--concurrency", "0"])
    assert caught.value.code == measure_cli.USAGE
