"""Pack and unpack: a dataset as one plain tar file, for mail and USB sticks.

Any ``tar`` reads such a file, but :func:`unpack` is no general reader: every byte of an
archive follows from the files inside it, so it works out what the bytes must be and compares.
Headers are written and read by the standard library, one member at a time; nothing is ever
extracted by it, since what it finds may be links, devices and paths that lead out.

An archive holds one folder: ``manifest.json`` first, the other files in order of their names,
and last ``SHA256SUMS`` with the digest of each, as ``sha256sum -c`` reads it. Owners, times
and rights are constants. Two blocks of zeros end it, and more fill it to 10,240 bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from pbvf_datasets.format.bundle import MAX_FILES
from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.format.schema import CARD_FILE, MANIFEST_FILE, SIGNATURE_FILE
from pbvf_datasets.inspect.findings import FOUND, Findings, Verification
from pbvf_datasets.read.untrusted import MAX_CARD_BYTES
from pbvf_datasets.share.forms import Form, Forms, Progress, form_of, listed_files, only_datasets
from pbvf_datasets.share.outgoing import Outgoing, check_content, outgoing
from pbvf_datasets.share.receiving import (
    CHUNK,
    IncomingFolder,
    ReceiveResult,
    receive,
    silent,
)
from pbvf_datasets.share.remote import MissingFileError
from pbvf_datasets.share.remotes.folder import FolderRemote
from pbvf_datasets.share.signing import (
    SIGNATURE_BYTES,
    load_public_key,
)
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    PbvfError,
    UnsafeError,
    UsageError,
    printable,
)
from pbvf_offline.io.durable import (
    check_above,
    replacing_file,
    resource_error,
    write_all,
    write_error,
)
from pbvf_offline.io.lock import locked
from pbvf_offline.io.reading import open_regular

SUMS_FILE: Final = "SHA256SUMS"
BLOCK: Final = tarfile.BLOCKSIZE
RECORD: Final = tarfile.RECORDSIZE
_OCTAL_LIMIT: Final = 8**11
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}")
_MOST_MEMBERS: Final = MAX_FILES + 4
_AGAIN: Final = "copy it again, or ask for it once more"
_PACK: Final = "give an archive that 'pbvf dataset pack' made, not compressed"
_LINKS: Final = {tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link"}


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
        name: ASCII; of more than 100 characters, 155 at most lead up to a slash.
        size: Bytes of the content; from 8 GiB on in GNU's and POSIX's binary form, which
            tarfile reads but does not write in this format.
    """
    info = tarfile.TarInfo(name)
    if size < _OCTAL_LIMIT:
        info.size = size
        return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict"))
    block[124:136] = b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padding(size: int) -> bytes:
    """Return the zeros that fill content of this size to whole blocks."""
    return bytes(-size % BLOCK)


def ending(size: int) -> bytes:
    """Return the zeros that end an archive with members of this size in all."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)


def folder_name(named: object) -> str:
    """Return the name of the folder in the archive of what calls itself so."""
    last = named.rpartition("/")[2] if isinstance(named, str) else ""
    return last if _PREFIX.fullmatch(last) else "dataset"


def sums_text(digests: Mapping[str, str]) -> bytes:
    """Return the content of ``SHA256SUMS`` for files in this order."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items()).encode("ascii")


# -------------------------------------------------------------------------------- pack


def _is_archive(file: Path) -> bool:
    """Return whether a file begins as an archive does, or is empty."""
    with file.open("rb") as stream:
        start = stream.read(BLOCK)
    try:
        first = tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape").name
    except tarfile.HeaderError:
        return not start
    return first.partition("/")[2] == MANIFEST_FILE


