"""Event streams, however their bytes are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddtree.client.exchange import Exchange
from pytest_ddtree.client.sse import split_events

DATA = Path(__file__).parent / "data"


def data_of(body: bytes) -> list[bytes]:
    return split_events(body).data


def test_a_captured_stream_splits_into_its_events() -> None:
    body = (DATA / "tree8w.generate.sse").read_bytes()
    events = split_events(body)
    assert (events.data[-1], events.ends[-1]) == (b"[DONE]", len(body))
    assert all(data.startswith(b"{") for data in events.data[:-1])
    assert events.rest == b""


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_kind_of_line_end_separates_events(end: bytes) -> None:
    body = (DATA / "base.generate.sse").read_bytes()
    assert data_of(body.replace(b"\n", end)) == data_of(body)


@pytest.mark.parametrize(
    ("body", "data"),
    [
        pytest.param(b"data: a\ndata: b\n\n", [b"a\nb"], id="several-data-lines"),
        pytest.param(b": keep-alive\n\ndata: a\n\n", [b"a"], id="comment-event"),
        pytest.param(b": note\ndata: a\n: note\n\n", [b"a"], id="comment-lines"),
        pytest.param(b"event: error\ndata: a\nid: 3\n\n", [b"a"], id="other-fields"),
        pytest.param(b"data:a\n\n", [b"a"], id="no-space"),
        pytest.param(b"data:  a\n\n", [b" a"], id="only-one-space-goes"),
        pytest.param(b"\n\n\ndata: a\n\n\n\n", [b"a"], id="more-blank-lines"),
        pytest.param(b"\xef\xbb\xbfdata: a\n\n", [b"a"], id="byte-order-mark"),
        pytest.param(b"data: a\r\n\r\ndata: b\n\n", [b"a", b"b"], id="mixed-line-ends"),
        pytest.param(b"event: ping\n\n", [], id="no-data"),
        pytest.param(b"data\n\n", [b""], id="field-without-colon"),
    ],
)
def test_a_stream_means_what_the_standard_says(body: bytes, data: list[bytes]) -> None:
    assert data_of(body) == data


def test_an_event_without_its_blank_line_is_no_event() -> None:
    assert split_events(b'data: a\n\ndata: {"cut": tr') == ([b"a"], [9], b'data: {"cut": tr')


def test_a_lone_crlf_does_not_end_an_event() -> None:
    assert split_events(b"data: a\r\ndata: b\r\n") == ([], [], b"data: a\r\ndata: b\r\n")


line = st.binary(max_size=12).filter(lambda data: not set(data) & {10, 13})


@given(st.lists(st.lists(line, min_size=1, max_size=3), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_what_is_written_is_read_back(events: list[list[bytes]], end: bytes) -> None:
    body = b"".join(b"".join(b"data: " + part + end for part in parts) + end for parts in events)
    assert data_of(body) == [b"\n".join(parts) for parts in events]


@given(st.lists(line, min_size=1, max_size=6), st.binary(max_size=8))
def test_the_short_cut_for_plain_streams_changes_nothing(parts: list[bytes], tail: bytes) -> None:
    body = b"".join(b"data: " + part + b"\n\n" for part in parts) + tail
    by_lines = split_events(b": a comment\n" + body)
    assert split_events(body) == (by_lines.data, [end - 12 for end in by_lines.ends], by_lines.rest)


@given(st.binary(max_size=60))
def test_no_bytes_are_lost_or_read_twice(body: bytes) -> None:
    data, ends, rest = split_events(body)
    assert len(data) == len(ends)
    assert ends == sorted(set(ends))
    assert not ends or ends[-1] <= len(body) - len(rest)
    assert body.endswith(rest)


@given(st.lists(st.integers(0, 40), max_size=8), st.lists(st.integers(1, 40), max_size=8, unique=True))
def test_an_event_arrives_with_the_read_that_completes_it(sizes: list[int], ends: list[int]) -> None:
    arrivals, received = [], 0
    for index, size in enumerate(sizes):
        if size:
            received += size
            arrivals.append((100 + index, received))
    exchange = Exchange(sent_ns=0, end_ns=10_000, arrivals=arrivals)
    for end, at in zip(sorted(ends), exchange.arrivals_of(sorted(ends)), strict=True):
        assert at == next((when for when, total in arrivals if total >= end), 10_000)
