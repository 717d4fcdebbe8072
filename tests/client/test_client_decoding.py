"""All events of a stream decoded at once mean what each of them means alone."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.generate import decode
from pytest_ddtree.client.records import Chunk, Record, Request, Sampling
from pytest_ddtree.client.transport.http1 import Arrivals

REQUEST = Request(sampling=Sampling(max_new_tokens=99), input_ids=(1,))
BAD = [
    b'{"error": {"message": "full"}}',
    b"null",
    b"[]",
    b"3",
    b'{"meta_info": {"completion_tokens": 9}',
    b"}",
    b"{}",
    b"x",
]
BAD += [b'{"text": "t", "meta_info": {}}', b'{"text": "t", "meta_info": {"completion_tokens": null}}']


def record_of(events: list[bytes], end_ns: int = 10**6) -> Record:
    arrivals, parts = Arrivals(), [b"data: " + event + b"\n\n" for event in events]
    for number in range(len(parts)):
        arrivals.times.append(number + 1)
        arrivals.sizes.append(sum(map(len, parts[: number + 1])))
    exchange = Exchange(sent_ns=0, end_ns=end_ns, status=200, body=b"".join(parts), arrivals=arrivals)
    return decode(REQUEST, exchange, stream=True)


def stream(texts: list[str]) -> list[bytes]:
    """An incremental stream, one token a text."""
    values = [
        {"text": text, "output_ids": [7], "meta_info": {"completion_tokens": number, "finish_reason": None}}
        for number, text in enumerate(texts, 1)
    ]
    values[-1]["meta_info"]["finish_reason"] = {"type": "length", "length": 0}  # type: ignore[index]
    return [json.dumps(value).encode() for value in values]


texts = st.lists(
    st.sampled_from(["a", '"error"', "error", "},{", "\n\ndata: ", "\u2028", ""]), min_size=1, max_size=8
)


@given(texts)
def test_whatever_a_text_holds_it_comes_back(said: list[str]) -> None:
    record = record_of(stream(said))
    assert record.text == "".join(said)
    assert record.output_ids == (7,) * len(said)
    assert record.chunks == tuple(Chunk(number, number) for number in range(1, len(said) + 1))


@given(texts, st.data(), st.sampled_from(BAD))
def test_what_came_before_an_event_that_is_no_good_is_kept_and_nothing_after_it(
    said: list[str], data: st.DataObject, bad: bytes
) -> None:
    events = stream(said)
    place = data.draw(st.integers(0, len(events) - 1))
    record = record_of([*events[:place], bad, *events[place:]])
    assert record.outcome == ("error_event" if b'"error"' in bad else "malformed")
    assert record.text == "".join(said[:place])
    assert [chunk.tokens for chunk in record.chunks] == list(range(1, place + 1))


@given(texts, st.data())
def test_an_event_that_is_cut_in_two_is_no_good(said: list[str], data: st.DataObject) -> None:
    events = stream(said)
    place = data.draw(st.integers(0, len(events) - 1))
    cut = data.draw(st.integers(1, len(events[place]) - 1))
    halves = [events[place][:cut], events[place][cut:]]
    record = record_of([*events[:place], *halves, *events[place + 1 :]])
    assert record.outcome == "malformed"
    assert record.text == "".join(said[:place])
