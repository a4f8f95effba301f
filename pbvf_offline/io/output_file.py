"""One file that a command writes: locked, never in the place of something else, continued."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pbvf_offline.errors import PbvfError
from pbvf_offline.io.durable import remove_file, temporary_path
from pbvf_offline.io.lock import locked
from pbvf_offline.io.tensor_file import refuse_other_kind


def partial_path(out: Path) -> Path:
    """Return where an unfinished output is kept: a hidden file beside it."""
    return out.with_name(f".{out.name}.partial")


@contextlib.contextmanager
def writing(out: Path, *more: Path, kind: str, overwrite: bool) -> Iterator[PbvfError | None]:
    """Hold the lock of a tensor file that is to be written, and of the files beside it.

    What a kill left of writing one of them is removed.

    Args:
        out: The file; its lock guards the others too.
        more: Files that are written beside it.
        kind: Their kind.
        overwrite: Whether they are about to be replaced unread.

    Yields:
        None; where nothing may be written, the error to raise unless all is done there.

    Raises:
        ConflictError: Another process writes it, or a file of another kind is there.
        ResourceError: The lock file cannot be made.
    """
    with locked(out, look=True) as refusal:
        for path in (out, *more):
            refuse_other_kind(path, kind, overwrite=overwrite)
        if refusal is None:
            for path in (out, partial_path(out), *more):
                remove_file(temporary_path(path))
        yield refusal
