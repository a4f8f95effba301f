"""Signal handlers and current folder of the program, which an environment may not take over."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

_STOPPING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """Put the signal handlers and the current folder back after the block.

    An environment that changes the folder would move the relative paths of everything else.
    """
    try:
        folder = os.getcwd()  # noqa: PTH109  # of every block, and a Path takes longer
    except OSError:  # it was deleted
        folder = None
    try:
        with _handlers_kept():
            yield
    finally:
        if folder is not None:
            os.chdir(folder)


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
