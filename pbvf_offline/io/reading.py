"""Reading files that may be anybody's: regular, of bounded size, without waiting."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Final

from pbvf_offline.errors import UnsafeError, UsageError
from pbvf_offline.io.durable import read_error

MAX_FILE: Final = 16 * 2**30
MAX_SMALL: Final = 32 * 2**20
"""Files of JSON are not longer."""
_SPARSE_FROM, _SPARSE_FACTOR = 64 * 2**20, 16


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading, without waiting for a pipe.

    Raises:
        UsageError: It is not a regular file.
        UnsafeError: It is a link and not to be followed, or is long and nearly all holes.
        OSError: It cannot be opened; see :func:`read_error`.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP and not follow and path.is_symlink():
            raise link_error(path) from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            inside = "name the file in this folder" if stat.S_ISDIR(status.st_mode) else None
            raise UsageError("is not a regular file", where=path, remedy=inside)
        refuse_holes(status, path)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def link_error(where: str | os.PathLike[str]) -> UnsafeError:
    """Return the error for a symbolic link where none may be."""
    return UnsafeError(
        "this is a symbolic link, and links are not followed",
        where=where,
        remedy="put the file itself in its place",
    )


def refuse_holes(status: os.stat_result, where: str | os.PathLike[str]) -> None:
    """Refuse a sparse file: made in an instant, and gigabytes when it is read.

    Raises:
        UnsafeError: It takes far less of the disk than it has bytes.
    """
    size, stored = status.st_size, 512 * status.st_blocks
    if size > _SPARSE_FROM and stored * _SPARSE_FACTOR < size:
        raise UnsafeError(
            f"it is a sparse file: of its {size:,} bytes the disk holds {stored:,}",
            where=where,
            remedy="if it is what you expect, copy it with 'cp --sparse=never'",
        )


def read_file(path: Path, limit: int = MAX_FILE, *, follow: bool = True) -> bytes:
    """Read a regular file of at most ``limit`` bytes; a symbolic link only with ``follow``.

    Raises:
        UsageError: It does not exist, or is not a regular file.
        UnsafeError: It is too large, nearly all holes, or a link and may not be one.
        ResourceError: It cannot be read.
    """
    try:
        with open_regular(path, follow=follow) as file:
            return read_all(file, path, limit)
    except OSError as error:
        raise read_error(error, path) from error


def read_all(file: BufferedReader, path: Path, limit: int = MAX_FILE) -> bytes:
    """Return the bytes of an open file.

    Raises:
        UnsafeError: There are more than ``limit``.
        OSError: It cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise UnsafeError(f"is {size:,} bytes long, over the limit of {limit:,}", where=path)
    return file.read(size + 1)  # as much as is asked for is allocated, were it to grow


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex.

    Raises:
        UsageError: It does not exist.
        ResourceError: It cannot be read.
    """
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise read_error(error, path) from error
