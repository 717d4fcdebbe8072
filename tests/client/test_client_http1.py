"""HTTP responses, however their bytes are cut."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import HEAD, LAST_CHUNK, chunk, generate_events

from pytest_ddtree.client import generate
from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.records import Record, Request, Sampling
from pytest_ddtree.client.transport.http1 import BadResponse, ResponseReader

EVENTS = generate_events(
    [[5], [6, 7], [8]], finish={"type": "length", "length": 4}, meta={"spec_verify_ct": 2}
)
WIRE = HEAD + b"".join(map(chunk, EVENTS)) + chunk(b"data: [DONE]\n\n") + LAST_CHUNK
CAPTURE = (Path(__file__).parent / "data" / "tree8w.generate.sse").read_bytes()


def read(wire: bytes, cuts: list[int]) -> ResponseReader:
    reader = ResponseReader()
    edges = [0, *sorted(cuts), len(wire)]
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        if start < stop:
            reader.feed(number, wire[start:stop])
    return reader


def record_of(reader: ResponseReader, tokens: int) -> Record:
    exchange = Exchange(
        sent_ns=0, end_ns=10**9, status=reader.status, body=b"".join(reader.parts), arrivals=reader.arrivals
    )
    request = Request(sampling=Sampling(max_new_tokens=tokens), input_ids=(1, 2, 3, 4))
    return generate.decode(request, exchange, stream=True)


def test_a_response_cut_at_every_position_gives_the_same_record() -> None:
    for cut in range(len(WIRE) + 1):
        reader = read(WIRE, [cut])
        record = record_of(reader, 4)
        assert reader.complete
        assert reader.keep_alive
        assert (record.outcome, record.output_ids, record.text) == ("ok", (5, 6, 7, 8), "t5 t6 t7 t8 ")
        assert [one.tokens for one in record.chunks] == [1, 3, 4]
        assert record.accept_length == 2.0


def test_a_response_that_comes_byte_by_byte_gives_the_same_record() -> None:
    record = record_of(read(WIRE, list(range(len(WIRE)))), 4)
    assert record.ok
    assert record.coalesced == 0
    assert record.output_ids == (5, 6, 7, 8)


def test_the_arrival_of_a_chunk_is_that_of_the_read_that_completes_its_event() -> None:
    first_event = len(HEAD) + len(chunk(EVENTS[0]))
    # The last bytes of a chunk only frame it: the event itself is complete two bytes earlier.
    for cut, arrival in ((first_event - 3, 1), (first_event - 2, 0), (first_event, 0)):
        assert record_of(read(WIRE, [cut]), 4).chunks[0].at_ns == arrival


@given(st.lists(st.integers(0, len(CAPTURE)), max_size=20), st.lists(st.integers(0, 3000), max_size=20))
def test_chunk_borders_and_reads_need_not_be_events(borders: list[int], cuts: list[int]) -> None:
    edges = sorted({0, len(CAPTURE), *borders})
    parts = [CAPTURE[start:stop] for start, stop in itertools.pairwise(edges)]
    wire = HEAD + b"".join(map(chunk, parts)) + LAST_CHUNK
    record = record_of(read(wire, [cut for cut in cuts if cut < len(wire)]), 16)
    assert record.ok
    assert record.completion_tokens == len(record.output_ids) == 16
    assert record.verify_steps == 8
    times = [one.at_ns for one in record.chunks]
    assert times == sorted(times)


def test_text_that_is_cut_inside_a_character_is_whole_again() -> None:
    events = generate_events([[5]], finish={"type": "stop", "matched": 5})
    body = events[0].replace(b"t5 ", "é€😀".encode())
    wire = HEAD + chunk(body) + LAST_CHUNK
    for cut in range(len(wire)):
        assert record_of(read(wire, [cut]), 4).text == "é€😀"


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", b"abc", id="content-length"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"", id="empty"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na", b"a", id="interim"
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=1\r\nabc\r\n0\r\nt: 1\r\n\r\n",
            b"abc",
            id="extension-and-trailer",
        ),
    ],
)
def test_every_framing_is_understood_at_every_cut(wire: bytes, body: bytes) -> None:
    for cut in range(len(wire) + 1):
        reader = read(wire, [cut])
        assert reader.complete
        assert (reader.status, b"".join(reader.parts)) == (200, body)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = read(b"HTTP/1.1 200 OK\r\n\r\nabc", [])
    assert not reader.complete
    assert reader.feed_eof()
    assert (b"".join(reader.parts), reader.keep_alive) == (b"abc", False)


@pytest.mark.parametrize("size", range(1, len(WIRE) - 1, 37))
def test_a_framed_body_that_breaks_off_is_not_complete(size: int) -> None:
    reader = read(WIRE[:size], [])
    assert not reader.feed_eof()


SWITCHES = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"


@pytest.mark.parametrize(
    "wire", [b"nonsense\r\n\r\n", b"HTTP/1.1 2x0 OK\r\n\r\n", HEAD + b"zz\r\nabc", SWITCHES]
)
def test_bytes_that_are_no_http_are_refused(wire: bytes) -> None:
    with pytest.raises(BadResponse):
        read(wire, [])


def test_bytes_after_the_response_make_the_connection_useless() -> None:
    assert read(WIRE + b"HTTP/1.1 200 OK\r\n", [len(WIRE)]).surplus


def test_a_second_response_in_one_read_does_not_touch_the_first() -> None:
    whole = read(WIRE, [])
    reader = read(WIRE + b"HTTP/1.1 500 X\r\nx-second: 1\r\ncontent-length: 1\r\n\r\nb", [])
    assert (reader.status, reader.headers, reader.parts) == (200, whole.headers, whole.parts)
    assert reader.surplus
