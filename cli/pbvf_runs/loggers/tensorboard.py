"""TensorBoard scalars, written in this thread.

tensorboardX's own writer has a thread and a queue between processes, whose semaphores a killed
run leaves behind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pbvf_runs.loggers import ANEW, SETTINGS

_NAME: Final = "events"


class Log:
    """An event file; TensorBoard forgets what earlier files say of the steps after ``step``.

    At the start of a run they are removed.
    """

    def __init__(self, place: Path, step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        place.mkdir(exist_ok=True)
        if step == ANEW:
            for earlier in place.glob(f"{_NAME}.out.tfevents.*"):
                earlier.unlink()
        self._event = Event
        self._writer = EventsWriter(str(place / _NAME))
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(step=step + 1, session_log=start))

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write each number among the values as the scalar ``kind/name``; settings as hparams."""
        from tensorboardX.summary import hparams, scalar

        if kind == SETTINGS:
            shown = {
                name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
                for name, value in values.items()
                if value is not None
            }
            # Without the third, which says that the run has ended.
            summaries = list(hparams(shown, {})[:2])
        else:
            summaries = [
                scalar(f"{kind}/{name}", value)
                for name, value in values.items()
                if isinstance(value, int | float) and not isinstance(value, bool)
            ]
        for summary in summaries:
            self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()
