"""The training cache: a dataset's flat arrays in one file, so that loading costs no episode.

The cache is derived from a dataset that was checked, keyed by the dataset's digest, and
never trusted: it lives in the user's own folder (never inside a dataset), carries its
own sha256, and whatever is wrong with it only means that it is built anew. A file
belongs to the user who reads it, or it is not read. Failing to write it is no error.

Layout: magic, sha256 of all that follows, length of the header, header (JSON: the spec,
and name, dtype, shape and offset of each array), arrays at multiples of 64 bytes. The
file is mapped, not copied: arrays are backed by the file and cannot be written to, so that
pages that were used can leave memory again, and a dataset may be larger than memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.spaces import OBS_DTYPES
from pbvf_offline.errors import PbvfError
from pbvf_offline.io.mapped import release
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories

_MAGIC: Final = b"pbvfcach"
_VERSION: Final = 2
"""Part of the file name: raise it when the layout, or what the reader checks, changes."""

_SUFFIX: Final = f".v{_VERSION}.cache"
_ALIGN: Final = 64
_START: Final = len(_MAGIC) + 32 + 8
_MAX_HEADER: Final = 16 * 2**20
_BLOCK: Final = 2**24

KEEP_FILES: Final = 8
KEEP_BYTES: Final = 20 * 10**9

_DTYPES: Final = frozenset(np.dtype(name).str for name in (*OBS_DTYPES, "bool"))
_POLICIES: Final = ("theta", "obs_mean", "obs_std")
_COLUMNS: Final = tuple(f.name for f in fields(Trajectories) if f.name != "policies")


class _CacheError(Exception):
    """The cache file is of no use."""


def cache_folder() -> Path:
    """Return where caches live: PBVF_CACHE, else XDG_CACHE_HOME or ~/.cache."""
    given = os.environ.get("PBVF_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pbvf-offline"


def scratch_folder() -> Path | None:
    """Return the cache folder for files that vanish with the process; None: there is none."""
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder


def cache_file(digest: str) -> Path:
    """Return the cache file of the dataset with this digest, whether it exists or not."""
    return cache_folder() / f"{digest}{_SUFFIX}"


def load_cache(digest: str) -> Trajectories | None:
    """Return the flat arrays of a dataset, or None when there is no good cache.

    Args:
        digest: The dataset's digest (hex), which the caller has just checked.
    """
    try:
        path = cache_file(digest)
        trajectories = _unpack(_map(path), digest)
        with contextlib.suppress(OSError):
            os.utime(path)  # the most recently used files are kept
    except (OSError, RuntimeError, _CacheError, PbvfError):
        return None
    return trajectories


def store_cache(digest: str, trajectories: Trajectories) -> bool:
    """Write the flat arrays of a dataset; whole or not at all.

    Returns:
        Whether it was written: a full disk or a read-only home is no error.
    """
    try:
        path = cache_file(digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, digest, trajectories)
        _prune(path)
    except (OSError, RuntimeError):
        return False
    return True


def _arrays(trajectories: Trajectories) -> dict[str, NDArray[Any]]:
    policies = trajectories.policies
    arrays = {name: getattr(policies, name) for name in _POLICIES}
    for name in _COLUMNS:
        value = getattr(trajectories, name)
        if value is not None:
            arrays[name] = value
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _align(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def _write(path: Path, digest: str, trajectories: Trajectories) -> None:
    arrays = _arrays(trajectories)
    table = []
    offset = 0
    for name, array in arrays.items():
        table.append([name, array.dtype.str, list(array.shape), offset])
        offset = _align(offset + array.nbytes)
    header = canonical_json(
        {"digest": digest, "spec": trajectories.policies.spec.to_dict(), "arrays": table}
    )
    header = header.ljust(_align(_START + len(header)) - _START)
    descriptor, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(_START - 8))
            total = hashlib.sha256()
            for part in _parts(header, arrays):
                file.write(part)
                total.update(part)
            file.seek(0)
            file.write(_MAGIC + total.digest())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _parts(header: bytes, arrays: Mapping[str, NDArray[Any]]) -> Iterator[bytes | memoryview]:
    yield len(header).to_bytes(8, "little")
    yield header
    for array in arrays.values():
        flat = array.reshape(-1).view(np.uint8)
        for at in range(0, len(flat), _BLOCK):
            block = flat[at : at + _BLOCK]
            yield block.data
            release(block)
        yield bytes(_align(array.nbytes) - array.nbytes)


def _map(path: Path) -> mmap.mmap:
    """Map a cache file whose checksum is right; it is read for that, which takes no memory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
            raise _CacheError("not a file of this user")
        if info.st_size < _START:
            raise _CacheError("too short")
        if file.read(len(_MAGIC)) != _MAGIC:
            raise _CacheError("another kind of file")
        expected = file.read(32)
        if hashlib.file_digest(file, "sha256").digest() != expected:
            raise _CacheError("damaged")
        try:
            return mmap.mmap(descriptor, info.st_size, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise _CacheError("it cannot be mapped") from error


def _unpack(image: mmap.mmap, digest: str) -> Trajectories:
    length = int.from_bytes(image[_START - 8 : _START], "little")
    if length > min(_MAX_HEADER, len(image) - _START):
        raise _CacheError("its header is cut off")
    header = parse_json(image[_START : _START + length], "cache")
    try:
        if header["digest"] != digest:
            raise _CacheError("it is of another dataset")
        arrays = {
            name: _array(image, _START + length, dtype, shape, offset)
            for name, dtype, shape, offset in header["arrays"]
        }
        spec = PolicySpec.from_dict(header["spec"], "cache")
        policies = Policies(spec, *(arrays.pop(name) for name in _POLICIES))
        trajectories = Trajectories(policies=policies, **arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise _CacheError("its header is malformed") from error
    _check(trajectories)
    return trajectories


def _array(image: mmap.mmap, base: int, dtype: str, shape: list[int], offset: int) -> NDArray[Any]:
    if dtype not in _DTYPES or any(type(n) is not int or n < 0 for n in shape):
        raise _CacheError("its header is malformed")
    count = math.prod(shape)
    end = base + offset + count * np.dtype(dtype).itemsize
    if type(offset) is not int or offset < 0 or offset % _ALIGN or end > len(image):
        raise _CacheError("its header is malformed")
    # The array keeps the mapping alive.
    return np.frombuffer(image, dtype, count, base + offset).reshape(shape)


def _check(t: Trajectories) -> None:
    """Check shapes and indices: a wrong one would read beyond the arrays."""
    start = t.start
    if (
        start.ndim != 1
        or start.shape[0] < 2
        or start[0] != 0
        or not bool(np.all(np.diff(start) > 0))
    ):
        raise _CacheError("its episodes do not add up")
    steps, episodes, spec = int(start[-1]), t.episodes, t.policies.spec
    act = (steps, spec.actions.dim) if spec.is_continuous else (steps,)
    forms: dict[str, tuple[str | None, tuple[int, ...]]] = {
        "observations": (None, (steps + episodes, spec.obs_dim)),
        "actions": (None, act),
        "rewards": ("<f8", (steps,)),
        "terminated": ("|b1", (steps,)),
        "truncated": ("|b1", (steps,)),
        "policy": ("<i4", (steps,)),
        "start": ("<i8", (episodes + 1,)),
        "cut": ("|b1", (episodes,)),
        "seeds": ("<i8", (episodes,)),
        "reward_survive": ("<f8", (steps,)),
        "pre_action": ("<f8", act),
    }
    for name in _COLUMNS:
        array, (dtype, shape) = getattr(t, name), forms[name]
        if array is not None and (array.shape != shape or (dtype and array.dtype.str != dtype)):
            raise _CacheError(f"{name} has another dtype or shape")
    for _, part in t.parts():
        if part.policy.min() < 0 or part.policy.max() >= len(t.policies):
            raise _CacheError("a policy is out of range")


def _prune(newest: Path) -> None:
    """Remove caches that were not used for long, of any version, and files left by a crash."""
    found = []
    for path in newest.parent.iterdir():
        is_cache = path.name.endswith(".cache")
        if path == newest or not (is_cache or path.name.startswith(".tmp-")):
            continue
        with contextlib.suppress(OSError):
            info = path.lstat()
            if stat.S_ISREG(info.st_mode):
                found.append((is_cache, info.st_mtime_ns, info.st_size, path))
    found.sort(key=lambda entry: entry[1], reverse=True)
    newest_time = newest.stat().st_mtime_ns
    total, kept = newest.stat().st_size, 1
    for is_cache, used, size, path in found:
        if is_cache and kept < KEEP_FILES and total + size <= KEEP_BYTES:
            total, kept = total + size, kept + 1
        elif is_cache or newest_time - used > 3600 * 10**9:
            # A temporary file may be another process's, unless it is an hour old.
            with contextlib.suppress(OSError):
                path.unlink()
