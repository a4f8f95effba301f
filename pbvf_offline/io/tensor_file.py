"""Self-describing tensor files: safetensors with one JSON entry and a digest of the whole.

The header's single metadata entry ``pbvf`` holds canonical JSON with the file's kind,
format version, content and a SHA-256 over the entire file (with the digest itself
replaced by zeros), so damage anywhere, padding and header included, is noticed.
Nothing is pickled, and a pickle is refused without being opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
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
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.durable import read_error
from pbvf_offline.io.formats import check_version
from pbvf_offline.io.reading import open_regular, read_all
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.records import format_version, to_json

MAX_HEADER = 16 * 2**20
_PICKLE_PROBE = 65_536
_ZEROS = "0" * 64
_ENTRY = "pbvf"
_DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "U8": np.uint8}
Tensors = dict[str, NDArray[Any]]
_MADE_BY = {
    "critic": "'pbvf fit-critic' makes critics",
    "model": "'pbvf fit-model' makes models",
    "policies": "'pbvf synthesize' and 'pbvf policies' make policies files",
}
_TAKEN_BY = {
    "checkpoint": "checkpoints are for 'pbvf train-online' with the folder of their run",
    "critic": "'pbvf synthesize' and 'pbvf predict' take critics",
    "model": "'pbvf fit-critic --model' and 'pbvf synthesize --model' take models",
    "policies": "'pbvf evaluate' and 'pbvf predict CRITIC' take policies",
}
_IMPORT = "'pbvf policies import' takes weights of other programs"
_AGAIN = "copy or make it again"
_STARTS = (
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        "an HDF5 file",
        "the folder that holds data/main_data.hdf5 is the dataset",
    ),
    (257, b"ustar", "an archive", "'pbvf unpack' takes out what 'pbvf pack' put there"),
)
"""Place and bytes by which other files are known; what they are; what to do with them."""
_START_BYTES = 1024


def encode(kind: str, content: object, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a tensor file; equal arguments give equal bytes.

    Args:
        kind: What the file is: ``critic``, ``policies``, …
        content: What the header says: a record, or a mapping of JSON in which records may be
            nested; no NaN. It decides the format version that the file states.
        tensors: float32, float64, int32, int64 or uint8 arrays of any shape.

    Raises:
        UsageError: The header would be longer than any that is read again.
    """
    entry = {
        "kind": kind,
        "version": format_version(content),
        "content": to_json(content),
        "sha256": _ZEROS,
    }
    metadata = {_ENTRY: canonical_json(entry).decode()}
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    blank = safetensors.numpy.save(contiguous, metadata=metadata)
    length = int.from_bytes(blank[:8], "little")
    if length > MAX_HEADER:
        raise UsageError(
            f"the {kind} file would have a header of {length:,} bytes; at most {MAX_HEADER:,} "
            "are read",
            remedy="ask for less in one file: fewer policies, measurements or episodes",
        )
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
    entry = _entry(kind, image, where)
    _check_digest(image, entry["sha256"], where)
    if entry["kind"] != kind:
        found = entry["kind"]
        ways = [table[k] for k, table in ((kind, _MADE_BY), (found, _TAKEN_BY)) if k in table]
        raise IncompatibleError(
            f"is a {found} file, not a {kind} file", where=where, remedy="; ".join(ways) or None
        )
    if not isinstance(entry["content"], dict):
        raise DamagedError("its header content is malformed", where=where)
    return entry["content"], _tensors(image, where)


