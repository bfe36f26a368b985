"""Hostile bytes against what reads backends' answers: `make fuzz SECONDS=60`.

Each target takes bytes and raises when a rule is broken. The bytes are the transcripts of `tests/transcripts`, changed
at random. What fails is made smaller, printed with its bytes, and the exit code is 1. Once more:

    python tests/fuzz.py --target splitter --bytes "b'...'"
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import json
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cutting import cut
from test_splitter import FORMS, reference, split, trimmed, without_end
from test_sse import HOSTILE, read
from test_sse import reference as read_as_told
from test_transcripts import TRANSCRIPTS

from proxy import calls
from proxy.dialects import DIALECTS
from proxy.errors import UpstreamError
from proxy.events import Event, count_of
from proxy.families import load
from proxy.fold import Fold
from proxy.render import View
from proxy.shape import Shaper, Thinking

Target = Callable[[bytes], None]
DIALECT = DIALECTS["openai"]
FAMILIES = [load().named(name) for name in load().names]
MODES = [Thinking(tags=mode) for mode in ("auto", "parse", "parse-prefilled", "off")]
SHOWN: list[Any] = ["reasoning_content", "reasoning", "both", "think_tags", "hidden"]
JSONS = [b"null", b"true", b"-1", b"1e999", b"[]", b"{}", b'""', b'"\\ud83d"', b"9" * 30, b"0.5", b'{"a":', b"\xff"]
NAMES = """choices delta message content reasoning reasoning_content reasoning_details tool_calls index id type function
name arguments finish_reason usage prompt_tokens completion_tokens total_tokens error custom text role timings"""
TOKENS = [
    *JSONS,
    *HOSTILE,
    *(f'"{name}"'.encode() for name in NAMES.split()),
    *(mark.encode() for form in FORMS.values() for mark in form.marks),
]
LEFT_OUT = object()
INDEXES: list[Any] = [0, 1, 2, 7, "0", "1", -1, None, True, 1.5, [], LEFT_OUT]
WORDS: list[Any] = ["a", "b", "c", "", None, 3, {}, LEFT_OUT]
ARGUMENTS: list[Any] = ["{", "}", "{}", '{"a":1}', '{"b', '":2}', " ", "", "x", None, {}, {"a": 1}, [], 5, LEFT_OUT]
CORPUS = [data for one in TRANSCRIPTS.values() for data in (one.stream, one.whole)]


def splitter(data: bytes) -> None:
    """For one family's mark-up, no cut changes thought, text or end; and all is as the rules tell."""
    form = [*FORMS.values()][data[0] % len(FORMS)] if data else FORMS["hard"]
    opened, places = data[1:2] > b"\x7f", [7 * byte for byte in data[2:8]]
    text = data[8:].decode("utf-8", "replace")
    thought, said = reference(text, opened, *form[:3])
    assert split([text], opened, *form[:3]) == (thought, said)
    assert split(list(text), opened, *form[:3]) == (thought, said)
    assert split(cut(text, places), opened, *form[:3]) == (thought, said)
    if form.ends:
        expected = without_end(text, form.ends)
        assert trimmed([text], form.ends) == trimmed(list(text), form.ends) == expected
        assert trimmed(cut(text, places), form.ends) == expected


def decoder(data: bytes) -> None:
    """No cut changes the payloads, and they are those that the standard tells."""
    places, stream = list(data[:6]), data[6:]
    expected = read_as_told(stream)
    assert read(stream, []) == expected
    assert read(stream, places) == expected
    assert read(stream, list(range(len(stream)))) == expected


def decode(data: bytes) -> None:
    """An answer is refused as the backend's fault, or is read into values of the right types."""
    for whole in (False, True):
        for payload in [data, *read(data, [])]:
            with contextlib.suppress(UpstreamError):
                well_formed(DIALECT.decode(payload, whole=whole))


def well_formed(event: Event) -> None:
    """What the rest of the product relies on."""
    for part in event.parts:
        assert type(part.choice) is int
        assert type(part.role) is bool
        assert isinstance(part.text, str)
        assert isinstance(part.reasoning, str)
        assert isinstance(part.finish, str | None)
        assert part.finish != ""
        assert all(isinstance(entry, dict) for entry in (*part.calls, *part.details))
    assert isinstance(event.error, dict | None)
    if event.usage is not None:
        told = event.usage
        assert all(each is None or count_of(each) == each for each in (told.prompt, told.completion, told.reasoning))


