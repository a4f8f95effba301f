"""Pack and unpack: a dataset as one plain tar file, for mail and USB sticks.

Any ``tar`` reads such a file, but :func:`unpack` is no general reader: every byte of an
archive follows from the files inside it, so it works out what the bytes must be and compares.
Headers are written and read here, 512 bytes each; nothing is ever extracted by a library that
makes links, devices or folders of what it finds.

An archive holds one folder: ``manifest.json`` first, the other files in order of their names,
and last ``SHA256SUMS`` with the digest of each, as ``sha256sum -c`` reads it. Owners, times
and rights are constants. Two blocks of zeros end it, and more fill it to 10,240 bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Final

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES, parse_manifest
from pbvf_datasets.format.schema import (
    CARD_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    SIGNATURE_FILE,
    check_dataset_id,
    new_dataset_path,
)
from pbvf_datasets.read.untrusted import MAX_CARD_BYTES, MAX_METADATA_BYTES, parse_metadata
from pbvf_datasets.share.arrival import (
    CHUNK,
    Arrival,
    Progress,
    arrival_work,
    card_differs,
    listed_files,
    renew,
    silent,
    stands,
)
from pbvf_datasets.share.remotes import LocalPlace, MissingFileError
from pbvf_datasets.share.signing import (
    SIGNATURE_BYTES,
    fingerprint,
    load_public_key,
    require_signature,
)
from pbvf_datasets.share.transfer import Arrived, Outgoing, check_content, outgoing
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    PbvfError,
    UnsafeError,
    UsageError,
    printable,
)
from pbvf_offline.io.durable import path_exists, resource_error, sync_folder, write_all
from pbvf_offline.io.lock import locked

SUMS_FILE: Final = "SHA256SUMS"
BLOCK: Final = 512
RECORD: Final = 20 * BLOCK
_OCTAL_LIMIT: Final = 8**11
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_MOST_MEMBERS: Final = 64
_FOLDERS: Final = (b"5", b"D")
_AGAIN: Final = "copy it again, or ask for it once more"
_KINDS: Final = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"7": "a contiguous file",
    b"g": "a header of settings for all members",
    b"x": "a header of settings for the next member",
    b"X": "a header of settings for the next member",
    b"K": "a header with a long link name",
    b"L": "a header with a long name",
    b"M": "the rest of a member of another archive",
    b"S": "a file with holes",
    b"V": "a volume's name",
}


@dataclass(frozen=True)
class Packed:
    """What became of packing.

    Attributes:
        dataset: The dataset's id.
        file: The archive.
        digest: The manifest's digest.
        size: Bytes of the archive.
        already_complete: Whether it was there before, byte for byte.
    """

    dataset: str
    file: Path
    digest: str
    size: int
    already_complete: bool


# -------------------------------------------------------------------------------- form


def header(name: str, size: int) -> bytes:
    """Return the 512 bytes in front of a member's content.

    Args:
        name: At most 100 ASCII characters.
        size: Bytes of the content; from 8 GiB on in GNU's and POSIX's binary form.
    """
    sizes = b"%011o\0" % size if size < _OCTAL_LIMIT else b"\x80" + size.to_bytes(11, "big")
    before = b"".join(
        (
            name.encode("ascii").ljust(100, b"\0"),
            b"0000644\0",  # rights: the owner writes, everybody reads
            b"0000000\0",  # owner
            b"0000000\0",  # group
            sizes,
            b"00000000000\0",  # time
        )
    )
    after = (b"0" + bytes(100) + b"ustar\x0000").ljust(356, b"\0")
    total = sum(before) + sum(after) + 8 * ord(" ")
    return before + b"%06o\0 " % total + after


def padding(size: int) -> bytes:
    """Return the zeros that fill content of this size to whole blocks."""
    return bytes(-size % BLOCK)


def ending(size: int) -> bytes:
    """Return the zeros that end an archive with members of this size in all."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)


