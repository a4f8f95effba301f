"""Trackio, on this machine: nothing is sent. ``TRACKIO_DIR=PLACE trackio show`` shows a run.

Events are written as the fragments that Trackio's dashboard imports. Its own ``init`` would have
one folder for a whole process, threads, and a look at the Hub.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pbvf_offline.errors import UsageError
from pbvf_offline.io.durable import remove_tree
from pbvf_runs.loggers import ANEW, SETTINGS

try:
    from trackio import fragments
except ImportError as error:
    raise UsageError(
        "trackio is not installed",
        where="--logger trackio",
        remedy="pip install 'pbvf-offline[trackio]'",
    ) from error

_ID_FILE: Final = "run-id"
_BETWEEN_FRAGMENTS: Final = 1.0  # seconds: curves are flushed at each event, and each is a file


class Log:
    """A run of the project ``pbvf``; each number is the metric ``kind/name``.

    An event that is added again has the id that it had, so Trackio has it once.
    """

    def __init__(self, place: Path, step: int) -> None:
        if step == ANEW and place.exists():
            remove_tree(place)
        place.mkdir(exist_ok=True)
        identity = place / _ID_FILE
        if not identity.exists():
            identity.write_text(uuid.uuid4().hex, encoding="utf-8")
        self._id = identity.read_text(encoding="utf-8")
        self._name = place.absolute().parents[1].name
        self._inbox = place / fragments.INBOX_DIR_NAME
        self._writer = fragments.FragmentWriter()
        self._waiting: list[dict[str, Any]] = []
        self._written = 0.0

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Log the numbers among the values; settings as the configuration."""
        now = datetime.now(UTC).isoformat()
        entry: dict[str, Any] = {
            "project": "pbvf",
            "run": self._name,
            "run_id": self._id,
            "step": step,
            "timestamp": now,
            "log_id": f"{self._id}/{kind}/{step}",
        }
        if kind == SETTINGS:
            entry["config"] = {**values, "_Created": now}
        else:
            entry["metrics"] = {
                f"{kind}/{name}": value
                for name, value in values.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
        self._waiting.append(fragments.metric_record(entry))

    def flush(self) -> None:
        """Write what waits, at most once a second: a kill loses what came after."""
        if time.monotonic() - self._written >= _BETWEEN_FRAGMENTS:
            self._write()

    def close(self) -> None:
        """Write what waits."""
        self._write()

    def _write(self) -> None:
        self._writer.write_local(self._waiting, self._inbox)
        self._waiting = []
        self._written = time.monotonic()