def _entry(kind: str, image: bytes, where: str) -> dict[str, Any]:
    """Return the header entry of a file whose version this program reads."""
    refuse_pickle(image, where)
    if len(image) < 10 or int.from_bytes(image[:8], "little") > min(len(image) - 8, MAX_HEADER):
        raise DamagedError("is not a complete safetensors file", where=where, remedy=_AGAIN)
    header = parse_json(image[8 : 8 + int.from_bytes(image[:8], "little")], where)
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    text = metadata.get(_ENTRY) if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        raise IncompatibleError(
            f"has no pbvf header entry: it is not a {kind} file of this project",
            where=where,
            remedy="; ".join([*filter(None, [_MADE_BY.get(kind)]), _IMPORT]),
        )
    entry = parse_json(text, where)
    if not isinstance(entry, dict) or set(entry) != {"kind", "version", "content", "sha256"}:
        raise DamagedError("its pbvf header entry is malformed", where=where)
    check_version(entry["version"], where)
    return entry


def _check_digest(image: bytes, expected: object, where: str) -> None:
    at = _digest_position(image)
    if at < 0:
        raise DamagedError("its header holds no digest in the place for it", where=where)
    digest = hashlib.sha256(image[:at])
    digest.update(_ZEROS.encode())
    digest.update(memoryview(image)[at + 64 :])
    found = digest.hexdigest()
    if found != expected or image[at : at + 64] != found.encode():
        raise DamagedError(
            "its bytes do not match the digest inside it: the file is damaged",
            where=where,
            remedy=_AGAIN,
        )


def _tensors(image: bytes, where: str) -> Tensors:
    try:
        parts = safetensors.deserialize(image)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise DamagedError(f"is not a valid safetensors file: {error}", where=where) from error
    tensors: Tensors = {}
    for name, info in parts:
        dtype = _DTYPES.get(info["dtype"])
        if dtype is None:
            raise DamagedError(f"tensor {name} has type {info['dtype']}", where=where)
        try:
            tensors[name] = np.frombuffer(info["data"], dtype=dtype).reshape(info["shape"])
        except (ValueError, OverflowError) as error:  # no values, in a shape beyond all bounds
            raise DamagedError(
                f"tensor {name[:80]} has a shape that no array can have", where=where
            ) from error
    return tensors


def array_of(
    tensors: Tensors, name: str, shape: tuple[int, ...], dtype: type[np.generic], where: str
) -> NDArray[Any]:
    """Return a tensor of a file; a -1 in the shape that it must have stands for any length.

    Raises:
        DamagedError: It is missing, of another shape or type, or holds NaN or infinite values.
    """
    array = tensors.get(name)
    fits = (
        array is not None
        and array.ndim == len(shape)
        and all(want in (-1, got) for want, got in zip(shape, array.shape, strict=True))
        and array.dtype == dtype
    )
    if array is None or not fits:
        given = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise DamagedError(
            f"{name} is {given}, expected {np.dtype(dtype)} of shape {shape}", where=where
        )
    if not np.all(np.isfinite(array)):
        raise DamagedError(f"{name} holds NaN or infinite values", where=where)
    return array


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
    import pickletools  # a tenth of what collect imports, and seldom needed

    try:
        # Protocols 0 and 1 have no mark at the start. Naming the opcodes runs none of them.
        return sum(1 for _ in pickletools.genops(image[:_PICKLE_PROBE])) > 1
    except Exception:
        return False


def read_tensor_file(path: Path) -> bytes:
    """Read a tensor file after a look at its header: a long file of nothing is not read.

    Raises:
        UsageError: It does not exist, or is not a regular file.
        UnsafeError: It is a pickle or archive, too large, or nearly all holes.
        DamagedError: It is no safetensors file, or its size is not the one that its header
            tells of.
        ResourceError: It cannot be read.
    """
    try:
        with open_regular(path) as file:
            read_header(file, path)
            file.seek(0)
            return read_all(file, path)
    except OSError as error:
        raise read_error(error, path) from error


