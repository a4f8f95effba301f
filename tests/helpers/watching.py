"""A watch on who opens what: Python (an audit hook) or anybody (inotify)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Watch:
    """What was opened, by Python (an audit hook) or anybody (inotify)."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.imported: list[str] = []
        self.touched: list[str] = []


_active: list[Watch] = []
_hooked = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    for watch in _active:
        if event == "open" and isinstance(args[0], str | bytes):
            watch.opened.append(os.fsdecode(args[0]))
        elif event == "import":
            watch.imported.append(args[0])


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[Watch]:
    """Record what Python opens and imports, and what anybody opens in ``folder``.

    HDF5 opens files behind Python's back; inotify (Linux) sees that too.
    """
    global _hooked  # noqa: PLW0603
    if not _hooked:
        sys.addaudithook(_audit)
        _hooked = True
    watch = Watch()
    descriptor = inotify(folder)
    _active.append(watch)
    try:
        yield watch
    finally:
        _active.remove(watch)
        if descriptor is not None:
            watch.touched = events(descriptor)
            os.close(descriptor)


def inotify(*folders: Path) -> int | None:
    """Return a descriptor for :func:`events` in folders; None where there is no inotify."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    opened = 0x20
    assert descriptor >= 0
    for folder in folders:
        assert libc.inotify_add_watch(descriptor, os.fsencode(folder), opened) >= 0
    return int(descriptor)


def events(descriptor: int) -> list[str]:
    names = []
    with contextlib.suppress(BlockingIOError):
        while True:
            data = os.read(descriptor, 65_536)
            at = 0
            while at < len(data):
                length = struct.unpack_from("iIII", data, at)[3]
                name = data[at + 16 : at + 16 + length].rstrip(b"\0")
                names.append(os.fsdecode(name))
                at += 16 + length
    return names
