"""Disks that fail: what the tests of crashes and refusals share."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pbvf_offline.errors import PbvfError

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Killed(BaseException):
    """The process ended here: nothing after it runs."""


class Saboteur:
    """Makes the n-th system call that changes the disk fail, and maybe all later ones."""

    CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir")

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, at: int | None = None, mode: str = "kill"
    ) -> None:
        self.count, self.at, self.mode = 0, at, mode
        for name in self.CALLS:
            monkeypatch.setattr(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, call: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            failing = self.at is not None and (
                self.count == self.at or (self.mode != "once" and self.count > self.at)
            )
            if failing and self.mode == "kill":
                if name == "write" and self.count == self.at:
                    call(args[0], bytes(args[1])[: len(args[1]) // 2])
                raise Killed
            if failing and name in ("write", "fsync", "mkdir", "replace", "rename"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*args, **kwargs)

        return wrapped


def sabotaged(
    call: Callable[[], object], at: int | None, mode: str
) -> tuple[int, BaseException | None]:
    """Run a call whose ``at``-th operation on files fails.

    Args:
        call: What is run.
        at: Which operation, from 1; none when None.
        mode: ``kill`` (nothing works after it), ``full`` (nor can anything be written), or
            ``once`` (a disk that is full for a moment).

    Returns:
        How many operations there were, and what the call raised.
    """
    outcome: BaseException | None = None
    with pytest.MonkeyPatch.context() as patch:
        saboteur = Saboteur(patch, at, mode)
        try:
            call()
        except (Killed, PbvfError) as error:
            outcome = error
    return saboteur.count, outcome


@contextmanager
def bound(*folders: Path) -> Iterator[None]:
    """Have the system say that nothing may be changed in folders; it permits root everything."""
    permits = os.access

    def access(path: Any, mode: int) -> bool:
        return not (mode & os.W_OK and Path(path) in folders) and permits(path, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", access)
        yield


@contextmanager
def unreadable(name: str) -> Iterator[None]:
    """Refuse to open what has this name; permission bits do not bind root."""
    opens, permits = os.open, os.access

    def refusing(path: Any, *args: Any, **kwargs: Any) -> int:
        if not isinstance(path, int) and Path(path).name == name:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return opens(path, *args, **kwargs)

    def access(path: Any, mode: int) -> bool:
        return Path(path).name != name and permits(path, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refusing)
        patch.setattr(os, "access", access)
        yield


@contextmanager
def read_only(root: Path, code: int = errno.EROFS) -> Iterator[list[str]]:
    """Refuse all that changes files below ``root``; permission bits do not bind root.

    Yields:
        The operations that were refused.
    """
    refused: list[str] = []

    def inside(path: Any) -> bool:
        return not isinstance(path, int) and root in Path(os.fspath(path)).absolute().parents

    def refusing(name: str, function: Any) -> Any:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            flags = args[0] if args else kwargs.get("flags", 0)
            if inside(path) and (name != "open" or flags & _WRITING):
                if name == "mkdir" and Path(path).exists():
                    raise FileExistsError(path)  # what the system looks at first
                if name == "unlink" and not os.path.lexists(path):
                    raise FileNotFoundError(path)
                refused.append(f"{name} {Path(path).name}")
                raise OSError(code, os.strerror(code), os.fspath(path))
            return function(path, *args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "mkdir", "unlink", "rmdir", "rename", "replace"):
            patch.setattr(os, name, refusing(name, getattr(os, name)))
        yield refused
