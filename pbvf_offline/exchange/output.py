"""Outputs of imports and exports: never over an input, never over something else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pbvf_offline.errors import ConflictError, UsageError
from pbvf_offline.io.reading import read_file


def refuse_own_input(out: Path, sources: Iterable[Path]) -> None:
    """Refuse to write over what was read.

    Raises:
        UsageError: The output is one of the inputs.
    """
    for source in sources:
        if out.exists() and source.exists() and out.samefile(source):
            raise UsageError("is the input too", where=out, remedy="name another --out")


def already_written(path: Path, image: bytes, *, overwrite: bool) -> bool:
    """Whether a file holds these very bytes already; with ``overwrite``, no.

    Raises:
        ConflictError: It holds something else.
    """
    if overwrite or not path.exists():
        return False
    if read_file(path) == image:
        return True
    raise ConflictError(
        "exists with other content",
        where=path,
        remedy="choose another --out, or start over with --overwrite",
    )