def folder_name(metadata_id: object) -> str:
    """Return the name of the folder in the archive of a dataset that calls itself so."""
    last = metadata_id.rpartition("/")[2] if isinstance(metadata_id, str) else ""
    return last if _PREFIX.fullmatch(last) else "dataset"


def sums_text(digests: Mapping[str, str]) -> bytes:
    """Return the content of ``SHA256SUMS`` for files in this order."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode("ascii")


def _in_order(files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [MANIFEST_FILE, *sorted(set(files) - {MANIFEST_FILE})]


# -------------------------------------------------------------------------------- pack


def _is_archive(file: Path) -> bool:
    """Return whether a file begins as a tar does, or is empty."""
    with file.open("rb") as stream:
        start = stream.read(512)
    return not start or start[257:262] == b"ustar"


def pack(
    dataset: str | os.PathLike[str],
    file: Path,
    *,
    overwrite: bool = False,
    root: Path | None = None,
    verifying: Progress | None = None,
    progress: Progress | None = None,
) -> Packed:
    """Write a dataset into a tar file; equal datasets give equal bytes.

    The dataset is verified before a byte is written, unless the archive is there already.

    Args:
        dataset: An id, or the folder.
        file: The archive.
        overwrite: Replace another file.
        root: Folder of datasets.
        verifying: Told how many steps are verified and of how many.
        progress: Told how many bytes are written and of how many.

    Raises:
        UsageError: There is no such dataset, or it has no manifest.
        DamagedError: A file is not the one that the manifest lists, its content does not agree
            with itself, or it changed meanwhile.
        UnsafeError: It could harm those who get it.
        IncompatibleError: Its content cannot be checked to its end.
        ConflictError: The file exists with other content, or another process is at it.
        ResourceError: The disk refuses.
    """
    if file.is_dir():
        raise UsageError("is a folder", where=file, remedy="name a file, such as dataset.tar")
    if path_exists(file.parent) and not file.parent.is_dir():
        raise UsageError("is no folder", where=file.parent, remedy="name another place")
    out = outgoing(dataset, root)
    total = _archive_size(out)
    with locked(file, look=True) as refusal:
        if file.exists() and not overwrite:
            if not _same(file, out, total, progress):
                raise ConflictError(
                    "exists with other content",
                    where=file,
                    remedy="choose another name, or replace it with --overwrite",
                )
            return Packed(out.dataset, file, out.digest, total, already_complete=True)
        if refusal is not None:
            raise refusal
        if file.exists() and not _is_archive(file):
            raise ConflictError(
                "is no archive of a dataset, so it is not replaced",
                where=file,
                remedy="choose another name",
            )
        check_content(out, verifying)
        temporary = file.with_name(f".{file.name}.tmp")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o666)
            try:
                done = 0
                for chunk in _archive(out):
                    write_all(descriptor, chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(file)
            sync_folder(file.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise resource_error(error, file) from error
        except PbvfError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    return Packed(out.dataset, file, out.digest, total, already_complete=False)


def _members(out: Outgoing) -> dict[str, dict[str, Any]]:
    digest = hashlib.sha256(out.manifest).hexdigest()
    files = {**out.files, MANIFEST_FILE: {"size": len(out.manifest), "sha256": digest}}
    return {name: files[name] for name in _in_order(files)}


def _archive_size(out: Outgoing) -> int:
    members = _members(out)
    sizes: list[int] = [entry["size"] for entry in members.values()]
    sizes.append(len(sums_text({name: entry["sha256"] for name, entry in members.items()})))
    size = sum(BLOCK + n + len(padding(n)) for n in sizes)
    return size + len(ending(size))


def _archive(out: Outgoing) -> Iterator[bytes]:
    """Yield the bytes of an archive.

    Raises:
        DamagedError: A file changed since it was checked.
    """
    folder, done = folder_name(out.named), 0
    members = _members(out)
    place = LocalPlace(out.path)
    for name, entry in members.items():
        yield header(f"{folder}/{name}", entry["size"])
        digest, size = hashlib.sha256(), 0
        with contextlib.suppress(MissingFileError), place.open(name) as incoming:
            while chunk := incoming.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                yield chunk
        if size != entry["size"] or digest.hexdigest() != entry["sha256"]:
            raise DamagedError(
                "the file changed while it was being packed",
                where=out.path / name,
                remedy="run the same command again",
            )
        yield padding(size)
        done += BLOCK + size + len(padding(size))
    sums = sums_text({name: entry["sha256"] for name, entry in members.items()})
    yield header(f"{folder}/{SUMS_FILE}", len(sums)) + sums + padding(len(sums))
    yield ending(done + BLOCK + len(sums) + len(padding(len(sums))))


def _same(file: Path, out: Outgoing, total: int, progress: Progress | None) -> bool:
    """Whether a file is the archive of a dataset."""
    with _open(file) as stream:
        if os.fstat(stream.fileno()).st_size != total:
            return False
        done = 0
        for chunk in _archive(out):
            if stream.read(len(chunk)) != chunk:
                return False
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    return True


# ------------------------------------------------------------------------------ unpack


def unpack(
    file: Path,
    dataset_id: str | None = None,
    *,
    overwrite: bool = False,
    public_key: Path | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> Arrived:
    """Read a dataset out of an archive; nothing is visible before every byte was checked.

    Args:
        file: The archive.
        dataset_id: What to call the dataset here; default: as it calls itself.
        overwrite: Replace another dataset of this id.
        public_key: File of a key whose owner must have signed the dataset.
        root: Folder of datasets.
        progress: Told how many bytes are done and of how many.

    Raises:
        UsageError: There is no such file, or the id is malformed.
        DamagedError: A byte of the archive is not what it must be.
        UnsafeError: It holds what no archive of a dataset holds, or is not signed as asked.
        IncompatibleError: The dataset is of another format version.
        ConflictError: Another dataset of this id is here, or another process is at it.
        ResourceError: The disk refuses.
    """
    key = None if public_key is None else load_public_key(public_key)
    with _open(file) as stream:
        content = _scan(stream, file)
        name = content.dataset_id if dataset_id is None else dataset_id
        if name is None:
            raise UsageError(
                "the dataset in it does not say what it is called",
                where=file,
                remedy="give an id, such as lab/name-v0, after the file",
            )
        path = new_dataset_path(name, root)
        if key is not None:
            signature = content.small.get(SIGNATURE_FILE)
            require_signature(content.small[MANIFEST_FILE], signature, key, file)
        told = progress or silent
        manifest = parse_manifest(content.small[MANIFEST_FILE], f"{file}: {MANIFEST_FILE}")
        arrived = Arrived(
            dataset=name,
            path=path,
            source=str(file),
            digest=manifest["digest"],
            size=sum(e["size"] for e in content.files.values()) + len(content.small[MANIFEST_FILE]),
            fetched=0,
            signed_by=None if key is None else fingerprint(key),
            already_complete=True,
        )
        if stands(path, manifest["digest"], overwrite=overwrite):
            content.read(stream, None, told)
            arrival_work(path).remove_leftovers()
            return content.add_signature(arrived, replace=overwrite)
        with Arrival(path) as arrival:
            if stands(path, manifest["digest"], overwrite=overwrite):
                content.read(stream, None, told)
                arrival.discard()
                return content.add_signature(arrived, replace=overwrite)
            arrival.begin({})
            arrival.begin(content.files)
            content.read(stream, arrival, told)
            arrival.check(f"{file}: {content.folder}")
            arrival.publish(overwrite=overwrite)
    card_differs(content.small.get(CARD_FILE), manifest, str(file))
    return dataclasses.replace(arrived, fetched=content.end, already_complete=False)


@dataclass
class _Content:
    """What an archive holds and where; its headers and zeros are right, its digests unchecked.

    Attributes:
        where: The archive.
        folder: The folder inside it.
        files: Size and sha256 of the files that the manifest lists.
        places: Where the content of each member begins, in order.
        sizes: Bytes of each member.
        small: Content of the small members.
        dataset_id: How the dataset calls itself, or None.
        end: Bytes of the archive.
    """

    where: Path
    folder: str
    files: dict[str, dict[str, Any]]
    places: dict[str, int]
    sizes: dict[str, int]
    small: dict[str, bytes]
    dataset_id: str | None
    end: int

    def add_signature(self, arrived: Arrived, *, replace: bool) -> Arrived:
        """Give a dataset that stood there before the archive's signature."""
        signature = self.small.get(SIGNATURE_FILE)
        added = renew(arrived.path, SIGNATURE_FILE, signature, replace=replace)
        return dataclasses.replace(arrived, fetched=added, already_complete=added == 0)

    def read(self, stream: IO[bytes], arrival: Arrival | None, told: Progress) -> None:
        """Read every member, compare its digest, and put it into the arrival.

        Raises:
            DamagedError: A digest does not fit.
            ResourceError: The disk refuses.
        """
        digests: dict[str, str] = {}
        for name, place in self.places.items():
            if name == SUMS_FILE:
                continue
            entry = self.files.get(name)
            stream.seek(place)
            digest, left = hashlib.sha256(), self.sizes[name]
            with contextlib.ExitStack() as stack:
                write = None
                if arrival is not None and entry is not None:
                    write = stack.enter_context(arrival.arriving(entry))
                while left:
                    chunk = _take(stream, min(CHUNK, left), self.where)
                    digest.update(chunk)
                    left -= len(chunk)
                    if write is not None:
                        write(chunk)
                    told(stream.tell(), self.end)
            digests[name] = digest.hexdigest()
            if entry is not None and digests[name] != entry["sha256"]:
                if arrival is not None:
                    arrival.discard()
                raise DamagedError(
                    f"its sha256 is {digests[name]}, but the manifest says {entry['sha256']}",
                    where=f"{self.where}: {name}",
                    remedy=_AGAIN,
                )
            if arrival is not None and entry is not None:
                arrival.keep(name, entry)
            elif arrival is not None:
                arrival.write(name, self.small[name])
        if self.small[SUMS_FILE] != sums_text(digests):
            if arrival is not None:
                arrival.discard()
            raise DamagedError(
                "a digest in it is not that of the file",
                where=f"{self.where}: {SUMS_FILE}",
                remedy=_AGAIN,
            )


