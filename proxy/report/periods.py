"""Times as people write them, all in UTC."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from proxy.errors import InvalidRequest

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?")
_AGO = re.compile(r"(\d+)([wdhm])")
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes"}
_ACCEPTED = (
    "Accepted are 2026-11-30, 2026-11, 2026-W48, 2026, 2026-11-30T15:00:00Z, today, yesterday, now, this or last week, "
    "month or year, and 7d, 2w, 24h or 30m for so long ago; all in UTC"
)


def bounds(since: str | None, until: str | None, now: datetime | None = None) -> tuple[str | None, str | None]:
    """Both as RFC 3339: the first moment of `since`, and the first after `until`.

    Raises InvalidRequest where one cannot be read or nothing lies between them.
    """
    now = (now or datetime.now(UTC)).replace(microsecond=0)
    start, end = _span("since", since, now)[0], _span("until", until, now)[1]
    if start and end and start >= end:
        raise InvalidRequest(f"nothing lies between `since` {since!r} and `until` {until!r}", param="until")
    return _rfc3339(start), _rfc3339(end)


def _span(name: str, text: str | None, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Beginning and end of the time that `text` names; a moment is both."""
    if text is None:
        return None, None
    try:
        found = _relative(text.strip().lower().replace("-", " "), now) or _absolute(text.strip())
    except (ValueError, OverflowError):
        found = None  # the 31st of February, or a year that no calendar has
    if found is None:
        raise InvalidRequest(f"`{name}` {text!r} is no time. {_ACCEPTED}", param=name)
    return found


def _relative(word: str, now: datetime) -> tuple[datetime, datetime] | None:
    today = now.replace(hour=0, minute=0, second=0)
    if word == "now":
        return now, now
    if word in ("today", "yesterday"):
        start = today - timedelta(days=word == "yesterday")
        return start, start + timedelta(days=1)
    if ago := _AGO.fullmatch(word):
        moment = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return moment, moment
    which, _, unit = word.partition(" ")
    if which not in ("this", "last") or unit not in ("week", "month", "year"):
        return None
    begins = {"week": today - timedelta(days=today.weekday()), "month": today.replace(day=1)}
    start = begins.get(unit, today.replace(month=1, day=1))
    if which == "this":
        return start, _after(start, unit)
    before = start - timedelta(days=1)
    earlier = {"week": start - timedelta(days=7), "month": before.replace(day=1)}
    return earlier.get(unit, before.replace(month=1, day=1)), start


def _after(start: datetime, unit: str) -> datetime:
    """The first moment after a week, a month or a year that begins so."""
    if unit == "week":
        return start + timedelta(days=7)
    if unit == "month":
        return (start + timedelta(days=31)).replace(day=1)
    return start.replace(year=start.year + 1)


def _absolute(word: str) -> tuple[datetime, datetime] | None:
    if re.fullmatch(r"\d{4}-\d\d-\d\d", word):
        start = datetime.fromisoformat(word).replace(tzinfo=UTC)
        return start, start + timedelta(days=1)
    if re.fullmatch(r"\d{4}-\d\d", word):
        start = datetime.fromisoformat(f"{word}-01").replace(tzinfo=UTC)
        return start, _after(start, "month")
    if re.fullmatch(r"\d{4}-?[Ww]\d\d", word):
        start = datetime.fromisoformat(f"{word[:4]}-W{word[-2:]}-1").replace(tzinfo=UTC)
        return start, _after(start, "week")
    if re.fullmatch(r"\d{4}", word):
        start = datetime(int(word), 1, 1, tzinfo=UTC)
        return start, _after(start, "year")
    if _TIME.fullmatch(word.upper()):
        moment = datetime.fromisoformat(word.upper())
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment, moment
    return None


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.replace(tzinfo=None).isoformat()}Z"
