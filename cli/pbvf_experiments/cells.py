"""Results kept as small JSON files, one a cell, so that an experiment resumes where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pbvf_offline.errors import ConflictError, DamagedError
from pbvf_offline.io.strict_json import parse_json
from pbvf_offline.io.tensor_file import read_file, write_file

_MAX_CELL = 16 * 2**20


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
