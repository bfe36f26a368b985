"""Who is calling: the configured client, the end user behind it, and the conversation that it names."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from proxy import config, keys
from proxy.errors import Unauthorized
from proxy.render import Shown


@dataclass(frozen=True, slots=True)
class Caller:
    """`credential` separates callers from one another and is never logged; `end_user` and `conversation` are hashes."""

    client: str | None
    credential: str
    end_user: str | None
    conversation: str | None
    shown: Shown

    @property
    def scope(self) -> str:
        """What tells callers apart; never logged."""
        return f"{self.credential}\0{self.end_user or ''}"


@dataclass(frozen=True, slots=True)
class Onlooker:
    """Whoever looks at what was spent: at the rows of one client, or, with None, at those of all."""

    client: str | None


class Callers:
    """Finds the caller of a request. Without configured clients everybody may call, and the key tells them apart."""

    def __init__(self, settings: config.Settings, salt: bytes) -> None:
        self._settings = settings
        self._salt = salt
        self._by_key = {_digest(client.key): name for name, client in settings.clients.items()}

    def of(self, headers: Mapping[str, str]) -> Caller:
        """The caller by its `Authorization`. Raises Unauthorized where clients are configured and none fits."""
        defaults = self._settings.defaults
        name = self._client(headers.get("authorization", "")) if self._by_key else None
        return Caller(
            client=name,
            credential=f"client {name}" if name else " ".join(keys_in(headers)),
            end_user=self._hash(headers, "end-user", defaults.end_user_headers),
            conversation=self._hash(headers, "conversation", defaults.conversation_headers),
            shown=(self._settings.clients[name].reasoning if name else None) or defaults.client_reasoning,
        )

    def onlooker(self, headers: Mapping[str, str]) -> Onlooker:
        """Who looks, by a client's key as `Bearer`, or as the password of `Basic`, for which browsers ask. Raises
        Unauthorized where clients are configured and none fits."""
        if not self._by_key:
            return Onlooker(None)
        authorization = headers.get("authorization", "")
        scheme, _, rest = authorization.partition(" ")
        name = self._client(f"Bearer {_password(rest)}" if scheme.lower() == "basic" else authorization)
        return Onlooker(None if self._settings.clients[name].spend == "all" else name)

    def _client(self, authorization: str) -> str:
        scheme, _, key = authorization.partition(" ")
        # Looked up by digest, so that the time it takes tells nothing about the keys.
        name = self._by_key.get(_digest(key.strip())) if scheme.lower() == "bearer" else None
        if name is None:
            what = "this key belongs to no configured client" if authorization else "no key was sent"
            raise Unauthorized(f"{what}; send `Authorization: Bearer KEY` with the key of a [clients] table")
        return name

    def _hash(self, headers: Mapping[str, str], kind: str, names: tuple[str, ...] | list[str]) -> str | None:
        value = next((value for name in names if (value := headers.get(name.lower()))), None)
        return keys.hashed(self._salt, kind, value) if value else None


def keys_in(headers: Mapping[str, str]) -> list[str]:
    """The keys that a caller sent, under the names that clients use, without their scheme."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bare = key.strip() or (scheme if scheme.lower() not in ("bearer", "basic") else "")
    return [found for found in (bare, headers.get("x-api-key", ""), headers.get("api-key", "")) if found]


def _password(pair: str) -> str:
    """That of the value of `Basic`; empty where it cannot be read."""
    try:
        return base64.b64decode(pair.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
