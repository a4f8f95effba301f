"""A logger of the returns of episodes as comma-separated values."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Log:
    """``step,return`` of each episode."""

    def __init__(self, place: Path, step: int) -> None:
        del step  # what is done again stands there twice
        self._file = place.open("a")

    def add(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if kind == "episode":
            self._file.write(f"{step},{values['return']}\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()
