"""Errors meant for users: what is wrong, where, and what to do about it.

Every error carries the exit code that the ``pbvf`` command ends with, so that the
library and the command line cannot disagree about what a failure means.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

UNKNOWN: Final = object()
"""The value of a trait that is not known, so that nothing differs from it."""


def exception_text(error: BaseException) -> str:
    """Return ``TypeName: message`` of somebody else's exception, whatever it does when asked."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return name
    return f"{name}: {text}" if text else name


def printable(name: str) -> str:
    """Return a name from a file in a form that is safe to print: ASCII, bounded."""
    text = name if name.isascii() and name.isprintable() else ascii(name)[1:-1]
    return text if len(text) <= 120 else f"{text[:119]}…"


def counted(count: int, noun: str) -> str:
    """Return how many there are of something.

    >>> counted(1, "episode"), counted(2000, "policy")
    ('1 episode', '2,000 policies')
    """
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def shorten(value: object, limit: int = 120) -> str:
    """Return a value as one line of text, shortened for a message."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def differences(traits: Mapping[str, object], others: Mapping[str, object]) -> str:
    """Return where things with the same traits differ; empty where they do not.

    >>> differences({"squash": "none", "stochastic": True}, {"squash": "tanh", "stochastic": True})
    'squash none against tanh'
    """
    pairs = [(name, trait, others[name]) for name, trait in traits.items()]
    return "; ".join(
        f"{name} {shorten(one)} against {shorten(other)}"
        for name, one, other in pairs
        if UNKNOWN not in (one, other) and one != other
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question for a remedy to begin with, where a mistyped name is nearly a known one.

    >>> did_you_mean("psf", ["pssvf", "psvf"]), did_you_mean("other", ["psvf"])
    ("did you mean 'psvf'? ", '')
    """
    import difflib

    near = difflib.get_close_matches(name[:200], list(known), n=1, cutoff=0.75)
    return f"did you mean {near[0]!r}? " if near else ""


class PbvfError(Exception):
    """Base of all errors caused by a user's input or surroundings.

    Args:
        what: What is wrong, with the given and the expected value.
        where: The file (and the object inside it) or the option concerned.
        remedy: What the user can do about it.
    """

    exit_code = 1

    def __init__(
        self, what: str, *, where: str | os.PathLike[str] | None = None, remedy: str | None = None
    ) -> None:
        self.what = what
        self.where = None if where is None else os.fspath(where)
        self.remedy = remedy
        super().__init__(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments are lost in default pickling between worker processes. Notes
        # hold the traceback of the process that raised it.
        notes = {"__notes__": self.__notes__} if hasattr(self, "__notes__") else None
        return (_rebuild, (type(self), self.what, self.where, self.remedy), notes)

    def __str__(self) -> str:
        """One line: ``where: what; remedy``."""
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.remedy is not None:
            text = f"{text}; {self.remedy}"
        return " ".join(text.split())


def _rebuild(kind: type[PbvfError], what: str, where: str | None, remedy: str | None) -> PbvfError:
    return kind(what, where=where, remedy=remedy)


class UsageError(PbvfError):
    """Wrong usage: an unknown name, a malformed value, an unsupported combination."""

    exit_code = 2


class DamagedError(PbvfError):
    """An input file is damaged or contradicts itself."""

    exit_code = 3


class UnsafeError(PbvfError):
    """An input file could run code, read other files, or exhaust the machine."""

    exit_code = 4


class IncompatibleError(PbvfError):
    """Inputs that are each fine do not fit together, or have another format version."""

    exit_code = 5


class ResourceError(PbvfError):
    """The machine refuses: disk, memory or permission."""

    exit_code = 6


class ConflictError(PbvfError):
    """The output exists with other settings, or another process is writing it."""

    exit_code = 7


class DivergedError(PbvfError):
    """NaN or infinite values in training or from the environment."""

    exit_code = 8


class WorkerError(PbvfError):
    """A worker process died or hung repeatedly."""

    exit_code = 9


class NetworkError(PbvfError):
    """A remote place could not be reached or refused."""

    exit_code = 10


@contextlib.contextmanager
def naming(where: str | os.PathLike[str], *kinds: type[PbvfError]) -> Iterator[None]:
    """Have errors of some kinds that name no place name this one."""
    try:
        yield
    except kinds as error:
        if error.where is not None:
            raise
        raise type(error)(error.what, where=where, remedy=error.remedy) from error
