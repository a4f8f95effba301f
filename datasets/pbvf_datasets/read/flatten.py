"""Checked episodes laid end to end in flat arrays, with each distinct policy once."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.schema import FIELDS
from pbvf_datasets.read.episodes import CheckedEpisode
from pbvf_offline.errors import DamagedError
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.episodes import Trajectories

_KEPT: Final = {
    "infos/reward_survive": slice(1, None),  # the first entry belongs to no step
    "infos/pre_action": slice(None, -1),  # nor does the last
}
_ALL: Final = slice(None)
_BUFFER: Final = 2**16
_STEPS: Final = tuple(f for f in FIELDS if f.rows != "S" and f.name != "infos/segment")
_POLICY: Final = tuple(f for f in FIELDS if f.rows == "S")


class _Column:
    """A flat array that grows at its end."""

    __slots__ = ("_array", "_used")

    def __init__(self, like: NDArray[Any], rows: int) -> None:
        self._array: NDArray[Any] = np.empty((rows, *like.shape[1:]), like.dtype)
        self._used = 0

    def extend(self, values: NDArray[Any]) -> None:
        start = self._used
        self._used = end = start + len(values)
        if end > len(self._array):
            # In place (the system remaps large blocks), so nothing is in memory twice.
            self._resize(max(end, len(self._array) * 5 // 4 + 16))
        self._array[start:end] = values

    def done(self) -> NDArray[Any]:
        self._resize(self._used)
        return self._array

    def _resize(self, rows: int) -> None:
        self._array.resize((rows, *self._array.shape[1:]), refcheck=False)


class _FileColumn:
    """The same in a file without a name, which is mapped in the end."""

    __slots__ = ("_file", "_like")

    def __init__(self, like: NDArray[Any], file: IO[bytes]) -> None:
        self._like, self._file = like[:0], file

    def extend(self, values: NDArray[Any]) -> None:
        self._file.write(np.ascontiguousarray(values, self._like.dtype).data)

    def done(self) -> NDArray[Any]:
        self._file.flush()
        image = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(image, self._like.dtype).reshape(-1, *self._like.shape[1:])


_NewColumn = Callable[[NDArray[Any], int], _Column | _FileColumn]


class ScratchError(Exception):
    """Columns cannot be kept in files."""


@contextlib.contextmanager
def fresh_columns(scratch: Path | None) -> Iterator[_NewColumn]:
    """Yield what makes a column of rows like those of an array, for so many of them.

    Args:
        scratch: Folder for files that hold what is put into columns, in the place of memory. They
            have no names, and vanish with the arrays.

    Raises:
        ScratchError: Such a file cannot be written.
    """
    if scratch is None:
        yield _Column
        return
    try:
        with contextlib.ExitStack() as files:

            def column(like: NDArray[Any], rows: int) -> _FileColumn:
                del rows
                return _FileColumn(
                    like,
                    files.enter_context(tempfile.TemporaryFile(dir=scratch, buffering=_BUFFER)),
                )

            yield column
    except OSError as error:
        raise ScratchError from error


def flatten(
    episodes: Iterable[CheckedEpisode], where: str, steps: int = 0, scratch: Path | None = None
) -> Trajectories:
    """Lay episodes end to end and unify their policies, in the order of first appearance.

    Args:
        episodes: With all of their arrays.
        where: File or dataset, for messages.
        steps: Expected number of steps; any number is correct, the right one is fast.
        scratch: See :func:`fresh_columns`, of what there is of each step.

    Raises:
        DamagedError: There is no episode.
        ScratchError: A file cannot be written.
    """
    with fresh_columns(scratch) as column:
        return _flatten(episodes, where, steps, column)


def _flatten(
    episodes: Iterable[CheckedEpisode], where: str, steps: int, fresh_column: _NewColumn
) -> Trajectories:
    columns: dict[str, _Column | _FileColumn] = {}
    rows: dict[bytes, int] = {}  # digest of a policy → its row
    moves: list[tuple[str, slice, _Column | _FileColumn]] = []  # array, rows that stay, where to
    lengths: list[int] = [0]
    cut: list[bool] = []
    seeds: list[int] = []
    spec = None
    for episode in episodes:
        spec, arrays = episode.spec, episode.arrays
        if not columns:
            columns = _columns(arrays, steps, fresh_column)
            moves = [
                (f.name, _KEPT.get(f.name, _ALL), columns[f.attribute])
                for f in _STEPS
                if f.name in arrays
            ]
        local = np.empty(episode.segments, np.int32)
        known = len(rows)
        fresh: list[int] = []
        for j, key in enumerate(episode.policy_keys()):
            local[j] = row = rows.setdefault(key, len(rows))
            if row == known + len(fresh):
                fresh.append(j)
        if fresh:
            new = _ALL if len(fresh) == episode.segments else fresh
            for field in _POLICY:
                columns[field.attribute].extend(arrays[field.name][new])
        for name, kept, column in moves:
            column.extend(arrays[name][kept])
        columns["policy"].extend(local[arrays["infos/segment"][:-1]])
        lengths.append(len(episode))
        cut.append(episode.cut != "none")
        seeds.append(-1 if episode.seed is None else episode.seed)
    if spec is None:
        raise DamagedError("it holds no episode", where=where)
    flat: dict[str, Any] = {name: column.done() for name, column in columns.items()}
    return Trajectories(
        policies=Policies(spec, *(flat.pop(field.attribute) for field in _POLICY)),
        start=np.cumsum(lengths, dtype=np.int64),
        cut=np.array(cut, np.bool_),
        seeds=np.array(seeds, np.int64),
        **flat,
    )


def _columns(
    arrays: Mapping[str, NDArray[Any]], steps: int, column: _NewColumn
) -> dict[str, _Column | _FileColumn]:
    """Return empty columns for all fields that the first episode has."""
    columns = {"policy": column(np.empty(0, np.int32), steps)}
    for field in (*_STEPS, *_POLICY):
        if field.name in arrays:
            like = arrays[field.name]
            room = steps if field.rows == "T" else steps + steps // 8
            columns[field.attribute] = _Column(like, 1) if field.rows == "S" else column(like, room)
    return columns