def pack(
    dataset: str | os.PathLike[str],
    file: Path,
    *,
    overwrite: bool = False,
    root: Path | None = None,
    forms: Forms | None = None,
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
        forms: What may be packed; datasets alone when None.
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
    check_above(file)
    out = outgoing(dataset, root, forms)
    total = _archive_size(out)
    with locked(file, look=True) as refusal:
        if file.exists() and not overwrite:
            if not _same(file, out, total, progress):
                raise ConflictError(
                    "exists with other content",
                    where=file,
                    remedy="choose another name, or replace it with --overwrite",
                )
            return Packed(out.name, file, out.digest, total, already_complete=True)
        if refusal is not None:
            raise refusal
        if file.exists() and not _is_archive(file):
            raise ConflictError(
                "is no archive that pack made, so it is not replaced",
                where=file,
                remedy="choose another name",
            )
        check_content(out, verifying)
        try:
            with replacing_file(file) as descriptor:
                done = 0
                for chunk in _archive(out):
                    write_all(descriptor, chunk)
                    done += len(chunk)
                    if progress is not None:
                        progress(done, total)
        except OSError as error:
            raise write_error(error, file) from error
    return Packed(out.name, file, out.digest, total, already_complete=False)


def _members(out: Outgoing) -> dict[str, dict[str, Any]]:
    digest = hashlib.sha256(out.manifest).hexdigest()
    files = {**out.files, MANIFEST_FILE: {"size": len(out.manifest), "sha256": digest}}
    return {name: files[name] for name in (MANIFEST_FILE, *sorted(out.files))}


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
    remote = FolderRemote(out.path)
    for name, entry in members.items():
        yield header(f"{folder}/{name}", entry["size"])
        digest, size = hashlib.sha256(), 0
        with contextlib.suppress(MissingFileError), remote.open(name) as incoming:
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
    with _opened(file) as stream:
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


# --------------------------------------------------------------------------- look inside


@dataclass(frozen=True)
class Inside:
    """What an archive holds, by its small files.

    Attributes:
        form: What it is.
        named: How it calls itself.
        manifest: The parsed ``manifest.json``.
        sizes: Bytes of each file.
        signed: Whether there is a signature.
    """

    form: Form
    named: object
    manifest: Mapping[str, Any]
    sizes: Mapping[str, int]
    signed: bool


def look_inside(file: Path, forms: Forms | None = None) -> Inside:
    """Return what an archive holds; digests are not compared.

    Args:
        file: The archive.
        forms: What may be in it; a dataset alone when None.

    Raises:
        UsageError: There is no such file.
        DamagedError: It is no archive of a dataset.
        UnsafeError: It holds what no archive of a dataset holds.
        IncompatibleError: The dataset is of another format version.
        ResourceError: It cannot be read.
    """
    with _opened(file) as stream:
        found = _Archive(stream, file, forms or only_datasets(None), silent)
        manifest = found.form.parse(found.manifest, f"{file}: {MANIFEST_FILE}")
        signed = found.signature is not None
        return Inside(found.form, found.named, manifest, found.sizes, signed)


def verify_archive(
    file: Path, *, forms: Forms | None = None, progress: Progress | None = None
) -> Verification:
    """Check an archive: every byte of it, and what is inside as ``verify`` checks it.

    It is unpacked into a temporary folder for that, which goes away again.

    Args:
        file: The archive.
        forms: What may be in it; a dataset alone when None.
        progress: Told how many bytes are read and of how many.

    Raises:
        UsageError: There is no such file.
        ResourceError: It cannot be read, or there is no room to unpack it.
    """
    with tempfile.TemporaryDirectory(prefix="pbvf-verify-") as room:
        try:
            place = Path(room) / "inside"
            with _opened(file) as stream:
                source = _Archive(stream, file, forms or only_datasets(None), progress or silent)
                receive(source.form, source, place, overwrite=False)
        except FOUND as error:
            found = Findings()
            found.add(error)
            return Verification(file, "archive", found.status(verified=True), (error,))
        part = source.form.verify(place, None)

        def shown(text: str) -> str:
            return text.replace(str(place), str(file))

        return replace(
            part,
            path=file,
            kind="archive",
            problems=tuple(
                type(p)(p.what, where=shown(p.where or str(file)), remedy=p.remedy)
                for p in part.problems
            ),
            warnings=tuple(shown(warning) for warning in part.warnings),
            minari_reason=shown(part.minari_reason),
        )


# ------------------------------------------------------------------------------ unpack


def unpack(
    file: Path,
    dataset_id: str | None = None,
    *,
    overwrite: bool = False,
    public_key: Path | None = None,
    root: Path | None = None,
    forms: Forms | None = None,
    progress: Progress | None = None,
) -> ReceiveResult:
    """Read a dataset out of an archive; nothing is visible before every byte was checked.

    Args:
        file: The archive.
        dataset_id: What to call the dataset here; default: as it calls itself.
        overwrite: Replace another dataset of this id.
        public_key: File of a key whose owner must have signed the dataset.
        root: Folder of datasets.
        forms: What may be in it; a dataset alone when None.
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
    with _opened(file) as stream:
        source = _Archive(stream, file, forms or only_datasets(root), progress or silent)
        name, path = source.form.place(dataset_id, source.named, file)
        return receive(source.form, source, path, name, overwrite=overwrite, key=key)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """Open a regular file, not waiting for a pipe.

    Raises:
        UsageError: There is none.
        ResourceError: It cannot be opened.
    """
    try:
        stream = open_regular(file)
    except OSError as error:
        raise resource_error(error, file) from error
    with stream:
        yield stream


@dataclass(frozen=True)
class _Member:
    """A member of an archive: its full name, where its content begins, and how long that is."""

    name: str
    at: int
    size: int


class _Archive:
    """The dataset or bundle in an archive; see :class:`~pbvf_datasets.share.receiving.Source`.

    Args:
        stream: The archive.
        where: Its name.
        forms: What may be in it.
        progress: Told how many bytes are read and of how many.

    Attributes:
        shown: The archive.
        form: What is in it.
        manifest: The bytes of ``manifest.json``.
        signature: Those of the signature, or None.
        named: How it calls itself.
        sizes: Bytes of each file.

    Raises:
        DamagedError: It is no archive of a dataset.
        UnsafeError: It holds what no archive of a dataset holds.
        IncompatibleError: The dataset is of another format version.
    """

    def __init__(self, stream: IO[bytes], where: Path, forms: Forms, progress: Progress) -> None:
        self._stream, self._where, self._progress = stream, where, progress
        self._end = os.fstat(stream.fileno()).st_size
        members = list(self._scan())
        folder, _, name = members[0].name.partition("/") if members else ("", "", "")
        if name != MANIFEST_FILE or not _PREFIX.fullmatch(folder):
            begin = printable(members[0].name)[:100] if members else ""
            raise DamagedError(
                f"it begins with {begin!r} and not with a manifest.json",
                where=where,
                remedy=_PACK,
            )
        self.shown = str(where)
        self._folder = folder
        self.manifest = self._small(members[0], MAX_MANIFEST_BYTES)
        place = f"{where}: {MANIFEST_FILE}"
        self.form = form_of(self.manifest, forms, where)
        manifest = self.form.parse(self.manifest, place)
        self._files = listed_files(self.form, manifest, place)
        self._members = self._known(members)
        self.sizes = {name: member.size for name, member in self._members.items()}
        limits = {
            CARD_FILE: MAX_CARD_BYTES,
            SIGNATURE_FILE: SIGNATURE_BYTES,
            SUMS_FILE: 100 * len(self._members),
        }
        small = {
            name: self._small(member, limits[name])
            for name, member in self._members.items()
            if name in limits
        }
        self._card, self._sums = small.get(CARD_FILE), small[SUMS_FILE]
        self.signature = small.get(SIGNATURE_FILE)
        if self.signature is not None and len(self.signature) != SIGNATURE_BYTES:
            raise DamagedError(
                f"it has {len(self.signature):,} bytes; a signature has {SIGNATURE_BYTES}",
                where=f"{where}: {SIGNATURE_FILE}",
            )
        self.named = self._own_name(manifest)

    def _scan(self) -> Iterator[_Member]:
        """Yield the members up to the first block of zeros, once no header is dangerous.

        Other programs may read the archive too, so what would harm them is refused first.
        """
        seen: set[str] = set()
        at = 0
        while at < self._end:
            self._stream.seek(at)
            block = self._take(BLOCK)
            if not block.strip(b"\0") and seen:
                return
            try:
                # One header at a time, so that no header about other headers has an effect.
                info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            except tarfile.HeaderError as error:
                raise DamagedError(
                    f"a header of the archive cannot be read ({error})"
                    if seen
                    else "this is no plain tar file",
                    where=self._where,
                    remedy=_AGAIN if seen else _PACK,
                ) from error
            shown = f"{self._where}: {printable(info.name)[:100]}"
            if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, b"D"):
                raise UnsafeError(
                    f"it is {_LINKS.get(info.type, f'of kind {info.type!r}')}; only regular files "
                    "are read",
                    where=shown,
                    remedy="do not unpack it with other programs either",
                )
            parts = info.name.replace("\\", "/").split("/")
            if parts[0] in ("", "~") or ".." in parts or ":" in parts[0]:
                raise UnsafeError(
                    "it leads out of its folder",
                    where=shown,
                    remedy="do not unpack it with other programs either",
                )
            if info.name in seen:
                raise UnsafeError("it is there twice", where=shown)
            seen.add(info.name)
            if len(seen) > _MOST_MEMBERS:
                raise UnsafeError(f"it has more than {_MOST_MEMBERS} members", where=self._where)
            size = max(0, info.size)
            yield _Member(info.name, at + BLOCK, size)
            at += BLOCK + size + len(padding(size))

    def _known(self, members: Sequence[_Member]) -> dict[str, _Member]:
        """Return the members by their names in the folder: those that must be there, in order."""
        names = {*self._files, MANIFEST_FILE, CARD_FILE, SIGNATURE_FILE}
        known = {f"{self._folder}/{name}": name for name in (*names, SUMS_FILE)}
        for member in members:
            if member.name not in known:
                raise UnsafeError(
                    "it is no file that the manifest lists",
                    where=f"{self._where}: {printable(member.name)[:100]}",
                )
        found = {known[member.name]: member for member in members}
        expected = [name for name in sorted(names - {MANIFEST_FILE}) if name in found]
        missing = next((n for n in (*self._files, SUMS_FILE) if n not in found), None)
        if missing is not None or list(found) != [MANIFEST_FILE, *expected, SUMS_FILE]:
            raise DamagedError(
                "its members are not in order"
                if missing is None
                else f"{missing} is missing: the archive is cut off",
                where=self._where,
                remedy=_AGAIN,
            )
        for name, entry in self._files.items():
            if found[name].size != entry["size"]:
                raise DamagedError(
                    f"it has {found[name].size:,} bytes, but the manifest says {entry['size']:,}",
                    where=f"{self._where}: {name}",
                    remedy=_AGAIN,
                )
        return found

    def _own_name(self, manifest: Mapping[str, Any]) -> object:
        """Return how it calls itself; its folder is called so too."""

        def read(name: str) -> bytes:
            return self._small(self._members[name], self.form.limit(name))

        try:
            named = self.form.named(manifest, read)
        except PbvfError as error:
            where = f"{self._where}: {error.where}"
            raise type(error)(error.what, where=where, remedy=error.remedy) from error
        if self._folder != folder_name(named):
            raise DamagedError(
                f"its folder is called {self._folder!r}, and {folder_name(named)!r} is expected",
                where=self._where,
                remedy=_AGAIN,
            )
        return named

    def _small(self, member: _Member, limit: int) -> bytes:
        if member.size > limit:
            raise UnsafeError(
                f"it has {member.size:,} bytes; at most {limit:,} are read",
                where=f"{self._where}: {printable(member.name)[:100]}",
            )
        self._stream.seek(member.at)
        return self._take(member.size)

    def _take(self, size: int) -> bytes:
        try:
            data = self._stream.read(size)
        except OSError as error:
            raise DamagedError(f"it cannot be read: {error.strerror}", where=self._where) from error
        if len(data) != size:
            raise DamagedError("the archive is cut off", where=self._where, remedy=_AGAIN)
        return data

    def card(self) -> bytes | None:
        """Return the bytes of the card, or None."""
        return self._card

    def fetch(
        self,
        files: Mapping[str, Mapping[str, Any]],
        missing: Sequence[str],
        incoming: IncomingFolder | None,
    ) -> int:
        """Read the archive to its end, compare every byte, and bring the files that are missing.

        Raises:
            DamagedError: A byte is not what it must be.
            ResourceError: The disk refuses.
        """
        try:
            self._compare(files, missing, incoming)
        except DamagedError:
            if incoming is not None:
                incoming.discard()
            raise
        small = sum(len(data or b"") for data in (self.manifest, self.signature, self._card))
        return 0 if incoming is None else self._end - small

    def _compare(
        self,
        files: Mapping[str, Mapping[str, Any]],
        missing: Sequence[str],
        incoming: IncomingFolder | None,
    ) -> None:
        digests: dict[str, str] = {}
        self._stream.seek(0)
        for name, member in self._members.items():
            where, entry = f"{self._where}: {name}", files.get(name)
            if self._take(BLOCK) != header(member.name, member.size):
                raise DamagedError(
                    "its header is not as 'pbvf dataset pack' writes it",
                    where=where,
                    remedy="unpack it with tar, look at it with 'pbvf dataset verify', and pack it "
                    "anew",
                )
            with contextlib.ExitStack() as stack:
                write = None
                if incoming is not None and entry is not None and name in missing:
                    write = stack.enter_context(incoming.receiving(entry))
                digests[name] = self._digest(member.size, write)
            if entry is not None and digests[name] != entry["sha256"]:
                raise DamagedError(
                    f"its sha256 is {digests[name]}, but the manifest says {entry['sha256']}",
                    where=where,
                    remedy=_AGAIN,
                )
            if incoming is not None and entry is not None and name in missing:
                incoming.keep(name, entry)
            fill = padding(member.size)
            if self._take(len(fill)) != fill:
                raise DamagedError(
                    "what fills the block after it is not zero", where=where, remedy=_AGAIN
                )
        del digests[SUMS_FILE]
        if self._sums != sums_text(digests):
            raise DamagedError(
                "a digest in it is not that of the file",
                where=f"{self._where}: {SUMS_FILE}",
                remedy=_AGAIN,
            )
        at = self._stream.tell()
        expected = ending(at)
        rest = self._take(min(self._end - at, len(expected)))
        if len(rest) < len(expected):
            raise DamagedError("the archive is cut off", where=self._where, remedy=_AGAIN)
        if rest != expected or self._end != at + len(expected):
            raise DamagedError(
                "something follows the end of the archive", where=self._where, remedy=_AGAIN
            )

    def _digest(self, left: int, write: Callable[[bytes], None] | None) -> str:
        """Read content, pass it on, and return its sha256."""
        digest = hashlib.sha256()
        while left:
            chunk = self._take(min(CHUNK, left))
            digest.update(chunk)
            left -= len(chunk)
            if write is not None:
                write(chunk)
            self._progress(self._stream.tell(), self._end)
        return digest.hexdigest()
