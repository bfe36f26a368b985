"""The codec reads what the standard allows, for every chunking."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
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


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_arbitrary_bytes_never_raise_and_never_depend_on_the_chunking(chunks):
    """Garbage gives the same payloads whole or cut, and no exception."""
    decoder = sse.Decoder()
    cut = [*(payload for chunk in chunks for payload in decoder.feed(chunk)), *decoder.end()]
    assert cut == read(b"".join(chunks), [])


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
