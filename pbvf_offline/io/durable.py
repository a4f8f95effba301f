"""Files that are whole or absent, whatever happens: temporary name, sync, one rename."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pbvf_offline.errors import ResourceError
from pbvf_offline.io.tensor_file import replace_file, sync_folder

TEMPORARY: Final = ".tmp-"
"""How temporary names start; whoever holds the folder's lock may remove such files."""


def write_durably(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file so that after a crash ``path`` is the old file, the new one, or absent.

    Args:
        path: The file.
        data: All of its bytes.
        sync: Wait until its name is on disk too; else the caller syncs the folder.

    Raises:
        OSError: The disk refuses; ``path`` is unchanged.
    """
    replace_file(path, data, path.with_name(TEMPORARY + path.name))
    if sync:
        sync_folder(path.parent)


def make_folders(path: Path) -> None:
    """Make a folder and the missing ones above it."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        with contextlib.suppress(PermissionError):
            sync_folder(folder.parent)  # a folder may allow making but not reading entries


def remove_tree(path: Path, *, keep: str | None = None) -> None:
    """Remove a file or a folder with all it holds; links are removed, never followed.

    Args:
        path: What goes; nothing happens when it does not exist.
        keep: Name of an entry of ``path`` that stays (and ``path`` with it).
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink()
        return
    for entry in sorted(path.iterdir()):
        if entry.name != keep:
            remove_tree(entry)
    if keep is None:
        path.rmdir()


def path_exists(path: Path) -> bool:
    """Return whether anything has this name, a dangling link included."""
    return os.path.lexists(path)


@contextlib.contextmanager
def resource_errors(where: Path, remedy: Callable[[], str]) -> Iterator[None]:
    """Turn the system's refusals into errors that say what is safe and what to do.

    Raises:
        ResourceError: The block raised OSError or MemoryError.
    """
    try:
        yield
    except MemoryError as error:
        raise ResourceError("not enough memory", where=where, remedy=remedy()) from error
    except OSError as error:
        what = error.strerror or str(error)
        named = error.filename if isinstance(error.filename, str | Path) else where
        raise ResourceError(f"cannot write: {what}", where=named, remedy=remedy()) from error


def megabytes(count: float) -> str:
    """Return a number of bytes in words; what is left of a full disk is not "0 MB"."""
    return "less than 1 MB" if count < 1e6 else f"{count / 1e6:,.0f} MB"
