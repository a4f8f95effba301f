"""Episodes into one HDF5 file that stock Minari reads.

Every dataset is one chunk with a Fletcher-32 checksum, in the layout that HDF5 1.10
introduced (a single chunk needs no index), without times, so that equal episodes give
equal bytes. The low-level interface of h5py is used because the cost of such a file
is per object: 12 arrays an episode, 10,000 episodes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5p, h5s, h5t
from numpy.typing import NDArray

from pbvf_datasets.format.schema import BLOB, FIELDS, episode_blob
from pbvf_offline.errors import UsageError
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Episode

MAX_CHUNK_BYTES: Final = 256 * 2**20
"""Larger arrays are split into chunks of whole rows (HDF5 allows less than 4 GiB)."""

_FILE_NAMES = tuple((f.attribute, f.name.rpartition("/")) for f in FIELDS)


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return the chunk of an array: all of it, or as many rows as MAX_CHUNK_BYTES hold."""
    row = itemsize
    for length in shape[1:]:
        row *= length
    return (min(shape[0], max(1, MAX_CHUNK_BYTES // row)), *shape[1:])


# Made once for each form that occurs: a dataset of 10,000 episodes has 120,000 arrays.
_type = functools.lru_cache(maxsize=64)(h5t.py_create)
_extent = functools.lru_cache(maxsize=1024)(h5s.create_simple)


@functools.lru_cache(maxsize=1024)
def _layout(chunk: tuple[int, ...]) -> Any:
    """Return how an array is stored, in chunks of this shape."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk(chunk)
    plist.set_fletcher32()
    plist.set_obj_track_times(False)
    return plist


def _write(group: Any, name: bytes, array: NDArray[Any], access: Any) -> None:
    kind = _type(array.dtype)
    layout = _layout(chunk_shape(array.shape, array.dtype.itemsize))
    dataset = h5d.create(group, name, kind, _extent(array.shape), layout, dapl=access)
    dataset.write(h5s.ALL, h5s.ALL, array, kind)


def write_episodes(
    path: str | os.PathLike[str], episodes: Iterable[Episode], spec: PolicySpec
) -> None:
    """Write episodes to a new HDF5 file at ``path``, one after another, and sync it.

    The same episodes give the same bytes. Only one episode is in memory at a time. An
    existing file is refused; after an error an unfinished file may be left behind, so
    callers give a temporary name.

    Args:
        path: Where the file is made.
        episodes: What to write, in order; ``episode_0`` first.
        spec: The policies' architecture, stored with every episode.

    Raises:
        UsageError: An array is empty.
        OSError: The disk refuses.
    """
    blobs = {
        cut: np.frombuffer(episode_blob(spec, cut), dtype=np.uint8) for cut in ("none", "budget")
    }
    # Whole chunks pass straight through: a chunk cache would only cost its allocation.
    whole = h5p.create(h5p.DATASET_ACCESS)
    whole.set_chunk_cache(1, 0, 1.0)
    scalar = h5s.create(h5s.SCALAR)
    integer = _type(np.dtype(np.int64))
    names = [(a, bool(folder), leaf.encode()) for a, (folder, _, leaf) in _FILE_NAMES]
    blob_name = BLOB.rpartition("/")[2].encode()
    group_plist = h5p.create(h5p.GROUP_CREATE)
    group_plist.set_obj_track_times(False)
    file_plist = h5p.create(h5p.FILE_CREATE)
    file_plist.set_obj_track_times(False)
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_libver_bounds(h5f.LIBVER_V110, h5f.LIBVER_V110)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    # Metadata is laid down in large blocks: fewer writes, and neighbours stay together.
    access.set_meta_block_size(1 << 16)
    file = None
    try:
        file = h5f.create(os.fsencode(path), h5f.ACC_EXCL, fcpl=file_plist, fapl=access)
        for i, episode in enumerate(episodes):
            group = h5g.create(file, b"episode_%d" % i, gcpl=group_plist)
            infos = h5g.create(group, b"infos", gcpl=group_plist)
            attributes = [(b"id", i), (b"total_steps", len(episode))]
            if episode.seed is not None:
                attributes.append((b"seed", episode.seed))
            for key, value in attributes:
                h5a.create(group, key, integer, scalar).write(np.array(value, np.int64))
            for attribute, inside, leaf in names:
                array = getattr(episode, attribute)
                if array is None:
                    continue
                if array.size == 0:
                    raise UsageError(f"episode {i} has an empty array {attribute}")
                _write(infos if inside else group, leaf, np.ascontiguousarray(array), whole)
            _write(infos, blob_name, blobs[episode.cut], whole)
        file.close()
    except BaseException as error:
        if file is not None:
            with contextlib.suppress(Exception):
                file.close()
        plain = _as_os_error(error, path)
        if plain is None:
            raise
        raise plain from error
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_os_error(error: BaseException, path: str | os.PathLike[str]) -> OSError | None:
    """Return the plain OSError inside HDF5's long texts, if there is one.

    A full disk surfaces as OSError while writing and as RuntimeError while closing.
    """
    match = re.search(r"errno = (\d+)", str(error))
    if match is None or not isinstance(error, OSError | RuntimeError):
        return None
    number = int(match[1])
    return OSError(number, os.strerror(number), os.fspath(path))
