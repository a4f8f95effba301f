from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pbvf_offline.io.mapped import release, taken

ROWS = 2**19  # of 8 numbers: 32 MB


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "numbers"
    np.arange(8.0 * ROWS).tofile(path)
    return path


def array_of(path: Path, access: int = mmap.ACCESS_READ) -> NDArray[np.float64]:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access)).reshape(-1, 8)


def resident(path: Path) -> int:
    """Bytes of a file's mappings that are in this process's memory."""
    try:
        text = Path("/proc/self/smaps").read_text()
    except OSError:
        pytest.skip("the system does not say what is in memory")
    own = re.findall(rf"{re.escape(str(path))}\n(?:\w+:.*\n)*?Rss: +(\d+) kB", text)
    return 1024 * sum(map(int, own))


def test_pages_that_were_read_are_given_back(path: Path) -> None:
    array = array_of(path)
    assert array.sum() > 0
    assert resident(path) > 30e6
    half = array[: ROWS // 2]
    release(half, None)
    assert 15e6 < resident(path) < 18e6
    release(array)
    assert resident(path) == 0
    assert array[3, 1] == 25


def test_rows_taken_leave_no_others_in_memory(path: Path) -> None:
    array = array_of(path)
    rows = np.random.default_rng(0).integers(ROWS, size=20_000)
    np.testing.assert_array_equal(taken(array, rows)[:, 0], 8.0 * rows)
    assert resident(path) == 0


def test_what_was_written_to_is_kept(path: Path) -> None:
    array = array_of(path, mmap.ACCESS_COPY)
    array[0] = 7
    release(array, np.ones(3))
    assert array[0, 0] == 7
