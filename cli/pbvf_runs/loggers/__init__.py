"""Loggers: what a training run, a fit or a synthesis records while it runs.

A new logger is one file: a module of this package, called as users call the logger, with a class
``Log`` that does what :class:`Logger` says. A package adds one with the entry point group
``pbvf_runs.loggers``. What loggers write is derived: no run or fit ever reads it back, and only
``pbvf plot`` looks at the ``metrics.jsonl`` of fits. A logger
that needs a package of an extra refuses, when its module is imported, to be without it.
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from pbvf_offline.registry import Registry

ANEW: Final = -1
"""The step that a run or curve begins at, before its settings."""
SETTINGS: Final = "settings"
DEFAULT: Final = ("metrics", "tensorboard")
METRICS_FILE: Final = "metrics.jsonl"
EVENTS_FOLDER: Final = "tensorboard"
LOGS_FOLDER: Final = "logs"
_PLACES: Final = {"metrics": METRICS_FILE, "tensorboard": EVENTS_FOLDER}


class Logger(Protocol):
    """Where the events of one run go. Made as ``Log(place, step)``.

    Args:
        place: The file or folder in the run's folder that is this logger's own. The folder
            above it exists.
        step: Environment step that the run continues from. Later events of an earlier call
            will be added again, from :data:`ANEW` on all of them.

    Raises:
        OSError: The place cannot be written.
    """

    def __init__(self, place: Path, step: int) -> None: ...

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Take in one event.

        Args:
            kind: ``settings`` once, before all others; of training runs ``episode`` and
                ``evaluation``; of fits and syntheses what ``on_event`` of the functions that make
                them says.
            step: Environment steps of the run, gradient steps of a fit or synthesis, or the
                number of the round or trial; 0 of settings.
            values: JSON values by name; returns are in units of reward, lengths in steps.
        """

    def flush(self) -> None:
        """Hand everything to the operating system."""

    def close(self) -> None:
        """Close; nothing is added afterwards."""


LOGGERS: Registry[type[Logger]] = Registry(
    "logger",
    "pbvf_runs.loggers",
    {module.name: f"{__name__}.{module.name}:Log" for module in pkgutil.iter_modules(__path__)},
)


def place_of(folder: Path, name: str) -> Path:
    """Return the file or folder in a run's folder that is a logger's own."""
    return folder / _PLACES.get(name, f"{LOGS_FOLDER}/{name}")


def places_of(folder: Path) -> list[Path]:
    """Return the files and folders in a run's folder that loggers write, whichever they are."""
    return [folder / name for name in (*_PLACES.values(), LOGS_FOLDER)]


class RunLog:
    """Hands the events of a run to its loggers.

    Args:
        folder: The run's folder.
        step: Environment step that the run continues from, or :data:`ANEW`.
        names: Loggers, by their names in :data:`LOGGERS`.

    Raises:
        UsageError: There is no such logger.
        ResourceError: The folder cannot be written.
    """

    def __init__(self, folder: Path, step: int, names: Iterable[str]) -> None:
        from pbvf_offline.io.durable import resource_error

        self._loggers: list[Logger] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            for name in names:
                kind = LOGGERS.choose(name, where="--logger")
                place = place_of(folder, name)
                try:
                    place.parent.mkdir(exist_ok=True)
                    self._loggers.append(kind(place, step))
                except OSError as error:
                    raise resource_error(error, place) from error
            undo.pop_all()

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add one event; see :meth:`Logger.add`."""
        values = {
            name: encodable(value) if isinstance(value, str) else value
            for name, value in values.items()
        }
        for logger in self._loggers:
            logger.add(kind, step, values)

    def flush(self) -> None:
        """Hand everything to the operating system."""
        for logger in self._loggers:
            logger.flush()

    def close(self) -> None:
        """Close all; nothing can be added afterwards."""
        for logger in self._loggers:
            logger.close()


def encodable(text: str) -> str:
    """Return a text, such as a path, with escapes for bytes that are no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
