"""Weights & Biases, offline: nothing is sent. ``wandb sync DIR`` uploads a run when its user wants.

Each call that continues a run adds another part of it, under the same id.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pbvf_offline.errors import UsageError
from pbvf_offline.io.durable import remove_tree
from pbvf_runs.loggers import ANEW, SETTINGS

# Read when the package is imported; with it, an offline run asks for a server's address.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
try:
    import wandb
except ImportError as error:
    raise UsageError(
        "wandb is not installed",
        where="--logger wandb",
        remedy="pip install 'pbvf-offline[wandb]'",
    ) from error

_PARTS: Final = "offline-run-*"


class Log:
    """An offline run; each kind of event has its own axis of steps, ``kind/step``."""

    def __init__(self, place: Path, step: int) -> None:
        place.mkdir(exist_ok=True)
        parts = sorted((place / "wandb").glob(_PARTS))
        if step == ANEW:
            for part in parts:
                remove_tree(part)
            parts = []
        self._kinds: set[str] = set()
        self._run = wandb.init(
            mode="offline",
            dir=place,
            project="pbvf",
            name=place.absolute().parents[1].name,
            id=parts[0].name.rpartition("-")[2] if parts else None,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_code=True,
                disable_git=True,
                x_disable_machine_info=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Log the numbers among the values as ``kind/name``; settings as the configuration."""
        if kind == SETTINGS:
            self._run.config.update(dict(values), allow_val_change=True)
            return
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        numbers = {
            f"{kind}/{name}": value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        self._run.log({f"{kind}/step": step} | numbers)

    def flush(self) -> None:
        """Do nothing: the package's own process writes."""

    def close(self) -> None:
        """Wait until everything is written."""
        self._run.finish()
