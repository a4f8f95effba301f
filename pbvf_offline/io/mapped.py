"""Arrays that are backed by files: what was read of them need not stay in memory."""

from __future__ import annotations

import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_FORGET: Final = getattr(mmap, "MADV_DONTNEED", None)
ROWS: Final = 4096  # rows read at once: each may bring 64 kB of pages with it


def release(*arrays: NDArray[Any] | None) -> None:
    """Give back the memory that the pages of mapped arrays take in this process.

    They are read again when they are needed, mostly from the system's own cache of the file.
    Nothing happens to arrays in memory, nor to those that can be written to, whose pages may
    differ from the file.
    """
    for array in arrays:
        if array is None or array.flags.writeable or _FORGET is None or array.nbytes == 0:
            continue
        owner: Any = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
        if isinstance(owner, mmap.mmap) and array.flags.c_contiguous:
            begin = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
            first = begin - begin % mmap.PAGESIZE
            owner.madvise(_FORGET, first, begin + array.nbytes - first)


def taken(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    """Return some rows of an array; of a mapped one, no others stay in memory.

    Rows in increasing order are read fastest.
    """
    found = np.empty((len(rows), *array.shape[1:]), array.dtype)
    for at in range(0, len(rows), ROWS):
        found[at : at + ROWS] = array[rows[at : at + ROWS]]
        release(array)
    return found
