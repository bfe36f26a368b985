"""The codec reads what the standard allows, for every chunking."""

from __future__ import annotations

import json
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import sse
from proxy.errors import UpstreamError

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


def read(stream: bytes, cuts: list[int]) -> list[bytes]:
    """The payloads of a stream that arrives cut at these places."""
    decoder = sse.Decoder()
    places = sorted({cut % (len(stream) + 1) for cut in cuts})
    pieces = [stream[start:end] for start, end in zip([0, *places], [*places, len(stream)], strict=True)]
    return [*(payload for piece in pieces for payload in decoder.feed(piece)), *decoder.end()]


def reference(stream: bytes) -> list[bytes]:
    """The payloads of a whole stream, read line by line as the standard tells, an unfinished event included."""
    payloads: list[bytes] = []
    data: list[bytes] = []
    for line in [*re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf")), b""]:
        name, _, value = line.partition(b":")
        if name == b"data":
            data.append(value.removeprefix(b" "))
        elif not line and data:
            payloads.append(b" ".join(data))
            data = []
    return payloads


HOSTILE = [
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\r\r",
    b"\r\n\r\n",
    b"\n\r",
    b"data: ",
    b"data:",
    b"data",
    b"data:  ",
    b"DATA: ",
    b" data: ",
    b"database: ",
    b": ping",
    b":",
    b"::",
    b"event: message",  # an event named `error` is read as one: see test_refusals
    b"id: \0",
    b"retry: x",
    b"\xef\xbb\xbf",
    b"\xef",
    b"\xbb",
    b"\0",
    b"x",
    b"{}",
    b"[DONE]",
    b"\x85",
    b"\xe2\x80\xa8",
    b"\x0c",
    b"\x0b",
]
"""What streams are made of, and what only looks like it."""


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(HOSTILE), max_size=16).map(b"".join), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_mixture_is_read_as_the_standard_tells(stream, cuts):
    """Line ends of all kinds, comments, marks and NULs in any order: whole, in single bytes, and cut anywhere."""
    expected = reference(stream)
    assert read(stream, []) == expected
    assert read(stream, list(range(len(stream)))) == expected
    assert read(stream, cuts) == expected


@settings(deadline=None)
@given(
    values=st.lists(st.dictionaries(TEXTS, TEXTS, max_size=3), max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    noise=st.sampled_from(["", ": ping", "event: message", "id: 7", "retry: 10"]),
    blank=st.booleans(),
    cuts=st.lists(st.integers(0, 10_000), max_size=8),
)
def test_every_chunking_and_line_end_gives_the_same_payloads(values, end, noise, blank, cuts):
    """Payloads depend on neither the cuts of the network nor CR, LF or CRLF, comments and other fields."""
    lines = [json.dumps(value, ensure_ascii=False) for value in values]
    stream = "".join(
        (noise + end if noise else "") + "data:" + (" " if blank else "") + line + end + end for line in lines
    )
    assert read(stream.encode(), cuts) == [line.encode() for line in lines]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=20))
def test_arbitrary_bytes_never_raise_and_never_depend_on_the_chunking(chunks):
    """Garbage gives the same payloads whole or cut, and no exception."""
    decoder = sse.Decoder()
    cut = [*(payload for chunk in chunks for payload in decoder.feed(chunk)), *decoder.end()]
    assert cut == read(b"".join(chunks), []) == reference(b"".join(chunks))


def test_separators_inside_json_strings_do_not_end_a_line():
    """U+2028, U+0085 and form feed are text, though `splitlines` ends a line there."""
    payload = json.dumps({"a": "x\u2028y\u0085z\f"}, ensure_ascii=False).encode()
    assert read(sse.encode(payload), [3]) == [payload]


def test_a_payload_of_several_lines_leaves_on_one():
    """`data` lines of one event are joined by a blank, so that the payload fits on one line again."""
    assert read(b'data: {"a":\ndata: 1}\n\n', []) == [b'{"a": 1}']


def test_a_last_event_without_its_empty_line_is_read():
    """A backend that closes right behind `[DONE]` is understood."""
    assert read(b"data: [DONE]", []) == [sse.DONE]
    assert read(b"data: [DONE]\r\n", []) == [sse.DONE]