def _open(file: Path) -> BufferedReader:
    """Open a regular file, not waiting for a pipe.

    Raises:
        UsageError: There is none.
        ResourceError: It cannot be read.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise resource_error(error, file) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError("is not a regular file", where=file)
    return os.fdopen(descriptor, "rb")


def _take(stream: IO[bytes], size: int, where: Path) -> bytes:
    try:
        data = stream.read(size)
    except OSError as error:
        raise DamagedError(f"it cannot be read: {error.strerror}", where=where) from error
    if len(data) != size:
        raise DamagedError("the archive is cut off", where=where, remedy=_AGAIN)
    return data


def _scan(stream: IO[bytes], where: Path) -> _Content:
    """Go from header to header; compare each, and the zeros between, with what must be there.

    Raises:
        DamagedError: Something else is there.
        UnsafeError: There is a member that no archive of a dataset has.
        IncompatibleError: The dataset is of another format version.
    """
    _look_ahead(stream, where)
    end = os.fstat(stream.fileno()).st_size
    found = _Content(where, "", {}, {}, {}, {}, None, end)
    first, size = _member(_take(stream, BLOCK, where), where, found)
    folder, _, name = first.partition("/")
    if name != MANIFEST_FILE or not _PREFIX.fullmatch(folder):
        raise DamagedError(
            f"it begins with {printable(first)[:100]!r} and not with a dataset's manifest.json",
            where=where,
            remedy="give an archive that 'pbvf dataset pack' made",
        )
    found.folder = folder
    limits = {MANIFEST_FILE: MAX_MANIFEST_BYTES}
    _enter(stream, found, MANIFEST_FILE, size, limits)
    place = f"{where}: {MANIFEST_FILE}"
    manifest = parse_manifest(found.small[MANIFEST_FILE], place)
    found.files = listed_files(manifest, place)
    limits |= {
        METADATA_FILE: MAX_METADATA_BYTES,
        CARD_FILE: MAX_CARD_BYTES,
        SIGNATURE_FILE: SIGNATURE_BYTES,
        SUMS_FILE: 100 * (len(found.files) + 4),
    }
    optional = {CARD_FILE, SIGNATURE_FILE}
    expected = [*sorted({*found.files, *optional}), SUMS_FILE]
    while expected:
        block = _take(stream, BLOCK, where)
        full, size = _member(block, where, found)
        name = full.removeprefix(f"{folder}/")
        while expected[0] != name and expected[0] in optional:
            expected.pop(0)
        if expected[0] != name or full == name:
            raise DamagedError(
                f"{printable(full)[:100]!r} is where {expected[0]} is expected",
                where=where,
                remedy=_AGAIN,
            )
        expected.pop(0)
        listed = found.files.get(name)
        if listed is not None and listed["size"] != size:
            raise DamagedError(
                f"it has {size:,} bytes, but the manifest says {listed['size']:,}",
                where=f"{where}: {name}",
                remedy=_AGAIN,
            )
        if name == SIGNATURE_FILE and size != SIGNATURE_BYTES:
            raise DamagedError(
                f"it has {size:,} bytes; a signature has {SIGNATURE_BYTES}",
                where=f"{where}: {name}",
            )
        _enter(stream, found, name, size, limits)
    _check_end(stream, found)
    metadata = parse_metadata(found.small[METADATA_FILE], f"{where}: {METADATA_FILE}")
    named = metadata.get("dataset_id")
    if folder != folder_name(named):
        raise DamagedError(
            f"its folder is called {folder!r}, and {folder_name(named)!r} is expected",
            where=where,
            remedy=_AGAIN,
        )
    if isinstance(named, str):
        with contextlib.suppress(UsageError):
            check_dataset_id(named)
            found.dataset_id = named
    return found


def _enter(
    stream: IO[bytes], found: _Content, name: str, size: int, limits: Mapping[str, int]
) -> None:
    """Note a member, take a small one in, and go on behind it."""
    where = found.where
    if name in limits and size > limits[name]:
        raise UnsafeError(
            f"it has {size:,} bytes; at most {limits[name]:,} are read", where=f"{where}: {name}"
        )
    begin = stream.tell()
    if begin + size > found.end:
        raise DamagedError(
            f"it is cut off: {name} has {size:,} bytes, and {found.end - begin:,} are left",
            where=where,
            remedy=_AGAIN,
        )
    found.places[name], found.sizes[name] = begin, size
    if name in limits:
        found.small[name] = _take(stream, size, where)
    stream.seek(begin + size)
    fill = padding(size)
    if _take(stream, len(fill), where) != fill:
        raise DamagedError(
            f"what fills the block after {name} is not zero", where=where, remedy=_AGAIN
        )


def _check_end(stream: IO[bytes], found: _Content) -> None:
    begin = stream.tell()
    expected = ending(begin)
    rest = _take(stream, min(found.end - begin, len(expected)), found.where)
    if rest[:BLOCK].strip(b"\0"):
        # One more member: say what it is, where that says more.
        _member(rest[:BLOCK].ljust(BLOCK, b"\0"), found.where, found)
    if len(rest) < len(expected):
        raise DamagedError("the archive is cut off", where=found.where, remedy=_AGAIN)
    if rest != expected or found.end != begin + len(expected):
        raise DamagedError(
            "something follows the end of the archive", where=found.where, remedy=_AGAIN
        )


@dataclass(frozen=True)
class _Header:
    """What a header says, sound or not."""

    name: str
    kind: bytes
    size: int

    @classmethod
    def read(cls, block: bytes) -> _Header | None:
        """Read a header; None when its checksum does not fit."""
        total = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
        try:
            if int(block[148:156].strip(b" \0") or b"-", 8) != total:
                return None
            number = block[124:136]
            octal = number.strip(b" \0") or b"0"
            size = int.from_bytes(number[1:], "big") if number[0] & 0x80 else int(octal, 8)
        except ValueError:
            return None
        name = block[:100].split(b"\0", 1)[0]
        if block[257:262] == b"ustar" and block[345]:
            name = block[345:500].split(b"\0", 1)[0] + b"/" + name
        return cls(name.decode("utf-8", "surrogateescape"), block[156:157], max(0, size))

    @property
    def shown(self) -> str:
        """The name for messages."""
        return printable(self.name)[:100]


def _look_ahead(stream: IO[bytes], where: Path) -> None:
    """Go over all headers once and refuse what would be dangerous for other programs too.

    Raises:
        UnsafeError: There is a link, a device, a header about other headers, a name that leads
            out or is there twice.
    """
    end = os.fstat(stream.fileno()).st_size
    seen: set[str] = set()
    place = 0
    while place + BLOCK <= end:
        stream.seek(place)
        block = _take(stream, BLOCK, where)
        head = _Header.read(block)
        if head is None or not block.strip(b"\0"):
            break
        at = f"{where}: {head.shown}"
        if head.kind not in (b"0", b"\0", *_FOLDERS):
            raise UnsafeError(
                f"it is {_KINDS.get(head.kind, 'of an unknown kind')}; only regular files are read",
                where=at,
                remedy="do not unpack it with other programs either",
            )
        parts = head.name.replace("\\", "/").split("/")
        if parts[0] in ("", "~") or ".." in parts or ":" in parts[0]:
            raise UnsafeError(
                "it leads out of the dataset's folder",
                where=at,
                remedy="do not unpack it with other programs either",
            )
        if head.name in seen:
            raise UnsafeError("it is there twice", where=at)
        seen.add(head.name)
        if len(seen) > _MOST_MEMBERS:
            raise UnsafeError(f"it has more than {_MOST_MEMBERS} members", where=where)
        place += BLOCK + head.size + -head.size % BLOCK
    stream.seek(0)


def _member(block: bytes, where: Path, found: _Content) -> tuple[str, int]:
    """Return name and size of a member whose header is one that :func:`header` writes.

    Raises:
        UnsafeError: It is a member that no archive of this dataset has.
        DamagedError: It is anything else.
    """
    if not block.strip(b"\0"):
        raise DamagedError("the archive ends too early", where=where, remedy=_AGAIN)
    head = _Header.read(block)
    if head is None:
        if not found.places and block[257:262] != b"ustar":
            raise DamagedError(
                "this is no plain tar file",
                where=where,
                remedy="give an archive that 'pbvf dataset pack' made, not compressed",
            )
        raise DamagedError(
            "a header of the archive does not fit its checksum", where=where, remedy=_AGAIN
        )
    known = {*found.files, CARD_FILE, SIGNATURE_FILE, SUMS_FILE}
    inside = head.name.removeprefix(f"{found.folder}/")
    if found.files and head.kind not in _FOLDERS and (inside not in known or inside == head.name):
        raise UnsafeError(
            "it is no file of the dataset: the manifest does not list it",
            where=f"{where}: {head.shown}",
        )
    try:
        right = header(head.name, head.size) == block
    except (ValueError, OverflowError):
        right = False
    if not right:
        raise DamagedError(
            "its header is not as 'pbvf dataset pack' writes it",
            where=f"{where}: {head.shown}",
            remedy="unpack it with tar, look at it with 'pbvf dataset verify', and pack it anew",
        )
    return head.name, head.size
