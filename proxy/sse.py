"""Server-sent events: bytes to payloads and back, for any chunking, without I/O.

Own code because `iter_lines()` of HTTP clients splits at U+2028, U+0085 and form feed, which stand inside JSON strings.
Source: the WHATWG HTML standard, "9.2.6 Interpreting an event stream".
"""

from __future__ import annotations

from proxy.errors import UpstreamError
from proxy.jsons import JsonError, dumps, loads

DONE = b"[DONE]"
EVENT_LIMIT = 64 * 1024 * 1024
"""Bytes of one event; a longer one is a broken backend, not an answer."""

_BOM = b"\xef\xbb\xbf"


class Decoder:
    """Turns the bytes of a stream into the payloads of its `data` fields.

    Comments, `id` and `retry` fields are read and dropped, and `event` too, unless it is an error. A payload of
    several `data` lines is joined by a space, not by a line feed: both are white space to JSON, and a payload is to
    fit on one line when it leaves.
    """

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []  # of the event that is not complete yet
        self._size = 0
        self._last = b""  # its last byte, to see an empty line that was cut in two
        self._after_cr = False
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads that `data` completes, in order. Raises UpstreamError for an event above the limit."""
        if not data:
            return []
        if not self._started:
            data = self._skip_bom(data)
            if not self._started:
                return []
        if self._after_cr or b"\r" in data:
            data = self._only_line_feeds(data)
        if b"\n\n" not in data and not (self._last == b"\n" and data[:1] == b"\n"):
            self._keep(data)
            return []
        *events, rest = b"".join([*self._pieces, data]).split(b"\n\n")
        if self._size + len(data) > self._limit:
            self._check(max(map(len, events)))
        self._pieces, self._size, self._last = [], 0, b""
        self._keep(rest)
        return [payload for event in events if (payload := _payload(event)) is not None]

    def end(self) -> list[bytes]:
        """What is left when the stream ends. A backend that forgets the last empty line still gets its event read."""
        rest, self._pieces, self._size = b"".join(self._pieces), [], 0
        payload = _payload(rest)
        return [] if payload is None else [payload]

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._pieces.append(data)
        self._last = data[-1:]
        self._size += len(data)
        self._check(self._size)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise UpstreamError(f"the backend sent an event of more than {self._limit} bytes")

    def _skip_bom(self, data: bytes) -> bytes:
        data = b"".join([*self._pieces, data])
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._pieces = [data]
            return b""
        self._pieces, self._started = [], True
        return data.removeprefix(_BOM)

    def _only_line_feeds(self, data: bytes) -> bytes:
        """CR, LF and CRLF all end a line. JSON text holds no raw CR, so none of it is harmed."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        self._after_cr = data[-1:] == b"\r" if data else False
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _payload(event: bytes) -> bytes | None:
    """The joined `data` of one event, None where it has none."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines, fails = [], False
    for line in event.split(b"\n"):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            lines.append(b"")
        elif line.startswith(b"event:"):
            fails = line[6:].strip() == b"error"
    if not lines:
        return None
    return _as_error(b" ".join(lines)) if fails else b" ".join(lines)


def _as_error(payload: bytes) -> bytes:
    """The payload of an event named `error`, which tells it by its name alone."""
    try:
        found = loads(payload)
    except JsonError:
        found = payload.decode("utf-8", "replace")
    return payload if isinstance(found, dict) and found.get("error") else dumps({"error": found})


def encode(payload: bytes) -> bytes:
    """One event with one `data` line."""
    return b"data: " + payload + b"\n\n"


DONE_EVENT = encode(DONE)