def test_a_byte_order_mark_is_skipped():
    """The mark may stand at the beginning, also cut in two."""
    assert read(b"\xef\xbb\xbfdata: 1\n\n", [1, 2]) == [b"1"]


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [b"2"]),
        (b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", [b"1"]),
        (b"\xef\xbbdata: 1\n\ndata: 2\n\n", [b"2"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb", []),
    ],
)
def test_only_the_first_mark_is_one(stream, payloads):
    """A second one, one further on and half a one make another field's name of what they stand before."""
    assert read(stream, []) == read(stream, list(range(len(stream)))) == payloads


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"data: a\0b\n\n", [b"a\0b"]),
        (b"\0data: a\n\ndata: b\0\n\n", [b"b\0"]),
        (b"data:\n\ndata\n\ndata: \n\n", [b"", b"", b""]),
        (b": data: 1\n\n:\n\n::\n\n", []),
        (b": ping\ndata: 1\n: pong\ndata: 2\n\n", [b"1 2"]),
        (b"data: 1\r\rdata: 2\r\n\ndata: 3\n\r\ndata: 4\r\n\r", [b"1", b"2", b"3", b"4"]),
        (b"\n\r\n\r\rdata: 1\n\n\n\n\r\ndata: 2", [b"1", b"2"]),
        (b"data: 1\r", [b"1"]),
        (b"data: 1\r\n\r", [b"1"]),
        (b"data: 1\nevent: x", [b"1"]),
        (b"data", [b""]),
        (b"dat", []),
    ],
)
def test_the_odd_ones_one_by_one(stream, payloads):
    """NULs, fields without a value, comments in the middle, line ends that change, and ends that are none."""
    assert reference(stream) == payloads
    assert read(stream, []) == read(stream, list(range(len(stream)))) == payloads


def test_a_line_of_megabytes_is_read_whole_and_in_small_pieces():
    """One event of 8 MB, in one piece and in pieces of 100 bytes, is the same payload."""
    payload = b'{"a":"' + b"x\xe2\x80\xa8y" * 1_600_000 + b'"}'
    stream = b"data: " + payload + b"\r\n\r\n"
    assert (read(stream, []) == [payload], read(stream, list(range(0, len(stream), 100))) == [payload]) == (True, True)


def test_a_stream_in_single_bytes_is_joined_once():
    """Half a million bytes without an end are kept, not copied anew with each byte."""
    decoder = sse.Decoder()
    for byte in [b"d", b"a", b"t", b"a", b":", *[b"x"] * 500_000]:
        assert decoder.feed(byte) == []
    assert decoder.end() == [b"x" * 500_000]


@pytest.mark.parametrize("noise", [b": ping\n\n", b"\r\n", b"event: x\r\r", b"id: 1\n\n"])
def test_a_stream_of_noise_takes_no_memory(noise):
    """Comments and empty lines go as they come, for hours."""
    decoder = sse.Decoder()
    decoder.feed(noise)
    tracemalloc.start()
    try:
        for _ in range(2_000):
            assert decoder.feed(noise) == []
        assert tracemalloc.get_traced_memory()[1] < 5_000
    finally:
        tracemalloc.stop()


def test_an_event_of_endless_lines_is_an_error_too():
    """The limit is of an event, however many lines, comments among them, it has."""
    decoder = sse.Decoder(limit=1000)
    for _ in range(142):
        decoder.feed(b": ping\n")
    with pytest.raises(UpstreamError, match="1000 bytes"):
        decoder.feed(b": ping\n")


def test_the_limit_is_of_one_event():
    """Any number of events below it pass, in pieces of any size."""
    decoder = sse.Decoder(limit=100)
    stream = (b"data: " + b"x" * 80 + b"\n\n") * 50
    found = [payload for at in range(0, len(stream), 7) for payload in decoder.feed(stream[at : at + 7])]
    assert found == [b"x" * 80] * 50


def test_an_endless_event_is_an_error_and_not_memory():
    """An event above the limit raises instead of growing."""
    decoder = sse.Decoder(limit=1000)
    for _ in range(9):
        decoder.feed(b"data: " + b"x" * 100)
    with pytest.raises(UpstreamError, match="1000 bytes"):
        decoder.feed(b"x" * 100)


def test_what_is_encoded_is_decoded():
    """One payload, one event."""
    assert read(sse.encode(b'{"a":1}') + sse.DONE_EVENT, []) == [b'{"a":1}', sse.DONE]
