"""Outputs of imports and exports: never over an input, never over something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


def refuse_foreign(path: Path, is_own: Callable[[Path], bool], what: str) -> None:
    """Refuse to replace a file that this program cannot tell to be its own, if one is there.

    Args:
        path: The output.
        is_own: Tells.
        what: What it would have to be.

    Raises:
        ConflictError: It is something else.
    """
    if path.exists() and not is_own(path):
        raise ConflictError(
            f"exists and is no {what}, so it is not replaced",
            where=path,
            remedy="choose another name, or move it away",
        )


def already_written(
    path: Path, image: bytes, *, overwrite: bool, is_own: Callable[[Path], bool], what: str
) -> bool:
    """Whether a file holds these very bytes already; with ``overwrite``, no.

    ``is_own`` and ``what`` as for :func:`refuse_foreign`.

    Raises:
        ConflictError: It holds something else, which is not to be replaced.
    """
    if not path.exists():
        return False
    refuse_foreign(path, is_own, what)
    if overwrite or read_file(path) == image:
        return not overwrite
    raise ConflictError(
        "exists with other content",
        where=path,
        remedy="choose another --out, or start over with --overwrite",
    )
