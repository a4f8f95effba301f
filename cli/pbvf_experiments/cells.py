"""Results kept as small JSON files, one a cell, so that an experiment resumes where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pbvf_offline.errors import ConflictError, DamagedError, UsageError
from pbvf_offline.files import read_file, write_file
from pbvf_offline.strict_json import parse_json

_MOST_SEEDS = 10_000
_MAX_CELL = 16 * 2**20


def parse_seeds(text: str) -> list[int]:
    """Parse seeds as users type them.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]

    Raises:
        UsageError: The text is not numbers and ranges.
    """
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            more = range(int(first), int(last if dash else first) + 1)
            if not 1 <= len(more) <= _MOST_SEEDS:
                raise ValueError
            seeds.extend(more)
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) != len(seeds):
        raise UsageError(
            f"seeds {text!r} are not understood", where="--seeds", remedy="give 0-4 or 0,3,7"
        )
    return seeds


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
        stored = parse_json(read_file(path, _MAX_CELL), str(path))
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
