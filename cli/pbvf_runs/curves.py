"""The curve of a fit or a synthesis in a folder, by the loggers of training runs.

``curve.json`` in the folder names the output whose curve it holds. A curve is derived, and written
anew by each call that has one: what a fit reports begins with what its file remembers.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pbvf_offline.errors import ConflictError, DamagedError
from pbvf_offline.io.durable import resource_errors, write_file
from pbvf_offline.io.reading import MAX_SMALL, read_file
from pbvf_offline.io.strict_json import parse_json
from pbvf_runs.loggers import ANEW, DEFAULT, SETTINGS, RunLog, place_of

CURVE_FILE: Final = "curve.json"


class CurveLog:
    """Hands the events of one fit or synthesis to loggers, from the first event on.

    Nothing is written before that, so a command that is refused, or has nothing to log, leaves
    the folder as it is.

    Args:
        folder: Where to; it may hold other things.
        output: The file whose curve it is.
        settings: JSON values by name.
        loggers: Loggers, by their names in :data:`pbvf_runs.loggers.LOGGERS`.

    Raises:
        ConflictError: The folder holds the curve of another output, or the logs of a run.
        DamagedError: What says whose curve it holds is malformed.
    """

    def __init__(
        self,
        folder: Path,
        output: Path,
        settings: Mapping[str, Any],
        loggers: Sequence[str] = DEFAULT,
    ) -> None:
        self._folder, self._settings, self._loggers = folder, settings, tuple(loggers)
        # Both may move together.
        self._output = Path(os.path.relpath(output.resolve(), folder.resolve())).as_posix()
        self._log: RunLog | None = None
        self._refuse_other()

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Take in one event; see :meth:`pbvf_runs.loggers.Logger.add`.

        Raises:
            ResourceError: The disk or a permission refuses.
        """
        with resource_errors(self._folder, lambda: "make room and run the command again"):
            if self._log is None:
                self._log = self._opened()
            self._log.add(kind, step, {name: _finite(value) for name, value in values.items()})
            self._log.flush()

    def close(self) -> None:
        """Close the loggers."""
        if self._log is not None:
            self._log.close()

    def _opened(self) -> RunLog:
        self._refuse_other()  # another command may have been faster
        text = json.dumps({"output": self._output}) + "\n"
        write_file(self._folder / CURVE_FILE, text.encode())
        log = RunLog(self._folder, ANEW, self._loggers)
        log.add(SETTINGS, 0, self._settings)
        return log

    def _refuse_other(self) -> None:
        path = self._folder / CURVE_FILE
        if path.exists():
            content = parse_json(read_file(path, MAX_SMALL), path)
            if not isinstance(content, dict) or not isinstance(content.get("output"), str):
                raise DamagedError("does not name an output", where=path, remedy="remove it")
            held = None if content["output"] == self._output else content["output"]
        else:
            places = (place_of(self._folder, name) for name in self._loggers)
            held = next((place.name for place in places if place.exists()), None)
        if held is not None:
            raise ConflictError(
                f"holds the curve of something else, {held[:200]}",
                where=self._folder,
                remedy="choose another --log-dir",
            )


def _finite(value: Any) -> Any:
    """Return a value with None for numbers that JSON has no word for."""
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