def fragments_of(data: bytes) -> list[dict[str, Any]]:
    """The fragments of tool calls in a stream."""
    found: list[dict[str, Any]] = []
    for payload in read(data, []):
        with contextlib.suppress(UpstreamError):
            found += itertools.chain.from_iterable(part.calls for part in DIALECT.decode(payload).parts)
    return found


def built(data: bytes) -> list[dict[str, Any]]:
    """Fragments that the bytes choose, two bytes each, from what engines write and from what none should."""
    found: list[dict[str, Any]] = []
    for first, second in zip(data[::2], data[1::2], strict=False):
        function = {"name": WORDS[second % len(WORDS)], "arguments": ARGUMENTS[second // 8 % len(ARGUMENTS)]}
        fields = {"index": INDEXES[first % len(INDEXES)], "id": WORDS[first // 16 % len(WORDS)]}
        fields["function"] = {name: value for name, value in function.items() if value is not LEFT_OUT}
        found.append({name: value for name, value in fields.items() if value is not LEFT_OUT})
    return found


def tool_calls(data: bytes) -> None:
    """Calls leave strict: each opened once and in order, with id, type and name, then arguments alone."""
    strictly(fragments_of(data), cut=bool(data) and data[-1] & 1 == 1)
    strictly(built(data[:200]), cut=False)


def strictly(fragments: list[dict[str, Any]], *, cut: bool) -> None:
    """What leaves of these fragments."""
    numbers = itertools.count()
    strict = calls.Calls(lambda: f"new_{next(numbers)}")
    left = [piece for fragment in fragments for piece in strict.take([fragment])]
    left += strict.end(cut=cut)
    opened = 0
    for piece in left:
        if piece.get("type") not in (None, "", "function") or "custom" in piece:
            continue  # passes as it came
        function = piece["function"]
        assert isinstance(function["arguments"], str)
        if piece["index"] == opened:
            opened += 1
            assert (piece["type"], bool(piece["id"])) == ("function", True)
            assert isinstance(piece["id"], str)
            assert isinstance(function["name"], str)
        else:
            assert piece["index"] == opened - 1  # one behind the other
            assert not {"id", "type"} & piece.keys()
            assert "name" not in function
    assert not strict.end(cut=False)


def relay(data: bytes) -> None:
    """A stream is shaped, folded and shown without a fault; what leaves is what was folded, and JSON.

    But for raw control characters in fields that nobody reads: looking for them would cost time for each event.
    """
    head, stream = data[:4].ljust(4, b"\0"), data[4:]
    family, mode = FAMILIES[head[0] % len(FAMILIES)], MODES[head[1] % len(MODES)]
    shaper = Shaper(mode, family, filler="(none)" if head[2] & 1 else "", new_id=lambda: "call_new")
    view, fold, sent = View(SHOWN[head[3] % len(SHOWN)], include_usage=bool(head[2] & 2)), Fold(), b""
    for payload in read(stream, []):
        try:
            event = DIALECT.decode(payload)
        except UpstreamError:
            continue
        shaper.apply(event)
        fold.add(event)
        if event.error is not None:
            break
        sent += view.event(event)
    rest = Event(b"", shaper.rest())
    fold.add(rest)
    sent += view.rest(rest.parts) + view.close(fold)
    for payload in read_as_told(sent):
        assert payload == b"[DONE]" or isinstance(json.loads(payload, strict=False), dict)
    whole(data)


def whole(data: bytes) -> None:
    """A whole answer goes the same way."""
    family, mode = FAMILIES[len(data) % len(FAMILIES)], MODES[len(data) % len(MODES)]
    with contextlib.suppress(UpstreamError):
        event = DIALECT.decode(data, whole=True)
        Shaper(mode, family, filler="", new_id=lambda: "call_new").apply(event, whole=True)
        fold = Fold()
        fold.add(event)
        if event.error is None:
            shown = View("both", include_usage=True).whole(event)
            assert isinstance(json.loads(shown, strict=False), dict)


TARGETS: dict[str, Target] = {
    "splitter": splitter,
    "calls": tool_calls,
    "sse": decoder,
    "decode": decode,
    "relay": relay,
}


def seeds(target: str) -> list[bytes]:
    """What the changes begin with."""
    if target == "splitter":
        fronts = [bytes([number, opened]) + bytes(6) for number in range(len(FORMS)) for opened in (0, 255)]
        return [front + answer for front, answer in itertools.product(fronts, map(written, FORMS))]
    return [bytes({"sse": 6, "relay": 4}.get(target, 0)) + data for data in CORPUS]


def written(name: str) -> bytes:
    """An answer in a family's own mark-up."""
    form = FORMS[name]
    (opener, closer), *_ = form.tags
    parts = [opener, "I look. ", closer, *form.answers[:1], "It is < so.", *form.calls[:1], *form.ends]
    return "".join(parts).encode()


def mutated(chance: random.Random, known: Sequence[bytes]) -> bytes:
    """One of the known inputs, changed in a few places."""
    data = bytearray(chance.choice(known))
    for _ in range(chance.choice((1, 1, 2, 3, 5, 9))):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((0, 1, 1, 2, 4, 8, 32)))
        match chance.randrange(7):
            case 0:
                data[at:end] = b""
            case 1:
                data[at:end] = chance.choice(TOKENS)
            case 2:
                data[at:at] = data[at : at + chance.randrange(1, 200)]
            case 3:
                data[at:end] = chance.randbytes(end - at)
            case 4:
                other = chance.choice(known)
                start = chance.randrange(len(other) + 1)
                data[at:end] = other[start : start + chance.randrange(1, 300)]
            case 5:  # a value of the JSON
                found = data.find(b":", at)
                if found >= 0:
                    data[found + 1 : found + 1 + chance.randrange(6)] = chance.choice(JSONS)
            case _:
                del data[at:]
    return bytes(data[:20_000])


def fault(target: Target, data: bytes) -> str:
    """Where and how it fails; empty where it does not."""
    try:
        target(data)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    return ""


def smaller(target: Target, data: bytes, kind: str, seconds: float = 5.0) -> bytes:
    """A smaller input that fails in the same way."""
    end, size = time.monotonic() + seconds, len(data) // 2
    while size and time.monotonic() < end:
        at = 0
        while at < len(data) and time.monotonic() < end:
            shorter = data[:at] + data[at + size :]
            if fault(target, shorter) == kind:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def run(seconds: float, seed: int, names: Sequence[str]) -> int:
    """Play all targets in turn for so long; gives the number of different faults."""
    chance, end = random.Random(seed), time.monotonic() + seconds  # noqa: S311 - no secret
    known = {name: seeds(name) for name in names}
    faults: dict[tuple[str, str], bytes] = {}
    played = dict.fromkeys(names, 0)
    for name in names:
        for data in known[name]:
            if kind := fault(TARGETS[name], data):
                faults.setdefault((name, kind), data)
    while time.monotonic() < end:
        name = chance.choice(names)
        for _ in range(20):
            data = mutated(chance, known[name])
            played[name] += 1
            if kind := fault(TARGETS[name], data):
                faults.setdefault((name, kind), data)
    for (name, kind), data in faults.items():
        shortest = smaller(TARGETS[name], data, kind)
        sys.stdout.write(f"\n{name}: {kind}\n  --target {name} --bytes {repr(shortest)!a}\n")
    told = ", ".join(f"{name} {count:,}" for name, count in played.items())
    sys.stdout.write(f"{len(faults)} faults; seed {seed}; inputs: {told}\n")
    return len(faults)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="of the changes; without it, another each time")
    parser.add_argument("--target", choices=TARGETS, help="only this one")
    parser.add_argument("--bytes", type=ast.literal_eval, help="play this input alone, with its traceback")
    options = parser.parse_args()
    if options.bytes is not None:
        TARGETS[options.target or parser.error("--bytes needs a --target")](options.bytes)
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    return 1 if run(options.seconds, seed, [options.target] if options.target else [*TARGETS]) else 0


if __name__ == "__main__":
    sys.exit(main())
