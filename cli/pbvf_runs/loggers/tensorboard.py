"""TensorBoard scalars, written in this thread.

tensorboardX's own writer has a thread and a queue between processes, whose semaphores a killed
run leaves behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Log:
    """An event file; TensorBoard forgets what earlier files say of the steps after ``step``."""

    def __init__(self, place: Path, step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        place.mkdir(exist_ok=True)
        self._event = Event
        self._writer = EventsWriter(str(place / "events"))
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(step=step + 1, session_log=start))

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write each number among the values as the scalar ``kind/name``."""
        from tensorboardX.summary import scalar

        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                summary = scalar(f"{kind}/{name}", value)
                self._writer.write_event(
                    self._event(wall_time=time.time(), step=step, summary=summary)
                )

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
