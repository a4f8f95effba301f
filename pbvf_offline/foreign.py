"""Failures of code that is not ours: an environment, a wrapper, an installed package.

Such a failure is reported in one line that says what its author needs: the exception, and the file
and line in the author's own code, also when it comes from a worker process.
"""

from __future__ import annotations

import errno
import itertools
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from pbvf_offline.errors import PbvfError, ResourceError, UsageError

SEE_TRACEBACK: Final = "--debug shows the traceback"
_OURS: Final = {"pbvf_offline", "pbvf_datasets", "pbvf_runs", "pbvf_experiments", "pbvf_cli"}
_INSTALLED: Final = ("site-packages", "dist-packages")
_STANDARD: Final = sysconfig.get_path("stdlib") + os.sep
_REFUSED_BY_MACHINE: Final = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.EAGAIN,
}
_MEMORY_TEXTS: Final = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "alloc_failed",  # of cuBLAS and cuDNN
)
_LONGEST_CHAIN: Final = 10


def failure(error: BaseException, what: str, *, remedy: str, where: str | None = None) -> PbvfError:
    """Return the error that reports what somebody else's code raised.

    Args:
        error: The exception, with its traceback.
        what: What failed, with the text of the exception in it.
        remedy: What the user can do, where the machine did not refuse.
        where: Name of what failed.

    Returns:
        A UsageError, or a ResourceError where memory, disk or open files ran out. It names the
        place, if it is known, and ``--debug``.
    """
    place = place_of(error)
    text = what if place is None else f"{what}, at {place}"
    if is_memory(error) or (isinstance(error, OSError) and error.errno in _REFUSED_BY_MACHINE):
        return ResourceError(text, where=where, remedy=f"make room; {SEE_TRACEBACK}")
    return UsageError(text, where=where, remedy=f"{remedy}; {SEE_TRACEBACK}")


def stops(error: BaseException) -> bool:
    """Whether an exception out of somebody else's code is a signal to this program.

    Others that are no ``Exception`` are failures all the same: ``SystemExit``, what a library of
    compiled code raises when it panics, what a test framework or ``asyncio`` raises.
    """
    ours = type(error).__module__.partition(".")[0] in _OURS
    return isinstance(error, KeyboardInterrupt) or (ours and not isinstance(error, Exception))


def is_memory(error: BaseException) -> bool:
    """Whether memory ran out, be it in what another exception was raised from."""
    # torch reports a failed allocation as a plain RuntimeError.
    return any(
        isinstance(link, MemoryError)
        or (isinstance(link, RuntimeError) and any(t in str(link).lower() for t in _MEMORY_TEXTS))
        for link in itertools.islice(_chain(error), _LONGEST_CHAIN)
    )


def place_of(error: BaseException) -> str | None:
    """Return ``FILE:LINE (in FUNCTION)`` of the author's frame that is nearest to a failure.

    That is the innermost frame of code that is in no installed package; where all of it is
    installed, the innermost frame of the package that was called first. Frames of this project, of
    Gymnasium and of Python's own library are nobody's here.

    Returns:
        The place, its file relative to the current folder where it is inside; None where no such
        frame took part.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_shown(error.filename)}:{error.lineno}"
    # Whoever raises another exception from the first one may hide the author's frames.
    for link in itertools.islice(_chain(error), _LONGEST_CHAIN):
        found = _nearest(link)
        if found is not None:
            frame, line = found
            return f"{_shown(frame.f_code.co_filename)}:{line} (in {frame.f_code.co_name})"
    return None


def raised_by_author(error: BaseException) -> bool:
    """Whether the frame that :func:`place_of` names is the one that raised the exception."""
    found = _nearest(error)
    return found is not None and found[0] is list(traceback.walk_tb(error.__traceback__))[-1][0]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _nearest(error: BaseException) -> tuple[FrameType, int] | None:
    found = [pair for pair in traceback.walk_tb(error.__traceback__) if _is_authors(pair[0])]
    if not found:
        return None
    own = [pair for pair in found if _package(pair[0]) is None]
    first = _package(found[0][0])
    return own[-1] if own else [pair for pair in found if _package(pair[0]) == first][-1]


def _is_authors(frame: FrameType) -> bool:
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    file = frame.f_code.co_filename
    if top in _OURS or top == "gymnasium" or file.startswith("<"):
        return False
    return _package(frame) is not None or not file.startswith(_STANDARD)


def _package(frame: FrameType) -> str | None:
    """Return the installed package that a frame belongs to, or None."""
    parts = Path(frame.f_code.co_filename).parts
    for k, part in enumerate(parts[:-1]):
        if part in _INSTALLED:
            return parts[k + 1]
    return None


def _shown(file: str) -> str:
    try:
        here = Path.cwd()
    except OSError:  # the folder is gone
        return file
    path = Path(file)
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
