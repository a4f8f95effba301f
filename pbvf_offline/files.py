"""Self-describing tensor files: safetensors with one JSON entry and a digest of the whole.

The header's single metadata entry ``pbvf`` holds canonical JSON with the file's kind,
format version, content and a SHA-256 over the entire file (with the digest itself
replaced by zeros), so damage anywhere, padding and header included, is noticed.
Nothing is pickled, and a pickle is refused without being opened.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pickletools
import stat
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.strict_json import canonical_json, parse_json

FORMAT_VERSION = 1
MAX_HEADER = 16 * 2**20
MAX_FILE = 16 * 2**30
_PICKLE_PROBE = 65_536
_ZEROS = "0" * 64
_ENTRY = "pbvf"
_DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "U8": np.uint8}
Tensors = dict[str, NDArray[Any]]


def encode(kind: str, content: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a tensor file; equal arguments give equal bytes.

    Args:
        kind: What the file is: ``critic``, ``policies``, …
        content: JSON content of the header; no NaN.
        tensors: float32, float64, int32, int64 or uint8 arrays of any shape.
    """
    entry = {"kind": kind, "version": FORMAT_VERSION, "content": content, "sha256": _ZEROS}
    metadata = {_ENTRY: canonical_json(entry).decode()}
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    blank = safetensors.numpy.save(contiguous, metadata=metadata)
    digest = hashlib.sha256(blank).hexdigest()
    at = _digest_position(blank)
    return blank[:at] + digest.encode() + blank[at + 64 :]


def _digest_position(image: bytes) -> int:
    """Return where the 64 hex digits of the digest stand.

    Canonical JSON sorts the keys, so in the header (where quotes are escaped) the
    digest is the value of the second-last key, before ``version``.
    """
    header_end = 8 + int.from_bytes(image[:8], "little")
    marker = rb"\"sha256\":\""
    at = image.rfind(marker, 8, header_end)
    return -1 if at < 0 else at + len(marker)


