"""A folder of this machine, or of a disk or share that is mounted here."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from pbvf_datasets.share.remote import Incoming, MissingFileError
from pbvf_offline.errors import DamagedError, ResourceError, UnsafeError, UsageError
from pbvf_offline.io.reading import link_error


class FolderRemote:
    """A folder, which may be untrusted: no link is followed in there.

    A dataset is not sent there file by file: it appears by one rename, as from anywhere else.

    Args:
        address: Its path, or ``file://PATH``.

    Attributes:
        folder: The folder.
    """

    schemes: ClassVar[tuple[str, ...]] = ("folder", "file", "local")
    pauses: tuple[float, ...] = ()

    def __init__(self, address: str | os.PathLike[str]) -> None:
        path = re.sub("^[a-zA-Z]+://(localhost(?=/))?", "", os.fspath(address)) or "/"
        self.folder = Path(path).expanduser()
        self.shown = str(self.folder)

    @staticmethod
    def local(folder: Path) -> contextlib.AbstractContextManager[str]:
        """Make a place; see :class:`~pbvf_datasets.share.remote.Remote`."""
        return contextlib.nullcontext(str(folder))

    def named(self) -> Path:
        """Return the folder by a name that has a folder above it.

        Raises:
            UsageError: It is the root of a file system, or no name at all.
        """
        if self.folder.name not in ("", ".."):
            return self.folder
        full = Path(os.path.realpath(self.folder))
        if full.name == "":
            raise UsageError(
                "has no folder above it", where=self.folder, remedy="name another folder"
            )
        return full

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes; see :class:`~pbvf_datasets.share.remote.Remote`."""
        where = self.folder / name
        flags = os.O_RDONLY | os.O_CLOEXEC
        parent = -1
        try:
            parent = os.open(self.folder, flags | os.O_DIRECTORY)
            *folders, last = name.split("/")
            for part in folders:
                inner = os.open(part, flags | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
                os.close(parent)
                parent = inner
            descriptor = os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
        except OSError as error:
            raise _error(error, where) from error
        finally:
            if parent >= 0:
                os.close(parent)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise UnsafeError("this is not a regular file", where=where)
        file = os.fdopen(descriptor, "rb", buffering=0)
        file.seek(start)

        @contextlib.contextmanager
        def errors() -> Iterator[None]:
            try:
                yield
            except OSError as error:
                raise _error(error, where) from error

        return Incoming(file.read, file.close, start, status.st_size, errors)


def _error(error: OSError, where: Path) -> Exception:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        # With O_NOFOLLOW a link to a folder is "not a directory".
        links = [path for path in (where.parent, where) if path.is_symlink()]
        if not links or error.errno == errno.ENOENT:
            return MissingFileError(str(where))
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR):
        return link_error(where)
    kind = DamagedError if error.errno == errno.EIO else ResourceError
    return kind(f"it cannot be read: {error.strerror}", where=where)
