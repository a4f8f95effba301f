"""Read an archive that may be hostile.

This is no general reader of tar files: every byte of an archive follows from the files inside it,
so it works out what the bytes must be and compares. Headers are read by the standard library, one
member at a time; nothing is ever extracted by it, since what it finds may be links, devices and
paths that lead out.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from pbvf_datasets.format.bundle import MAX_FILES
from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.format.schema import CARD_FILE, MANIFEST_FILE, SIGNATURE_FILE
from pbvf_datasets.read.untrusted import MAX_CARD_BYTES
from pbvf_datasets.share.archive_form import (
    BLOCK,
    FOLDER,
    SUMS_FILE,
    ending,
    folder_name,
    header,
    padding,
    sums_text,
)
from pbvf_datasets.share.forms import Forms, Progress, form_of, listed_files
from pbvf_datasets.share.receiving import CHUNK, IncomingFolder
from pbvf_datasets.share.signing import SIGNATURE_BYTES
from pbvf_offline.errors import DamagedError, PbvfError, UnsafeError, printable

_MOST_MEMBERS: Final = MAX_FILES + 4
_AGAIN: Final = "copy it again, or ask for it once more"
_PACK: Final = "give an archive that 'pbvf dataset pack' made, not compressed"
_LINKS: Final = {tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link"}


@dataclass(frozen=True)
class _Member:
    """A member of an archive: its full name, where its content begins, and how long that is."""

    name: str
    at: int
    size: int


class ArchiveReader:
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
        if name != MANIFEST_FILE or not FOLDER.fullmatch(folder):
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
        if self._end < BLOCK:
            raise DamagedError("this is no plain tar file", where=self._where, remedy=_PACK)
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
