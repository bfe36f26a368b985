"""What holds in a running proxy at this moment, for those who watch it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from proxy import config
from proxy.backend import Backend
from proxy.backends import Backends
from proxy.generations import Generations, shown
from proxy.store import Store
from proxy.telemetry import Sample, states


def backends(found: Backends) -> list[dict[str, Any]]:
    """Each backend with its line, and its models with their speeds, in tokens a second."""
    rows = []
    for name, backend in found.by_name.items():
        rows.append(
            {
                "backend": name,
                "engine": backend.engine,
                "version": backend.version,
                "up": backend.answered,
                "running": backend.line.running,
                "waiting": backend.line.waiting,
                "models": [_model(backend, model) for model in backend.models],
            }
        )
    return rows


def _model(backend: Backend, model: str) -> dict[str, Any]:
    record = backend.learned.measured_as(model, alone=backend.is_of_one_model)
    speed = backend.learned.speed(record)
    return {
        "model": model,
        "slow": backend.learned.slow(record),
        "decode_tokens_per_second": speed.decode,
        "prefill_tokens_per_second": speed.prefill,
    }


def known_as(found: Backends, settings: config.Settings, model: str, backend: str | None) -> str | None:
    """The name of a model that a client asked for, if it is no invention: an alias, one that is served, or the only one
    of a server that answers to any name."""
    if model in settings.models or any(model in each.models for each in found.by_name.values()):
        return model
    asked = found.by_name.get(backend or "")
    return asked.models[0] if asked is not None and asked.is_of_one_model else None


def live(generations: Generations, client: str | None) -> list[dict[str, Any]]:
    """The answers that are being made, of one client or of all."""
    rows = [shown(each) for each in generations.everyone()]
    return [row for row in rows if client is None or row["client"] == client]


def gauges(found: Backends, generations: Generations, store: Store) -> Mapping[str, Iterable[Sample]]:
    """For `telemetry.LOOKED_UP`."""
    rows = backends(found)
    told: dict[str, list[Sample]] = {
        f"reasoning_proxy_backend_{name}": [((row["backend"],), float(row[name])) for row in rows]
        for name in ("up", "running", "waiting")
    }
    models = [(row["backend"], model) for row in rows for model in row["models"]]
    for name in ("slow", "decode_tokens_per_second", "prefill_tokens_per_second"):
        told[f"reasoning_proxy_model_{name}"] = [
            ((backend, model["model"]), float(model[name])) for backend, model in models if model[name] is not None
        ]
    told["reasoning_proxy_generations"] = states(row["state"] for row in live(generations, None))
    told["reasoning_proxy_store_healthy"] = [((), float(store.healthy()))]
    return told
