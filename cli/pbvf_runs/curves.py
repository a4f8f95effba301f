"""The curve of a fit or a synthesis in a folder, by the loggers of training runs.

``curve.json`` in the folder names the output whose curve it holds, and the loggers that wrote it.
A curve is derived, and written anew by each call that has one: what a fit reports begins with what
its file remembers. What no such logger wrote is a user's own and stays.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pbvf_offline.errors import ConflictError, DamagedError, UsageError
from pbvf_offline.io.durable import (
    check_above,
    path_exists,
    resource_error,
    resource_errors,
    write_file,
)
from pbvf_offline.io.reading import MAX_SMALL, read_file
from pbvf_offline.io.strict_json import parse_json
from pbvf_runs.loggers import (
    ANEW,
    DEFAULT,
    EVENTS_FOLDER,
    LOGGERS,
    SETTINGS,
    RunLog,
    encodable,
    place_of,
    places_of,
)

CURVE_FILE: Final = "curve.json"


def check_folder(folder: Path, output: Path) -> None:
    """Check that a curve can be written to a folder without harm to its output.

    Raises:
        UsageError: The folder is something else, or one would be written over the other.
        ResourceError: A file above it, or a permission, refuses.
    """
    another = "name another folder"
    check_above(folder)
    if path_exists(folder) and not folder.is_dir():
        what = "is a file" if folder.exists() else "is a link to nothing"
        raise UsageError(what, where=folder, remedy="name a folder")
    above = folder
    while not path_exists(above):
        above = above.parent
    if not os.access(above, os.W_OK | os.X_OK):
        raise resource_error(OSError(errno.EACCES, os.strerror(errno.EACCES)), above)
    # A link at the output is replaced where it lies, or followed.
    whole = os.path.realpath(output)
    outputs = {Path(whole), Path(os.path.realpath(output.parent), output.name)}
    places = [folder / CURVE_FILE, *places_of(folder)]
    written = {Path(os.path.realpath(place)) for place in places}
    if any(written & {out, *out.parents} for out in outputs):
        raise UsageError(
            f"is where the curve in {folder} is written",
            where=output,
            remedy="choose another --out or --log-dir",
        )
    resolved = Path(os.path.realpath(folder))
    if outputs & {resolved, *resolved.parents}:
        raise UsageError("is, or lies in, the file of --out", where=folder, remedy=another)


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
        UsageError: As of :func:`check_folder`.
        ResourceError: The folder, or the place of a logger in it, cannot be written.
        ConflictError: The folder holds the curve of another output, or the logs of a run; or
            something that no logger of this curve wrote has the place of one.
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
        path = Path(os.path.relpath(output.resolve(), folder.resolve()))
        self._output = encodable(path.as_posix())
        self._log: RunLog | None = None
        check_folder(folder, output)
        self._writers()

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Take in one event; see :meth:`pbvf_runs.loggers.Logger.add`.

        Raises:
            ResourceError: The disk or a permission refuses.
        """
        with resource_errors(self._folder):
            if self._log is None:
                self._log = self._opened()
            self._log.add(kind, step, {name: _finite(value) for name, value in values.items()})
            self._log.flush()

    def close(self) -> None:
        """Close the loggers."""
        if self._log is not None:
            self._log.close()

    def _opened(self) -> RunLog:
        writers = self._writers()  # another command may have been faster
        text = json.dumps({"output": self._output, "loggers": sorted(writers)}) + "\n"
        write_file(self._folder / CURVE_FILE, text.encode())
        log = RunLog(self._folder, ANEW, self._loggers)
        log.add(SETTINGS, 0, self._settings)
        return log

    def _writers(self) -> set[str]:
        """Return the loggers that wrote this curve, with those that will, or refuse."""
        recorded = self._recorded()
        for name in self._loggers:
            place = place_of(self._folder, name)
            if name not in recorded and path_exists(place):
                raise ConflictError(
                    f"was not written by the curve of {self._output[:200]}",
                    where=place,
                    remedy="move it, or choose another --log-dir or --logger",
                )
            _check_kind(name, place)
        return {*recorded, *self._loggers}

    def _recorded(self) -> list[str]:
        path = self._folder / CURVE_FILE
        recorded: list[str] = []
        if path_exists(path):
            content = parse_json(read_file(path, MAX_SMALL), path)
            if not isinstance(content, dict) or not isinstance(content.get("output"), str):
                raise DamagedError("does not name an output", where=path, remedy="remove it")
            held = None if content["output"] == self._output else content["output"]
            # Earlier versions did not record them: what is there was theirs.
            present = [n for n in LOGGERS if path_exists(place_of(self._folder, n))]
            named = content.get("loggers", present)
            if not isinstance(named, list) or not all(isinstance(n, str) for n in named):
                raise DamagedError("does not name loggers", where=path, remedy="remove it")
            recorded = named
        else:
            places = (place_of(self._folder, name) for name in self._loggers)
            held = next((place.name for place in places if path_exists(place)), None)
        if held is not None:
            raise ConflictError(
                f"holds the curve of something else, {held[:200]}",
                where=self._folder,
                remedy="choose another --log-dir",
            )
        return recorded


def _check_kind(name: str, place: Path) -> None:
    """Check that what is at the place of a logger, and above it, is not of the wrong kind."""
    wanted = {place.parent: True}  # whether it is a folder
    if name in DEFAULT:
        wanted[place] = place.name == EVENTS_FOLDER
    for path, folder in wanted.items():
        if path_exists(path) and path.is_dir() != folder:
            code = errno.ENOTDIR if folder else errno.EISDIR
            raise resource_error(OSError(code, os.strerror(code)), path)


def _finite(value: Any) -> Any:
    """Return a value with None for numbers that JSON has no word for."""
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
