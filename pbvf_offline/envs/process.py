"""Signal handlers and current folder of the program, which an environment may not take over."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from pbvf_offline.errors import ResourceError

_STOPPING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Put the signal handlers and the current folder back after the block.

    An environment that changes the folder would move the relative paths of everything else.

    Raises:
        ResourceError: The way back is gone or forbidden.
    """
    try:
        name, before = os.getcwd(), os.stat(".")  # noqa: PTH109, PTH116  # a Path takes longer
    except OSError:  # it was deleted
        name, before = None, None
    try:
        with _handlers_kept():
            yield
    finally:
        if name is not None and before is not None:
            _return_to(name, before)


def _return_to(name: str, before: os.stat_result) -> None:
    """Change to a folder, unless this is the one: it may have got another name meanwhile."""
    try:
        if not os.path.samestat(os.stat("."), before):  # noqa: PTH116
            os.chdir(name)
    except OSError as error:
        raise ResourceError(
            f"the environment left this folder, and there is no way back: {error.strerror}",
            where=name,
            remedy="keep the folder while the command runs",
        ) from error


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Install the present handlers of SIGINT, SIGTERM and SIGHUP again after the block.

    An environment that installs its own, as some windows and simulators do, would leave a program
    that cannot be stopped, or one that loses its work when it is. Only a main thread has handlers;
    elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(number, signal.getsignal(number)) for number in _STOPPING]
    try:
        yield
    finally:
        for number, handler in before:
            if handler is not None:  # None: installed by other means than Python's
                # Also where Python sees no change: a library may have changed it by itself.
                signal.signal(number, handler)