def read_header(file: BufferedReader, path: Path) -> dict[str, Any]:
    """Return the JSON header of a file open at its start, and compare the size it tells of.

    Raises:
        UnsafeError: It is a pickle or an archive.
        DamagedError: It is no safetensors file, or not as long as its header says.
        OSError: It cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    first = file.read(1)
    if first != b"{" or length > min(MAX_HEADER, size - 8):
        start += first + file.read(_PICKLE_PROBE)
        refuse_pickle(start, str(path))
        if first != b"{":
            raise _foreign(start, path)
        raise DamagedError("is not a complete safetensors file", where=path, remedy=_AGAIN)
    header = parse_json(first + file.read(length - 1), path)
    if not isinstance(header, dict):
        raise DamagedError("its header is no JSON object", where=path)
    ends = [part["data_offsets"][1] for part in header.values() if _has_offsets(part)]
    declared = 8 + length + max(ends, default=0)
    if declared != size:
        raise DamagedError(
            f"it has {size:,} bytes, but its header tells of {show_integer(declared)}",
            where=path,
            remedy=_AGAIN,
        )
    return header


def _foreign(start: bytes, path: Path) -> DamagedError:
    """Return the error for a file that does not begin as a tensor file does."""
    none = "none of this project's files"
    if (known := known_start(start)) is not None:
        return DamagedError(
            f"is {known[0]}, no tensor file of this project", where=path, remedy=known[1]
        )
    if not start:
        return DamagedError(f"is empty, so it is {none}", where=path, remedy=_AGAIN)
    return DamagedError(
        f"is {none}, or its start is damaged", where=path, remedy=f"check its path, or {_AGAIN}"
    )


def known_start(start: bytes) -> tuple[str, str] | None:
    """Return what a file is that begins so, and what to do with it; None where that is unknown.

    Only of files that are no tensor files, and are likely to be given in the place of one.
    """
    return next(
        ((what, todo) for at, mark, what, todo in _STARTS if start[at : at + len(mark)] == mark),
        None,
    )


def what_it_is(path: Path) -> tuple[str, str]:
    """Return what a file is, and what takes it, for who wanted something else."""
    kind = tensor_kind(path)
    if kind in _TAKEN_BY:
        return f"a {kind} file", _TAKEN_BY[kind]
    known = None
    with contextlib.suppress(PbvfError, OSError), open_regular(path) as file:
        known = known_start(file.read(_START_BYTES))
    return known or ("a file", "'pbvf info' tells what a file of this project holds")


def _has_offsets(part: object) -> bool:
    offsets = part.get("data_offsets") if isinstance(part, dict) else None
    return isinstance(offsets, list) and len(offsets) == 2 and all(type(n) is int for n in offsets)


def show_integer(value: int) -> str:
    """Return an integer of any size in a form that is fit for a message."""
    return f"{value:,}" if abs(value) < 10**30 else "an absurd number"


def refuse_other_kind(path: Path, kind: str, *, overwrite: bool) -> None:
    """Refuse to put a file of one kind in the place of something else, a user's input say.

    Args:
        path: The output.
        kind: ``critic`` or ``policies``.
        overwrite: Whether it is about to be replaced unread. Then it must be of this kind for
            certain, while otherwise reading a tensor file will tell what is wrong with it.

    Raises:
        ConflictError: Something else stands there.
    """
    if not path.exists():
        return
    found = tensor_kind(path)
    if found != kind and (found is not None or overwrite or not _begins_like_one(path)):
        raise ConflictError(
            f"exists and is no {kind} file, so it is not replaced",
            where=path,
            remedy="choose another --out, or remove it first",
        )


def _begins_like_one(path: Path) -> bool:
    """Whether a file begins as a tensor file does, be the rest of it damaged."""
    with contextlib.suppress(PbvfError, OSError), open_regular(path) as file:
        return file.read(9)[8:] == b"{"
    return True


def tensor_kind(path: Path) -> str | None:
    """Return the kind that a tensor file gives itself, be the rest of it damaged; None: unknown."""
    try:
        with open_regular(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > MAX_HEADER:
                return None
            header = parse_json(file.read(length), path)
            return str(parse_json(header["__metadata__"]["pbvf"], path)["kind"])
    except (PbvfError, OSError, LookupError, TypeError):
        return None
