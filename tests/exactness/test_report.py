"""The report of a corruption, and the verify steps it names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.generate import decode
from pytest_ddtree.client.records import Chunk, Record, Request, Sampling, TokenScore
from pytest_ddtree.exactness.floor import assumed_floor
from pytest_ddtree.exactness.judged import UNSEEN_GAP, JudgedAnswer
from pytest_ddtree.exactness.prompts import Prompt, emitted_ids
from pytest_ddtree.exactness.report import Reproduction, corruption_report, curl_command
from pytest_ddtree.exactness.rule import Rule, judge
from pytest_ddtree.exactness.steps import Place, place_in_step, step_sizes

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PROMPT = Prompt("count-up", (1, 2, 3))


def words(ids: object) -> str:
    return " ".join(WORDS[token] for token in ids)  # type: ignore[attr-defined]


def record(ids: tuple[int, ...], ends: tuple[int, ...], steps: int | None, **changes: object) -> Record:
    values: dict[str, object] = {
        "request": Request(sampling=Sampling(max_new_tokens=8), input_ids=PROMPT.ids, tag=PROMPT.tag),
        "outcome": "ok",
        "sent_ns": 0,
        "end_ns": 9,
        "output_ids": ids,
        "chunks": tuple(Chunk(index, end) for index, end in enumerate(ends)),
        "meta": {"completion_tokens": len(ids), "prompt_tokens": 3}
        | ({} if steps is None else {"spec_verify_ct": steps}),
    }
    return Record(**(values | changes))  # type: ignore[arg-type]


ANSWER = record((4, 5, 9, 7, 8), (1, 4, 5), 2)


def judged() -> JudgedAnswer:
    tops = [((4, -0.1),), ((5, -0.1),), ((6, -0.05), (2, -4.0), (9, -6.05)), ((7, -0.1),), ((8, -0.1),)]
    scores = tuple(
        TokenScore(position=3 + i, token_id=token, logprob=dict(top)[token], top=top)
        for i, (token, top) in enumerate(zip(ANSWER.output_ids, tops, strict=True))
    )
    return JudgedAnswer(tag=PROMPT.tag, prompt_tokens=3, scores=scores)


@pytest.fixture
def report() -> str:
    verdict = judge([judged()], assumed_floor(), Rule(), config="b8-k4-wnone", level="full")
    tried = Reproduction(
        alone=False, output=4, base_url="http://127.0.0.1:30000/", pytest_command="pytest -m exactness -k b8"
    )
    return corruption_report(
        verdict,
        {PROMPT.tag: PROMPT},
        {PROMPT.tag: ANSWER},
        decode=words,
        reproductions={PROMPT.tag: tried},
    )


@pytest.mark.parametrize(
    "part",
    [
        "b8-k4-wnone: corrupt at level full",
        "because 1 of 5 tokens beyond a gap of 1.5 nats (largest 6)",
        "prompt 'count-up', position 2 of the answer, verify step 0, token 2 of 3 (tree depth 2)",
        "emitted 9 'nine': gap 6 nats, rank 3; the judge's best:",
        "-0.0500  6 'six'",
        "-6.0500  9 'nine'  <- emitted",
        "emitted:  'one two three four five' >>>'nine'<<< 'seven eight'",
        "baseline: 'one two three four five' >>>'six'<<<",
        "at concurrency 1 it does not repeat",
        "an output of 4 tokens and a prompt of 3",
        "  pytest -m exactness -k b8",
    ],
)
def test_the_report_says(report: str, part: str) -> None:
    assert part in report


def test_the_curl_command_is_one_line_that_a_shell_reads_back(report: str) -> None:
    (line,) = [line.strip() for line in report.splitlines() if "curl" in line]
    arguments = shlex.split(line)
    assert arguments[2] == "http://127.0.0.1:30000/generate"
    assert json.loads(arguments[-1]) == {
        "input_ids": [1, 2, 3],
        "sampling_params": {"max_new_tokens": 4, "temperature": 0.0},
    }
    assert "'max_new_tokens': 8" not in curl_command("http://h", PROMPT, ANSWER)
    assert json.loads(shlex.split(curl_command("http://h", PROMPT, ANSWER))[-1])["sampling_params"] == {
        "max_new_tokens": 8,
        "temperature": 0.0,
    }


def test_a_worst_token_without_its_record_is_still_named() -> None:
    verdict = judge([judged()], assumed_floor(), Rule(), config="b8", level="full")
    text = corruption_report(verdict, {}, {}, decode=words)
    assert "prompt 'count-up', position 2 of the answer\n" in text
    assert "curl" not in text


def test_steps_are_read_where_chunks_are_proved_to_be_steps() -> None:
    assert step_sizes(ANSWER) == (3, 1)
    assert place_in_step(ANSWER, 0) is None
    assert place_in_step(ANSWER, 1) == Place(0, 0, 3)
    assert place_in_step(ANSWER, 3) == Place(0, 2, 3)
    assert str(place_in_step(ANSWER, 3)) == "verify step 0, token 3 of 3 (its bonus token)"
    assert place_in_step(ANSWER, 4) == Place(1, 0, 1)


@pytest.mark.parametrize(
    "answer",
    [
        record((4, 5, 6), (1, 3), None),
        record((4, 5, 6), (1, 3), 2),
        record((4, 5, 6), (2, 3), 1),
        record((4, 5, 6), (1, 3), 1, exact_counts=False),
    ],
    ids=["no steps", "a chunk is missing", "prefill gave two", "estimated"],
)
def test_steps_are_not_guessed(answer: Record) -> None:
    assert step_sizes(answer) is None
    assert place_in_step(answer, 2) is None


@pytest.mark.parametrize(
    ("reason", "count", "expected"),
    [
        ({"type": "stop", "matched": 7}, 3, (4, 5, 7)),
        ({"type": "stop", "matched": 7}, 2, (4, 5)),
        ({"type": "stop", "matched": "seven"}, 3, (4, 5)),
        ({"type": "length", "length": 3}, 3, (4, 5)),
        (None, 3, (4, 5)),
    ],
)
def test_the_stop_token_is_judged_where_the_ids_leave_it_out(
    reason: Mapping[str, object] | None, count: int, expected: tuple[int, ...]
) -> None:
    answer = record((4, 5), (1, 2), None, finish_reason=reason, meta={"completion_tokens": count})
    assert emitted_ids(answer) == expected


def test_steps_of_a_real_stream() -> None:
    body = (Path(__file__).parent.parent / "data" / "tree8w.generate.sse").read_bytes()
    request = Request(sampling=Sampling(max_new_tokens=16), input_ids=(1,) * 156)
    arrivals = [(at, at + 1) for at in range(len(body))]
    real = decode(
        request, Exchange(sent_ns=0, end_ns=1, status=200, body=body, arrivals=arrivals), stream=True
    )
    sizes = step_sizes(real)
    assert sizes is not None
    assert len(sizes) == 8
    assert sum(sizes) == 15


def test_what_level_self_cannot_know_is_not_shown_as_a_figure() -> None:
    """Where only prefill's token is known there is no gap, no rank, and no baseline answer to be identical to."""
    scores = tuple(
        TokenScore(
            position=3 + i, token_id=token, logprob=-UNSEEN_GAP if token == 9 else 0.0, top=((best, 0.0),)
        )
        for i, (token, best) in enumerate(zip(ANSWER.output_ids, (4, 5, 6, 7, 8), strict=True))
    )
    answer = JudgedAnswer(tag=PROMPT.tag, prompt_tokens=3, scores=scores)
    verdict = judge([answer], assumed_floor(), Rule(), config="b8-k4-wnone", level="self")
    text = corruption_report(verdict, {PROMPT.tag: PROMPT}, {PROMPT.tag: ANSWER}, decode=words)
    assert "largest gap of unknown size" in text
    assert "emitted 9 'nine'; after the same tokens prefill gives 6 'six'" in text
    for figure in ("1e-09", "identical", "not among the best", "rank"):
        assert figure not in text
