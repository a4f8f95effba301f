"""Files that are whole or absent, whatever happens: temporary name, sync, one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pbvf_offline.errors import PbvfError, ResourceError, UsageError

_TEMPORARY: Final = re.compile(r"\.(?:(.+)\.tmp|tmp-(.+))")  # the second form is version 0.1's
_HINTS: Final = {
    errno.ENOSPC: "free some disk space and run the same command again",
    errno.EDQUOT: "free some of your quota and run the same command again",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that you may write",
    errno.EPERM: "choose a folder that you may write",
    errno.ENOTDIR: "choose another place",
    errno.EISDIR: "name a file, not a folder",
    errno.ENAMETOOLONG: "choose a shorter name",
}

_AGAIN: Final = "close other programs, and run the same command again"
ALLOW_WRITING: Final = "allow writing there, and run the same command again"


def write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and the folders above it.

    Raises:
        ResourceError: The disk or a permission refuses; ``path`` is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, data)
    except OSError as error:
        raise write_error(error, path) from error


def write_durably(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file so that after a crash ``path`` is the old file, the new one, or absent.

    Without ``sync`` it is not waited until its name is on disk: the caller syncs the folder.

    Raises:
        OSError: The disk refuses; ``path`` is unchanged.
    """
    with replacing_file(path, sync=sync) as descriptor:
        write_all(descriptor, data)


@contextlib.contextmanager
def replacing_file(path: Path, *, sync: bool = True) -> Iterator[int]:
    """Yield the descriptor of a temporary file that takes the name ``path`` at the end.

    If the block raises, ``path`` is unchanged and the temporary file is removed; a kill may
    leave it. ``sync`` as for :func:`write_durably`.

    Raises:
        OSError: The disk refuses.
    """
    temporary = temporary_path(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, 0o666)
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except (OSError, PbvfError):
        with contextlib.suppress(OSError):
            temporary.unlink()  # the space it took may be what is missing
        raise
    if sync:
        sync_folder(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the bytes, however few the system takes at a time.

    Raises:
        OSError: The disk refuses.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def temporary_path(path: Path) -> Path:
    """Return the name under which a file is written; a kill may leave it."""
    return path.with_name(f".{path.name}.tmp")


def temporary_for(name: str) -> str | None:
    """Return the name of the file that was being written under a temporary name, or None."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else match[1] or match[2]


def remove_file(path: Path) -> None:
    """Remove a file, if it is there.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise resource_error(error, path) from error


def make_folders(path: Path) -> None:
    """Make a folder and the missing ones above it.

    Raises:
        OSError: The disk or a permission refuses.
    """
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        with contextlib.suppress(PermissionError):
            sync_folder(folder.parent)  # a folder may allow making but not reading entries


def exchange(one: Path, other: Path) -> bool:
    """Have two files or folders change places in one step; return whether the system could."""
    import ctypes

    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Linux has it
    if rename is None:
        return False
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), flag) == 0)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_tree(path: Path) -> None:
    """Remove a file or a folder with all it holds; links are removed, never followed."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        path.unlink()
        return
    for entry in sorted(path.iterdir()):
        remove_tree(entry)
    path.rmdir()


def path_exists(path: Path) -> bool:
    """Return whether anything has this name, a dangling link included."""
    return os.path.lexists(path)


def check_above(path: Path) -> None:
    """Check that what is above a path are folders, and not a file, as far as anything is there.

    Raises:
        UsageError: Symbolic links lead in a circle.
        ResourceError: Something else has the place of a folder; or the path cannot be looked at.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is above it, is checked below
    except OSError as error:
        raise resource_error(error, path) from error
    above = path.parent
    while not path_exists(above):
        above = above.parent
    if not above.is_dir():
        raise resource_error(NotADirectoryError(errno.ENOTDIR, ""), above)


def write_error(error: OSError, path: Path) -> PbvfError:
    """Return the user's error for a refusal to make a file; see :func:`resource_error`.

    Some folders take no new files and say that the file does not exist.
    """
    if error.errno in (errno.ENOENT, errno.ELOOP):  # ELOOP: a link has the temporary name
        remedy = _HINTS[errno.EACCES]
        return ResourceError("nothing can be made there", where=path, remedy=remedy)
    return resource_error(error, path)


def read_error(error: OSError, path: Path) -> PbvfError:
    """Return the user's error for a refusal to read something; see :func:`resource_error`."""
    if isinstance(error, PermissionError):
        remedy = "allow reading it and what it is in"
        return ResourceError("permission denied", where=path, remedy=remedy)
    return resource_error(error, path)


def resource_error(error: OSError, path: Path) -> PbvfError:
    """Return the user's error for a refusal of the operating system."""
    if error.errno == errno.ENOENT:
        return UsageError("does not exist", where=path)
    if error.errno == errno.ELOOP:
        what = "its symbolic links lead in a circle"
        return UsageError(what, where=path, remedy="name another path, or mend the links")
    reason = os.strerror(error.errno) if error.errno else str(error)
    remedy = _HINTS.get(error.errno or 0, "check the disk")
    return ResourceError(reason.lower(), where=path, remedy=remedy)


@contextlib.contextmanager
def resource_errors(where: Path, note: Callable[[], str] = str) -> Iterator[None]:
    """Turn the system's refusals to write into errors that say what to do.

    Args:
        where: What the error names where the system names no file.
        note: Called for an error: what to say after its remedy, such as what is safe.

    Raises:
        ResourceError: The block raised OSError or MemoryError.
    """
    try:
        yield
    except MemoryError as error:
        remedy = "; ".join(filter(None, (_AGAIN, note())))
        raise ResourceError("not enough memory", where=where, remedy=remedy) from error
    except OSError as error:
        what = error.strerror or str(error)
        named = error.filename if isinstance(error.filename, str | Path) else where
        denied = error.errno in (errno.EACCES, errno.EPERM)
        hint = ALLOW_WRITING if denied else _HINTS.get(error.errno or 0, "check the disk")
        remedy = "; ".join(filter(None, (hint, note())))
        raise ResourceError(f"cannot write: {what}", where=named, remedy=remedy) from error


def megabytes(count: float) -> str:
    """Return a number of bytes in words; what is left of a full disk is not "0 MB"."""
    if count < 1e6:
        return "less than 1 kB" if count < 1e3 else f"{count / 1e3:,.0f} kB"
    return f"{count / 1e6:,.0f} MB"
