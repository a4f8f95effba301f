"""Pack and unpack: a dataset as one plain tar file, for mail and USB sticks.

Any ``tar`` reads such a file. :mod:`pbvf_datasets.share.archive_form` says what its bytes are, and
:mod:`pbvf_datasets.share.archive_reader` reads none that has others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from pbvf_datasets.format.schema import MANIFEST_FILE
from pbvf_datasets.inspect.findings import FOUND, Findings, Verification
from pbvf_datasets.share.archive_form import (
    BLOCK,
    SUMS_FILE,
    ending,
    folder_name,
    header,
    padding,
    sums_text,
)
from pbvf_datasets.share.archive_reader import ArchiveReader
from pbvf_datasets.share.forms import Form, Forms, Progress, only_datasets
from pbvf_datasets.share.outgoing import Outgoing, check_content, outgoing
from pbvf_datasets.share.receiving import (
    CHUNK,
    ReceiveResult,
    receive,
    silent,
)
from pbvf_datasets.share.remote import MissingFileError
from pbvf_datasets.share.remotes.folder import FolderRemote
from pbvf_datasets.share.signing import load_public_key
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    UsageError,
)
from pbvf_offline.io.durable import (
    check_above,
    read_error,
    replacing_file,
    write_all,
    write_error,
)
from pbvf_offline.io.lock import locked, temporary_folder
from pbvf_offline.io.reading import open_regular


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
        found = ArchiveReader(stream, file, forms or only_datasets(None), silent)
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
    with temporary_folder() as room:
        try:
            place = room / "inside"
            with _opened(file) as stream:
                source = ArchiveReader(
                    stream, file, forms or only_datasets(None), progress or silent
                )
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
        ConflictError: Another dataset of this id is here, or this one without the signature asked
            for, or another process is at it.
        ResourceError: The disk refuses.
    """
    key = None if public_key is None else load_public_key(public_key)
    with _opened(file) as stream:
        source = ArchiveReader(stream, file, forms or only_datasets(root), progress or silent)
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
        raise read_error(error, file) from error
    with stream:
        yield stream
