"""What a training run says while it goes on: a metrics file and TensorBoard events."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbvf_offline.io.tensor_file import resource_error, write_file

METRICS_FILE = "metrics.jsonl"
EVENTS_FOLDER = "tensorboard"


class RunLog:
    """Appends one JSON line an event to ``metrics.jsonl`` and the same to TensorBoard.

    A run that goes on from a checkpoint drops the lines of what it does again.

    Args:
        folder: The run's folder.
        step: Environment step that the run goes on from.

    Raises:
        ResourceError: The folder cannot be written.
    """

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / METRICS_FILE
        kept = [line for line in _lines(path) if _step_of(line) <= step]
        write_file(path, "".join(f"{line}\n" for line in kept).encode())
        try:
            self._events = _Events(folder / EVENTS_FOLDER, step + 1)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise resource_error(error, path) from error

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one event.

        Args:
            kind: ``episode`` or ``evaluation``.
            step: Environment steps of the run.
            values: JSON values; numbers among them become TensorBoard scalars.
        """
        line = {"kind": kind, "step": step, **values}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._events.add(f"{kind}/{name}", value, step)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()
        self._events.flush()

    def close(self) -> None:
        """Close both; nothing can be added afterwards."""
        self._file.close()
        self._events.close()


class _Events:
    """A TensorBoard event file of scalars, written in this thread.

    The package's own writer has a thread and a queue between processes, whose semaphores a
    killed run leaves behind.

    Args:
        folder: Where to; made if missing.
        purge: Step from which on TensorBoard forgets what earlier files say.
    """

    def __init__(self, folder: Path, purge: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(exist_ok=True)
        self._event = Event
        self._writer = EventsWriter(str(folder / "events"))
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(step=purge, session_log=start))

    def add(self, name: str, value: float, step: int) -> None:
        from tensorboardX.summary import scalar

        event = self._event(wall_time=time.time(), step=step, summary=scalar(name, value))
        self._writer.write_event(event)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []  # missing, or torn by a crash: the metrics are derived


def _step_of(line: str) -> float:
    """Return the step of a line; infinite for one that a crash tore."""
    try:
        step = json.loads(line)["step"]
        return float(step)
    except (ValueError, KeyError, TypeError):
        return math.inf
