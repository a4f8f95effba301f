"""What every remote does, and what it must not show.

A remote holds files under known names. Its answers are untrusted: nothing is believed that
was not compared with a digest, and no more is taken into memory than was asked for.
"""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol, Self, runtime_checkable

from pbvf_offline.errors import exception_text, printable


class MissingFileError(Exception):
    """The remote has no file of this name."""


class BrokenError(Exception):
    """A connection broke; trying again may help."""


class Incoming:
    """The bytes of a file as they come; a context manager.

    Args:
        read: Returns some bytes, at most so many; none at the end.
        close: Ends it.
        start: Where in the file the bytes begin.
        total: Size of the file as the remote says, or None.
        errors: Turns the errors of the remote into ours.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        close: Callable[[], object],
        start: int,
        total: int | None,
        errors: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> None:
        self.start = start
        self.total = total
        self._read, self._close, self._errors = read, close, errors

    def read(self, most: int) -> bytes:
        """Return some bytes, at most so many; none at the end.

        Raises:
            BrokenError: The connection broke.
            PbvfError: The remote refuses.
        """
        with self._errors():
            return self._read(most)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self._close()


class Remote(Protocol):
    """Files under names at an address, to read.

    Args:
        address: As the user gave it.

    Raises:
        UsageError: The address is malformed, or a package is not installed.
        NetworkError: It cannot be reached.
    """

    schemes: ClassVar[tuple[str, ...]]
    """What its addresses begin with, in lower case."""

    shown: str
    """What to call it: no credentials."""

    pauses: tuple[float, ...]
    """Seconds to wait before each new try after a connection broke."""

    def __init__(self, address: str) -> None: ...

    @staticmethod
    def local(folder: Path) -> contextlib.AbstractContextManager[str] | str:
        """Make a place on this machine, for the test that all remotes pass.

        Args:
            folder: An empty folder.

        Returns:
            The address at which files of the folder are found, or to which files can be sent; or
            in words why there is no such place.
        """

    def open(self, name: str, start: int = 0) -> Incoming:
        """Return a file's bytes from ``start`` on, or from 0 where the remote cannot do that.

        Raises:
            MissingFileError: There is none of this name.
            BrokenError: The connection broke.
            NetworkError: The remote refuses.
            UnsafeError: It is a link or device.
            ResourceError: It cannot be read.
        """


@runtime_checkable
class WritableRemote(Remote, Protocol):
    """A remote that files can be sent to."""

    def size(self, name: str) -> int | None:
        """Return how many bytes a file has, or None when there is none of this name.

        Raises:
            BrokenError: The connection broke.
            NetworkError: The remote refuses or does not tell.
        """

    def put(self, name: str, file: Path, told: Callable[[int], None]) -> None:
        """Send a file; it is there whole or not at all.

        Args:
            name: What it will be called.
            file: The file.
            told: Called with the number of bytes sent so far.

        Raises:
            BrokenError: The connection broke.
            NetworkError: The remote refuses.
        """

    def remove(self, name: str) -> None:
        """Remove a file, if there is one.

        Raises:
            BrokenError: The connection broke.
            NetworkError: The remote refuses.
        """


def shown_address(address: str) -> str:
    """Return an address without credentials: no password, and no values of its query."""
    text = re.sub(r"(?<=://)[^/?#]*@", "***@", address)
    return re.sub(r"[?#].*", "?***", text).rstrip("/")


def secrets_of(address: str) -> tuple[str, ...]:
    """Return the parts of an address that must not be shown, longest first."""
    found: set[str] = set()
    for login in re.findall(r"://([^/?#]*)@", address):
        found |= {login, *login.split(":", 1)[1:]}
    found |= {part for part in re.split(r"[?#]", address)[1:] if part}
    found |= {value for part in found for value in re.findall(r"=([^&]{4,})", part)}
    found |= {urllib.parse.unquote(text) for text in found}
    return tuple(sorted((f for f in found if f), key=len, reverse=True))


def error_text(error: BaseException, address: str) -> str:
    """Return somebody else's error as a short text without credentials."""
    text = " ".join(exception_text(error).split())
    for secret in secrets_of(address):
        text = text.replace(secret, "***")
    return printable(text[:300])
