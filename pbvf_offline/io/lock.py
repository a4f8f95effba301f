"""One writer a folder: an exclusive lock that ends with its process."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import ClassVar, Final

from pbvf_offline.errors import ConflictError

LOCK_FILE: Final = "lock"


class FolderLock:
    """An exclusive ``flock`` on the file ``lock`` of a folder; both are made if missing.

    The system drops it when the process ends, however it ends. Forked children close
    their copy, lest a worker that outlives a killed parent keep the folder locked.

    Args:
        folder: The folder; the one above it exists.
        what: What is locked, for the message.

    Raises:
        ConflictError: Another process (or another object in this one) holds it.
        OSError: The folder or the lock file cannot be made.
    """

    _held: ClassVar[weakref.WeakSet[FolderLock] | None] = None

    def __init__(self, folder: Path, what: str) -> None:
        import fcntl

        path = folder / LOCK_FILE
        self._descriptor = -1
        while self._descriptor < 0:
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:
                continue  # another process has just finished and removed the folder
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # A holder that finishes removes the file: what was locked may be gone.
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), path.stat()):
                        self._descriptor, descriptor = descriptor, -1
            except BlockingIOError as error:
                raise ConflictError(
                    "another process is writing this dataset",
                    where=what,
                    remedy="wait for it, or stop it and run the same command again",
                ) from error
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
        if FolderLock._held is None:
            FolderLock._held = weakref.WeakSet()
            os.register_at_fork(after_in_child=FolderLock._forget)
        FolderLock._held.add(self)

    def release(self) -> None:
        """Let others in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @classmethod
    def _forget(cls) -> None:
        for lock in list(cls._held or ()):
            lock.release()
