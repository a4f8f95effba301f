"""One writer an output: an exclusive lock that ends with its process."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from pbvf_offline.errors import ConflictError, PbvfError
from pbvf_offline.io.durable import make_folders, write_error

_TEMPORARY: Final = "pbvf-temporary-"
_READ_ONLY: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


def lock_path(path: Path) -> Path:
    """Return the lock file of an output; a kill may leave it, and it then locks nothing."""
    return path.with_name(f".{path.name}.lock")


class OutputLock:
    """An exclusive ``flock`` on the hidden file ``.NAME.lock`` beside an output.

    The system drops it when the process ends, however it ends. Forked children close
    their copy, so that a worker that outlives a killed parent does not keep the lock.

    Args:
        path: The output, a file or a folder; the folder above it exists.

    Raises:
        ConflictError: Another process (or another object in this one) holds it.
        OSError: The lock file cannot be made; it names the folder that may not be written, else the
            output.
    """

    _held: ClassVar[weakref.WeakSet[OutputLock] | None] = None

    def __init__(self, path: Path) -> None:
        import fcntl

        self._file = lock_path(path)
        self._descriptor = -1
        while self._descriptor < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                descriptor = os.open(self._file, flags, 0o644)
            except OSError as error:  # no user knows the name of this file
                named = path.parent if error.errno in _READ_ONLY else path
                raise OSError(error.errno, error.strerror, str(named)) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder removes the file: the one that was locked may be gone.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), self._file.lstat()):
                        self._descriptor, descriptor = descriptor, -1
            except BlockingIOError as error:
                raise ConflictError(
                    "another process is writing this output",
                    where=path,
                    remedy="wait for it, or stop it and run the same command again",
                ) from error
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        if OutputLock._held is None:
            OutputLock._held = weakref.WeakSet()
            os.register_at_fork(after_in_child=OutputLock._forget)
        OutputLock._held.add(self)

    def release(self) -> None:
        """Remove the lock file and let others in."""
        if self._descriptor < 0:
            return
        try:
            with contextlib.suppress(OSError):
                self._file.unlink()  # while still held: a waiting process opens a fresh one
        finally:
            self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)

    @classmethod
    def _forget(cls) -> None:
        for lock in list(cls._held or ()):
            if lock._descriptor >= 0:
                lock._close()


@contextlib.contextmanager
def locked(path: Path, *, look: bool = False) -> Iterator[PbvfError | None]:
    """Hold the :class:`OutputLock` of an output.

    Args:
        path: The output; folders above it are made.
        look: Go on without a lock where none may be made, to look whether all is done there.

    Yields:
        None; with ``look``, where no lock is held, the error to raise before writing.

    Raises:
        ConflictError: Another process holds it.
        ResourceError: The lock file cannot be made.
    """
    lock, refusal = None, None
    try:
        make_folders(path.parent)
        lock = OutputLock(path)
    except OSError as error:
        refusal = write_error(error, path)
        if not look or error.errno not in _READ_ONLY:
            raise refusal from error
    try:
        yield refusal
    finally:
        if lock is not None:
            lock.release()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield an empty folder where ``TMPDIR`` says, and remove it; with it those that kills left.

    Such a folder exists only while its lock is held, so one whose lock is free is nobody's.

    Raises:
        ResourceError: It cannot be made.
    """
    above = Path(tempfile.gettempdir())
    for left in above.glob(f".{_TEMPORARY}*.lock"):
        with contextlib.suppress(PbvfError, OSError):  # it is in use, or another user's
            _remove_left(left)
    folder = above / f"{_TEMPORARY}{os.urandom(8).hex()}"
    with locked(folder):
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise write_error(error, folder) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left(lock: Path) -> None:
    folder = lock.with_name(lock.name.removeprefix(".").removesuffix(".lock"))
    if lock.lstat().st_uid == os.getuid():
        with locked(folder), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
