"""What the answers of one backend teach about its models: their speed, how dense prompts are, what thoughts take."""

from __future__ import annotations

from typing import Literal

from proxy.speeds import SMOOTHING, Speed, smoothed
from proxy.thoughts import Thoughts

_LEAVES_SLOW = 1.25
"""A slow model counts as slow until it is so much faster than the limit: one near it would change with each answer, and
with it the effort of new conversations."""
_DENSITY_TOKENS = 200
"""A prompt of fewer is mostly the template's own text, and tells nothing about how dense others are."""
_DENSITIES = (1.5, 6.0)
_BYTES_PER_TOKEN = 10 / 3
_SAFE = 0.9
"""Prompts are taken for this much denser than they were seen or are assumed to be."""


class Learned:
    """The experience with one backend, by the upstream name of the model."""

    def __init__(self, slow: bool | Literal["auto"], slow_below: float) -> None:
        """`slow` is the setting, `slow_below` in tokens a second."""
        self._setting = slow
        self._limit = slow_below
        self._speeds: dict[str, Speed] = {}
        self._slow: dict[str, bool] = {}
        self._densities: dict[str, float] = {}
        self.thoughts = Thoughts()

    def speed(self, model: str) -> Speed:
        """What was measured so far, smoothed."""
        return self._speeds.get(model, Speed())

    def measured_as(self, model: str, *, alone: bool) -> str:
        """The name under which there is a record of a model: another than its own where it is `alone` on its server,
        which answers to any name."""
        return model if model in self._speeds or not alone else next(reversed(self._speeds), model)

    def speed_is(self, model: str, speed: Speed) -> None:
        """The record of earlier runs."""
        self._speeds[model] = speed
        self._judge(model)

    def took(self, model: str, seen: Speed) -> None:
        """Take the speed of an answer into the record."""
        if any(seen):
            self.speed_is(model, smoothed(self._speeds.get(model), seen))

    def _judge(self, model: str) -> None:
        decode = self._speeds[model].decode
        if decode is not None:
            limit = self._limit * _LEAVES_SLOW if self._slow.get(model) else self._limit
            self._slow[model] = decode < limit

    def slow(self, model: str) -> bool:
        """As configured, or by the measured pace of its answers."""
        return self._slow.get(model, False) if self._setting == "auto" else self._setting

    def bytes_per_token(self, model: str, *, safe: bool = True) -> float:
        """Of prompts, as seen or assumed; on the `safe` side, where a prompt must not be taken for too short."""
        seen = self._densities.get(model, _BYTES_PER_TOKEN)
        return seen * _SAFE if safe else seen

    def read(self, model: str, size: int, tokens: int) -> None:
        """A prompt of so many bytes made so many tokens."""
        if tokens < _DENSITY_TOKENS:
            return
        least, most = _DENSITIES
        seen = min(max(size / tokens, least), most)
        known = self._densities.get(model, seen)
        self._densities[model] = known + SMOOTHING * (seen - known)

    def overflowed(self, model: str, size: int, limit: int | None) -> None:
        """A prompt of so many bytes was too long for the window: the next one like it is not tried first."""
        if limit:
            least, _ = _DENSITIES
            known = self._densities.get(model, _BYTES_PER_TOKEN)
            self._densities[model] = max(min(known, size / limit), least)
