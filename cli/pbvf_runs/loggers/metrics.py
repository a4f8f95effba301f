"""One JSON line an event."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbvf_offline.io.durable import write_file


class Log:
    """Appends to a file of lines; the lines after ``step`` and those that a crash tore go."""

    def __init__(self, place: Path, step: int) -> None:
        kept = [line for line in _lines(place) if _step_of(line) <= step]
        write_file(place, "".join(f"{line}\n" for line in kept).encode())
        self._file = place.open("a", encoding="utf-8")

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write one line."""
        line = {"kind": kind, "step": step, **values}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


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
