"""``pbvf dataset list`` and ``pbvf dataset info``."""

from __future__ import annotations

import typer


def register(sub: typer.Typer) -> None:
    """Add the commands to ``pbvf dataset``."""
