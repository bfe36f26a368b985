"""What an answer is billed by: the hour of its backend, the user's own table, or what hosted services ask.

The prices of services come with `genai-prices`, as data inside the package, and nothing is fetched. It takes a third of
a second to load: `warm` does it ahead, in a thread, where a backend is such a service.
"""

from __future__ import annotations

import difflib
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from proxy.config import Settings
from proxy.dialects import DIALECTS
from proxy.errors import InvalidRequest
from proxy.prices import Price
from proxy.probes import hosted

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo

OWN = "config"
REPORTED = "reported"
_NEAREST = 3


@dataclass(frozen=True, slots=True)
class Tariff:
    """A price by tokens, and where it is from: `config`, or `genai-prices` with the version of its data."""

    price: Price
    source: str


def by_hour(usd: Decimal) -> str:
    """The source of a cost by time."""
    return f"{usd.normalize():f} USD/hour"


class Tariffs:
    """The tariffs of the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loaded = threading.Event()
        self._services = {name: _service(table.engine, table.base) for name, table in settings.backends.items()}

    def warm(self) -> None:
        """Load the prices of services ahead, in the background, where one of them will be asked for."""
        if any(self._services.values()):
            threading.Thread(target=self._catalogue, name="prices", daemon=True).start()

    def _catalogue(self) -> Any:
        from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - loads for a third of a second

        found = get_snapshot()
        self._loaded.set()
        return found

    def by_hour(self, backend: str) -> Decimal | None:
        """USD per hour of a backend that is billed by time."""
        table = self._settings.backends.get(backend)
        return table.usd_per_hour if table is not None and table.usd_per_hour else None

    def own(self, model: str, backend: str, upstream: str | None = None) -> Tariff | None:
        """The price in the user's table: of the alias that was asked for, if it leads to this backend, else of one that
        stands for the same model there."""
        tables = self._settings.models
        asked = tables.get(model)
        if asked is not None and asked.price is not None and asked.backend in (None, backend):
            return Tariff(asked.price, OWN)
        for alias, table in tables.items():
            if table.price is not None and table.backend in (None, backend) and (table.upstream or alias) == upstream:
                return Tariff(table.price, OWN)
        return None

    def service(self, model: str, backend: str, at: date, prompt: int = 0, *, wait: bool = True) -> Tariff | None:
        """What the service behind a backend asks for a model on a day, for prompts of so many tokens; without `wait`
        only if that is loaded."""
        provider = self._services.get(backend)
        if not provider or not (wait or self._loaded.is_set()):
            return None
        try:
            _, info = self._catalogue().find_provider_model(model, None, *provider)
        except LookupError:
            return None
        return _tariff(info, at, prompt)

    def of(
        self,
        model: str,
        backend: str,
        at: date | None = None,
        *,
        upstream: str | None = None,
        prompt: int = 0,
        wait: bool = True,
    ) -> Tariff | Decimal | None:
        """What holds for a model at a backend on a day, today where none is named: USD per hour as a number, or a
        tariff; None where nobody knows. For `prompt` and `wait` see `service`."""
        return (
            self.by_hour(backend)
            or self.own(model, backend, upstream or model)
            or self.service(upstream or model, backend, at or datetime.now(UTC).date(), prompt, wait=wait)
        )

    def named(self, model: str) -> Tariff:
        """The price of a model by its name alone: in the user's table, else that of its maker, or of the service named
        before a slash (`openrouter/moonshotai/kimi-k3`). Raises InvalidRequest."""
        own = self._settings.models.get(model)
        if own is not None and own.price is not None:
            return Tariff(own.price, OWN)
        catalogue = self._catalogue()
        provider, _, rest = model.partition("/")
        tries = [(rest, provider)] if rest and any(each.id == provider for each in catalogue.providers) else []
        for name, named in [*tries, (model, None)]:
            try:
                _, info = catalogue.find_provider_model(name, None, named, None)
            except LookupError:
                continue
            if (found := _tariff(info, datetime.now(UTC).date(), 0)) is not None:
                return found
        priced = [name for name, table in self._settings.models.items() if table.price is not None]
        known = sorted({*priced, *(info.id for each in catalogue.providers for info in each.models)})
        near = difflib.get_close_matches(model, known, _NEAREST, cutoff=0.4)
        raise InvalidRequest(
            f"no price is known for the model {model!r}; near it are {', '.join(near) or 'none'}. A [models.NAME] "
            "table with a `price` makes any name known",
            param="compare",
        )


def _service(engine: str, url: str) -> tuple[str | None, str | None] | None:
    """How genai-prices finds the service behind a backend: by its id, or by its address; None where there is none."""
    name = engine if engine != "auto" else hosted(url)
    if name in DIALECTS and DIALECTS[name].prices_of:
        return DIALECTS[name].prices_of, None
    return (None, url) if url.startswith("https://") and engine in ("auto", "openai") else None


def _tariff(info: ModelInfo, at: date, prompt: int) -> Tariff | None:
    """The prices of a day for prompts of a size; None where input or output has none."""
    found = info.get_prices(datetime.combine(at, time(12), UTC))
    values = {name: _per_million(getattr(found, f"{key}_mtok", None), prompt) for name, key in _KINDS.items()}
    if values["input"] is None or values["output"] is None:
        return None
    return Tariff(Price(**values), f"genai-prices {version('genai-prices')}")


_KINDS = {"input": "input", "output": "output", "cached_input": "cache_read", "cache_write": "cache_write"}


def _per_million(price: Any, prompt: int) -> Decimal | None:
    """Some services ask more for all tokens of a request whose prompt is above a limit."""
    if price is None or isinstance(price, Decimal):
        return price
    above = [tier.price for tier in price.tiers if prompt > tier.start]
    found: Decimal = above[-1] if above else price.base
    return found