def decode(kind: str, image: bytes, where: str) -> tuple[dict[str, Any], Tensors]:
    """Check the bytes of a tensor file and return its content and tensors.

    Tensors are read-only views into ``image``.

    Raises:
        UnsafeError: It is a pickle or an archive.
        DamagedError: It is not safetensors, or its digest does not match.
        IncompatibleError: It is of another kind or a newer version.
    """
    refuse_pickle(image, where)
    if len(image) < 10 or int.from_bytes(image[:8], "little") > min(len(image) - 8, MAX_HEADER):
        raise DamagedError(
            "is not a complete safetensors file", where=where, remedy="copy or make it again"
        )
    header_end = 8 + int.from_bytes(image[:8], "little")
    header = parse_json(image[8:header_end], where)
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get(_ENTRY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise IncompatibleError(
            f"has no pbvf header entry: it is not a {kind} file of this project", where=where
        )
    entry = parse_json(text, where)
    if not isinstance(entry, dict) or set(entry) != {"kind", "version", "content", "sha256"}:
        raise DamagedError("its pbvf header entry is malformed", where=where)
    version = entry["version"]
    if type(version) is not int or version < 1:
        raise DamagedError(f"its format version is {version!r}", where=where)
    if version > FORMAT_VERSION:
        raise IncompatibleError(
            f"has format version {version}, this program reads up to {FORMAT_VERSION}",
            where=where,
            remedy="upgrade pbvf-offline",
        )
    at = _digest_position(image)
    if at < 0:
        raise DamagedError("its header holds no digest in the place for it", where=where)
    digest = hashlib.sha256(image[:at])
    digest.update(_ZEROS.encode())
    digest.update(memoryview(image)[at + 64 :])
    if digest.hexdigest() != entry["sha256"] or image[at : at + 64] != entry["sha256"].encode():
        raise DamagedError(
            "its bytes do not match the digest inside it: the file is damaged",
            where=where,
            remedy="copy or make it again",
        )
    if entry["kind"] != kind:
        raise IncompatibleError(f"is a {entry['kind']} file, not a {kind} file", where=where)
    if not isinstance(entry["content"], dict):
        raise DamagedError("its header content is malformed", where=where)
    try:
        parts = safetensors.deserialize(image)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise DamagedError(f"is not a valid safetensors file: {error}", where=where) from error
    tensors: Tensors = {}
    for name, info in parts:
        dtype = _DTYPES.get(info["dtype"])
        if dtype is None:
            raise DamagedError(f"tensor {name} has type {info['dtype']}", where=where)
        tensors[name] = np.frombuffer(info["data"], dtype=dtype).reshape(info["shape"])
    return entry["content"], tensors


def refuse_pickle(image: bytes, where: str) -> None:
    """Refuse what could run code when loaded: pickles and torch archives.

    Raises:
        UnsafeError: The bytes are those of a pickle or a zip archive.
    """
    if image.startswith(b"PK\x03\x04") or _is_pickle(image):
        raise UnsafeError(
            "is a pickle or torch archive, which can run code when loaded; it was not opened",
            where=where,
            remedy="ask for a .safetensors file written by pbvf",
        )


def _is_pickle(image: bytes) -> bool:
    if image[8:9] == b"{" and not any(image[4:8]):
        return False  # a safetensors header: its length below 4 GiB, then its JSON
    if image[:1] == b"\x80" and image[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    try:
        # Protocols 0 and 1 have no mark at the start. Naming the opcodes runs none of them.
        return sum(1 for _ in pickletools.genops(image[:_PICKLE_PROBE])) > 1
    except Exception:
        return False


def write_file(path: Path, image: bytes) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename, fsync of the folder.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(image)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise resource_error(error, path) from error


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def resource_error(error: OSError, path: Path) -> PbvfError:
    """Return the user's error for a refusal of the operating system."""
    if error.errno == errno.ENOENT:
        return UsageError("does not exist", where=path)
    hints = {
        errno.ENOSPC: "free some disk space and run the same command again",
        errno.EDQUOT: "free some of your quota and run the same command again",
        errno.EROFS: "choose a folder that can be written",
        errno.EACCES: "choose a folder that you may write",
        errno.EPERM: "choose a folder that you may write",
        errno.ENOTDIR: "choose another place",
        errno.EISDIR: "name a file, not a folder",
        errno.ENAMETOOLONG: "choose a shorter name",
    }
    reason = os.strerror(error.errno) if error.errno else str(error)
    return ResourceError(
        f"{reason.lower()}", where=path, remedy=hints.get(error.errno or 0, "check the disk")
    )


def _open_regular(path: Path) -> BufferedReader:
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError("is not a regular file", where=path)
    return os.fdopen(descriptor, "rb")


def read_file(path: Path, limit: int = MAX_FILE) -> bytes:
    """Read a regular file of bounded size.

    Raises:
        UsageError: It does not exist, or is not a regular file.
        UnsafeError: It is too large.
        ResourceError: It cannot be read.
    """
    try:
        with _open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > limit:
                raise UnsafeError(
                    f"is {status.st_size:,} bytes long, over the limit of {limit:,}", where=path
                )
            return file.read()
    except OSError as error:
        raise resource_error(error, path) from error


def refuse_difference(
    there: Mapping[str, Any], now: Mapping[str, Any], path: Path, option: str = "--out"
) -> None:
    """Refuse to touch an output that was made with other settings.

    Args:
        there: The settings that the output was made with.
        now: The settings asked for.
        path: The output.
        option: What names the output on the command line.

    Raises:
        ConflictError: They differ; each difference is named with both values.
    """
    different = [
        f"{name} {there.get(name)!r} (now {now[name]!r})"
        for name in sorted(now)
        if there.get(name) != now[name]
    ]
    if different:
        raise ConflictError(
            f"exists with other settings: {', '.join(different)}",
            where=path,
            remedy=f"choose another {option}, or start anew with --overwrite",
        )


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex.

    Raises:
        UsageError: It does not exist.
        ResourceError: It cannot be read.
    """
    try:
        with _open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise resource_error(error, path) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock that guards writing ``path`` (a lock file beside it).

    Raises:
        ConflictError: Another process holds it.
        ResourceError: The lock file cannot be made.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise resource_error(error, path) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != lock.stat().st_ino:
                raise FileNotFoundError(lock)  # its last holder removed it in between
        except OSError as error:
            raise ConflictError(
                "another process is writing this output",
                where=path,
                remedy="wait for it, or choose another name",
            ) from error
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()  # while still held: a waiting process opens a fresh one
    finally:
        os.close(descriptor)
