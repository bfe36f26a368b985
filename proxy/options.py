"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file; else $REASONING_PROXY_CONFIG, else ./config.toml where it exists.",
)
