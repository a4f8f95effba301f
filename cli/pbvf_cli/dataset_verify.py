"""``pbvf dataset verify``."""

from __future__ import annotations

import typer


def register(sub: typer.Typer) -> None:
    """Add the command to ``pbvf dataset``."""
