"""Answers to coding problems that outlast an interruption: what is read again is what was written, whatever it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.records import Record, Request, Sampling, TokenScore
from pytest_ddtree.results.answers import FILE, Answer, AnswerBook, as_json, digest, from_json
from pytest_ddtree.results.store import StoreCorrupt

ids = st.integers(0, 2**31)
logprobs = st.floats(max_value=0.0, allow_nan=False) | st.floats(max_value=0.0, width=32, allow_nan=False)
requests = st.builds(
    Request,
    sampling=st.builds(
        Sampling,
        max_new_tokens=st.integers(1, 9999),
        temperature=st.sampled_from([0.0, 0.7]),
        seed=st.none() | st.integers(0, 9),
    ),
    input_ids=st.none() | st.lists(ids, min_size=1, max_size=4).map(tuple),
    tag=st.sampled_from(["a", "HumanEval/3"]),
)
tops = st.lists(st.tuples(ids, logprobs), max_size=3).map(tuple)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    tokens = draw(st.lists(ids, max_size=4))
    start = draw(st.integers(1, 5000))
    scores = tuple(
        TokenScore(position=start + at, token_id=token, logprob=draw(logprobs), top=draw(tops))
        for at, token in enumerate(tokens)
    )
    record = Record(
        request=draw(requests),
        outcome=draw(st.sampled_from(["ok", "malformed"])),
        sent_ns=0,
        end_ns=0,
        output_ids=tuple(tokens),
        text=draw(st.text(max_size=20)),
        reasoning=draw(st.none() | st.text(max_size=5)),
        finish_reason=draw(st.none() | st.just({"type": "stop", "matched": 5})),
        meta={"completion_tokens": len(tokens), "prompt_tokens": start},
        http_status=200,
        error=draw(st.none() | st.text(max_size=5)),
    )
    return Answer(record, scores if draw(st.booleans()) else ())


@given(answers())
def test_what_is_read_is_what_was_written(answer: Answer) -> None:
    assert from_json(as_json(answer), answer.record.request) == answer


def an_answer(text: str = "x = 1", tag: str = "a", limit: int = 8) -> Answer:
    request = Request(sampling=Sampling(max_new_tokens=limit), input_ids=(1, 2), tag=tag)
    scores = (TokenScore(position=2, token_id=7, logprob=-0.25, top=((7, -0.25), (9, -3.5))),)
    record = Record(
        request=request,
        outcome="ok",
        sent_ns=5,
        end_ns=9,
        output_ids=(7,),
        text=text,
        finish_reason={"type": "stop"},
        meta={"completion_tokens": 1, "output_token_logprobs": [[-0.25, 7, None]]},
        http_status=200,
    )
    return Answer(record, scores)


def test_only_the_same_question_asked_as_often_is_found_again(tmp_path: Path) -> None:
    book = AnswerBook(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    one = an_answer()
    book.keep("b8", 0, one)
    book.close()
    book = AnswerBook(tmp_path / "run")
    found = book.get("b8", one.record.request, 0)
    assert found is not None
    assert (found.record.output_ids, found.record.text, found.scores) == ((7,), "x = 1", one.scores)
    assert found.record.completion_tokens == 1
    assert book.get("b8", one.record.request, 1) is None
    assert book.get("b16", one.record.request, 0) is None
    assert book.get("b8", an_answer(limit=9).record.request, 0) is None
    assert digest(an_answer(tag="b").record.request) == digest(one.record.request), (
        "a name is no part of the question"
    )


def test_a_torn_answer_is_cut_off_and_said_and_the_file_goes_on(tmp_path: Path) -> None:
    book = AnswerBook(tmp_path)
    book.keep("b8", 0, an_answer())
    book.keep("b8", 1, an_answer("y = 2"))
    book.close()
    file = tmp_path / FILE
    whole = file.read_bytes()
    second = whole.index(b"\n") + 1
    for length in range(second + 1, len(whole)):
        file.write_bytes(whole[:length])
        book = AnswerBook(tmp_path)
        assert book.torn == length - second
        assert book.get("b8", an_answer().record.request, 0) is not None
        assert book.get("b8", an_answer().record.request, 1) is None
        book.close()
        assert file.read_bytes() == whole[:second]


def test_a_damaged_answer_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    book = AnswerBook(tmp_path)
    book.keep("b8", 0, an_answer())
    book.close()
    file = tmp_path / FILE
    damaged = file.read_bytes().replace(b'"logprobs":"', b'"logprobs":"!"'[:-1])
    file.write_bytes(damaged)
    with pytest.raises(StoreCorrupt, match=r"answers.jsonl, line 1: no answer that can be read"):
        AnswerBook(tmp_path)
    assert file.read_bytes() == damaged


def test_no_secret_is_written(tmp_path: Path) -> None:
    book = AnswerBook(tmp_path, secrets=("sk-0123456789",))
    book.keep("b8", 0, an_answer("key = 'sk-0123456789'"))
    book.close()
    assert b"sk-0123456789" not in (tmp_path / FILE).read_bytes()
