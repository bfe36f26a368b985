"""The base of all settings: read-only, and strict about names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the configuration file. It lives in the module that obeys it; `config/` puts the tables together."""

    model_config = ConfigDict(extra="forbid", frozen=True)
