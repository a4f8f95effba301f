"""Results kept as small JSON files, one a cell, so that an experiment resumes where it stopped."""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pbvf_offline.errors import ConflictError, DamagedError, UsageError
from pbvf_offline.io.durable import write_file
from pbvf_offline.io.reading import read_file
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.rollout.workers import is_done_here, ordered_map

MAX_CELL_BYTES = 64 * 2**20
MAX_CELL_MEMORY = 384 * 2**20
"""What the values of a cell may take in memory; see :func:`parse_json`."""


class Named(Protocol):
    """Anything that ``--cells`` can choose."""

    @property
    def name(self) -> str:
        """What it is called in files and in ``--cells``."""


C = TypeVar("C", bound=Named)
In = TypeVar("In")
Out = TypeVar("Out")


def choose_cells(cells: Sequence[C], patterns: str | None) -> list[C]:
    """Return the cells whose names match one of some comma-separated patterns; all for None.

    Raises:
        UsageError: A pattern matches nothing.
    """
    if patterns is None:
        return list(cells)
    chosen: dict[str, C] = {}
    for pattern in patterns.split(","):
        found = [c for c in cells if fnmatch.fnmatchcase(c.name, pattern.strip())]
        if not found:
            names = ", ".join(c.name for c in cells[:3])
            raise UsageError(
                f"no cell is called {pattern.strip()!r}",
                where="--cells",
                remedy=f"names are like {names}; * stands for anything",
            )
        chosen |= {c.name: c for c in found}
    return list(chosen.values())


@dataclass(frozen=True)
class _Call(Generic[In, Out]):
    """A job of worker processes that needs no preparation."""

    function: Callable[[In], Out]

    def start(self) -> Callable[[In], Out]:
        return self.function


def run_all(
    function: Callable[[In], Out], items: Sequence[In], workers: int, *, ordered: bool = True
) -> Iterator[Out]:
    """Yield the result of each item, from this process or from ``workers`` others.

    Args:
        function: Makes a result of an item; several processes need to pickle it.
        items: What is to be done.
        workers: Number of processes.
        ordered: Yield results in the order of items, else as they come.
    """
    if is_done_here(workers):
        yield from map(function, items)
    else:
        yield from ordered_map(
            _Call(function), items, workers, hang_seconds=math.inf, queued=1, ordered=ordered
        )


def cell(path: Path, settings: dict[str, Any], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a cell's result: from its file, or by running it and writing the file.

    Args:
        path: The cell's JSON file.
        settings: What decides the result; stored beside it.
        run: Computes the result.

    Raises:
        ConflictError: The file was made with other settings.
        DamagedError: The file is not a cell.
    """
    wanted = json.loads(json.dumps(settings))
    if path.exists():
        stored = parse_json(
            read_file(path, MAX_CELL_BYTES),
            str(path),
            max_bytes=MAX_CELL_BYTES,
            max_memory=MAX_CELL_MEMORY,
        )
        if not isinstance(stored, dict) or set(stored) != {"settings", "result"}:
            raise DamagedError("is not a result of this experiment", where=path)
        if stored["settings"] != wanted:
            different = sorted(
                k
                for k in {*stored["settings"], *wanted}
                if stored["settings"].get(k) != wanted.get(k)
            )
            raise ConflictError(
                f"was made with another {', '.join(different)}",
                where=path,
                remedy="choose another --out",
            )
        result: dict[str, Any] = stored["result"]
        return result
    result = run()
    text = json.dumps({"settings": wanted, "result": result}, indent=1, allow_nan=False)
    write_file(path, text.encode() + b"\n")
    return result
