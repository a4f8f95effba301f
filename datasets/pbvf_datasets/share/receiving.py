"""How what comes from elsewhere gets its place: put together beside it, checked, one rename.

Files arrive in the work folder ``.<name>.arriving`` beside that place (Minari's listing skips
such folders): ``part-<sha256>`` while a file is on its way, so that an interrupted transfer
goes on with it, and ``build`` for what is whole and has the right digest. The finished folder
is checked like any untrusted one (:mod:`pbvf_datasets.share.forms`) before it gets its name. A
kill at any point leaves what was there before, or what came.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES
from pbvf_datasets.format.schema import (
    CARD_FILE,
    MANIFEST_FILE,
    SIGNATURE_FILE,
)
from pbvf_datasets.read.untrusted import MAX_CARD_BYTES, CardWarning
from pbvf_datasets.share.forms import Form, listed_files
from pbvf_datasets.share.signing import fingerprint, read_signature, require_signature
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.durable import (
    make_folders,
    path_exists,
    read_error,
    remove_tree,
    resource_errors,
    sync_folder,
    write_all,
    write_durably,
)
from pbvf_offline.io.reading import read_file
from pbvf_offline.io.work_folder import WorkFolder, refuse_foreign

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

CHUNK: Final = 2**20
"""Bytes that are held in memory at a time."""

_SPARE: Final = 2**16  # bytes for folders, and so that a disk is not filled to the last one
_BLOCK: Final = 4096  # a file system gives files whole blocks
_REFUSED: Final = (DamagedError, UnsafeError, IncompatibleError)

_PART: Final = "part-"


def is_there(form: Form, path: Path, digest: str, *, overwrite: bool = False) -> bool:
    """Return whether what has this digest is at a path, every byte of it.

    Args:
        form: What it is.
        path: Its folder.
        digest: The manifest's digest.
        overwrite: Another one there will be replaced.

    Raises:
        ConflictError: Something else is there and is not to be replaced, or it holds files that
            do not belong to such a thing.
        DamagedError: It is there, damaged, and is not to be replaced.
        UnsafeError: The same, and it has been made dangerous.
    """
    if not path_exists(path):
        return False
    layout = form.layout(path)
    if path.is_symlink() or not path.is_dir():
        refuse_foreign(path, layout)
    try:
        if not any(path.iterdir()):
            return False
    except OSError as error:
        raise read_error(error, path) from error
    try:
        found = form.digest(path)
    except (*_REFUSED, UsageError) as error:
        if not overwrite and _claims(form, path) == digest:
            raise type(error)(
                error.what, where=error.where, remedy="replace it with --overwrite"
            ) from error
        problem = f"it exists and is not this {form.what} ({error.what})"
    else:
        if found == digest:
            return True
        problem = (
            f"another {form.what} is there: its digest is {found[:16]}…, the other's is "
            f"{digest[:16]}…"
        )
    refuse_foreign(path, layout)
    if not overwrite:
        raise ConflictError(
            problem, where=path, remedy="choose another name, or replace it with --overwrite"
        )
    return False


def _claims(form: Form, path: Path) -> str | None:
    """Return the digest that the manifest of something damaged names, if it can be read."""
    with contextlib.suppress(PbvfError, OSError):
        claimed: str = form.parse((path / MANIFEST_FILE).read_bytes(), str(path))["digest"]
        return claimed
    return None


class IncomingFolder(WorkFolder):
    """The work folder in which a dataset or bundle from elsewhere is put together.

    Args:
        path: Where it will be.
        form: What it is.
    """

    def __init__(self, path: Path, form: Form) -> None:
        super().__init__(path, "arriving", layout=form.layout(path), check=form.digest)
        self._form = form
        self._folders: list[Path] = []

    @contextlib.contextmanager
    def working(self) -> Iterator[Self]:
        """Let this process alone work there; without ``publish`` the next attempt continues.

        Raises:
            ConflictError: Another process writes that dataset.
            ResourceError: The system refuses something, inside the block too.
        """
        with resource_errors(self.folder, lambda: "what has arrived is kept"):
            self.hold()
            try:
                yield self
            finally:
                try:
                    if self.held and not self._holds_something():
                        self.discard()
                finally:
                    self.close()

    # -------------------------------------------------------------------------- filling

    def begin(self, files: Mapping[str, Mapping[str, Any]], more: int) -> list[str]:
        """Make ready for these files; what has arrived of others is removed.

        Args:
            files: Size and sha256 by name.
            more: Bytes that are written beside them.

        Returns:
            The names of those that are not whole yet.

        Raises:
            ResourceError: The disk is too full for them.
        """
        digests = {entry["sha256"] for entry in files.values()}
        for entry in sorted(self.folder.iterdir()):
            if entry != self.build and entry.name.removeprefix(_PART) not in digests:
                remove_tree(entry)
        above = {parent for name in (*files, CARD_FILE) for parent in Path(name).parents}
        self._folders = sorted(self.build / parent for parent in above)
        for folder in self._folders:
            if folder.is_symlink():
                folder.unlink()
            make_folders(folder)
            for entry in sorted(folder.iterdir()):
                name = entry.relative_to(self.build)
                is_folder = stat.S_ISDIR(entry.lstat().st_mode)
                if not (name in above if is_folder else name.as_posix() in files):
                    remove_tree(entry)
        missing = [name for name, entry in files.items() if not self._has(name, entry)]
        if missing:
            left = [files[name]["size"] - self.received(files[name]) for name in missing]
            blocks = sum(-(-size // _BLOCK) for size in (*left, more))
            self.require_space(blocks * _BLOCK, spare=_SPARE)
        return missing

    def _has(self, name: str, entry: Mapping[str, Any]) -> bool:
        """Whether a file is whole already; one that is not right is removed."""
        file = self.build / name
        if _size(file) == entry["size"]:
            with file.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() == entry["sha256"]:
                    return True
        remove_tree(file)
        return False

    def part(self, entry: Mapping[str, Any]) -> Path:
        """Return the file in which a file arrives."""
        return self.folder / f"{_PART}{entry['sha256']}"

    def received(self, entry: Mapping[str, Any]) -> int:
        """Return how many bytes of a file received earlier; one that is too long is removed."""
        size = _size(self.part(entry))
        if size is not None and size <= entry["size"]:
            return size
        remove_tree(self.part(entry))
        return 0

    @contextlib.contextmanager
    def receiving(
        self, entry: Mapping[str, Any], start: int = 0
    ) -> Iterator[Callable[[bytes], None]]:
        """Open a part and yield what appends bytes to it; :meth:`keep` syncs them.

        Args:
            entry: Size and sha256.
            start: Keep so many bytes of what arrived earlier.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.part(entry), flags, 0o666)
        try:
            os.ftruncate(descriptor, start)
            os.lseek(descriptor, start, os.SEEK_SET)
            yield lambda data: write_all(descriptor, data)
        finally:
            os.close(descriptor)

    def keep(self, name: str, entry: Mapping[str, Any]) -> None:
        """Take a part, whole and of the right digest, as this file."""
        descriptor = os.open(self.part(entry), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.part(entry).rename(self.build / name)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        write_durably(self.build / name, data, sync=False)

    # ------------------------------------------------------------------------ finishing

    def check(self, shown: str) -> None:
        """Open and check the finished folder like any untrusted one; a refused one is removed.

        Args:
            shown: What to call the place that it came from.

        Raises:
            DamagedError: A file is not the one its manifest lists, or cannot be read.
            UnsafeError: It could run code, read other files or exhaust the machine.
            IncompatibleError: It is of another format version.
        """
        for folder in reversed(self._folders):
            sync_folder(folder)
        try:
            self._form.admit(self.build)
        except _REFUSED as error:
            self.discard()
            where = (error.where or "").replace(str(self.build), shown, 1)
            raise type(error)(error.what, where=where, remedy=error.remedy) from error

    def discard(self) -> None:
        """Remove all that has arrived: the dataset is there already, or it is of no use."""
        with contextlib.suppress(OSError):
            self.remove()

    def _holds_something(self) -> bool:
        """Whether there is anything to continue with: a byte, or a whole file."""
        with contextlib.suppress(OSError):
            return any(p.is_file() and p.stat().st_size for p in self.folder.rglob("*"))
        return True


def _size(path: Path) -> int | None:
    """Return the bytes of a regular file of one name; None of anything else, or nothing."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else None


def update_file(path: Path, name: str, data: bytes | None, *, replace: bool) -> int:
    """Give a dataset that is there already its newer manifest, card or signature.

    Args:
        path: The dataset's folder.
        name: Which file.
        data: What the other side has, or None.
        replace: Also where another is there.

    Returns:
        How many bytes were written.

    Raises:
        ResourceError: The folder cannot be written.
    """
    file = path / name
    with resource_errors(file):
        there = file.read_bytes() if path_exists(file) else None
        if data is None or there == data or (there is not None and not replace):
            return 0
        write_durably(file, data)
    return len(data)


class Source(Protocol):
    """A dataset elsewhere.

    Attributes:
        shown: What to call the place.
        manifest: The bytes of ``manifest.json``.
        signature: Those of the signature, or None.
    """

    shown: str
    manifest: bytes
    signature: bytes | None

    def fetch(
        self,
        files: Mapping[str, Mapping[str, Any]],
        missing: Sequence[str],
        incoming: IncomingFolder | None,
    ) -> int:
        """Bring files, and return how many bytes came.

        Args:
            files: Size and sha256 of all files by name.
            missing: Which of them are to be brought.
            incoming: Where to; None when the dataset is here already.
        """

    def card(self) -> bytes | None:
        """Return the bytes of the card, or None."""


@dataclass(frozen=True)
class ReceiveResult:
    """What became of a pull, or of unpacking an archive.

    Attributes:
        dataset: The id that it has here.
        path: Its folder.
        source: Where from, without credentials.
        digest: The manifest's digest.
        size: Bytes of its data files and manifest.
        fetched: Bytes that came now; what came earlier is not fetched again.
        was_there: Whether the dataset was here already; a signature may have come.
        signed_by: Fingerprint of the key that was asked for and signed it, or None.
    """

    dataset: str
    path: Path
    source: str
    digest: str
    size: int
    fetched: int
    was_there: bool
    signed_by: str | None = None

    @property
    def already_complete(self) -> bool:
        """Whether there was nothing to fetch."""
        return self.was_there and self.fetched == 0


def receive(
    form: Form,
    source: Source,
    path: Path,
    name: str = "",
    *,
    overwrite: bool,
    key: Ed25519PublicKey | None = None,
    check: Callable[[], None] | None = None,
) -> ReceiveResult:
    """Bring something to a folder of this machine; nothing is visible before all is checked.

    Args:
        form: What it is.
        source: The place elsewhere.
        path: The folder.
        name: What it is called here.
        overwrite: Replace another one there.
        key: Of the owner who must have signed it, or None.
        check: Called when something is to be fetched, before anything is written.

    Raises:
        DamagedError: What comes is not what the manifest lists.
        UnsafeError: It could run code, read other files or exhaust the machine, or is not
            signed as asked.
        IncompatibleError: It is of another format version.
        ConflictError: Another dataset is there, or the same without this key's signature, or
            another process writes it.
        NetworkError: The source cannot be reached, or refuses.
        ResourceError: The disk refuses.
    """
    signed_by = None
    if key is not None:
        require_signature(source.manifest, source.signature, key, source.shown)
        signed_by = fingerprint(key)
    where = f"{source.shown}/{MANIFEST_FILE}"
    manifest = form.parse(source.manifest, where)
    files = listed_files(form, manifest, where)
    digest: str = manifest["digest"]
    size = sum(entry["size"] for entry in files.values()) + len(source.manifest)

    def received(fetched: int, *, was_there: bool) -> ReceiveResult:
        shown = source.shown
        return ReceiveResult(name, path, shown, digest, size, fetched, was_there, signed_by)

    def found(incoming: IncomingFolder | None) -> ReceiveResult:
        came = source.fetch(files, (), None)
        if incoming is None:
            IncomingFolder(path, form).remove_leftovers()
        else:
            incoming.discard()
        came += _renew(path, source, key, overwrite=overwrite)
        return received(came, was_there=True)

    if is_there(form, path, digest, overwrite=overwrite):
        return found(None)
    if check is not None:
        check()
    with IncomingFolder(path, form).working() as incoming:
        if is_there(form, path, digest, overwrite=overwrite):  # by now, or put back by recovery
            return found(incoming)
        small = len(source.manifest) + min(max(0, manifest["card"]["size"]), MAX_CARD_BYTES)
        fetched = source.fetch(files, incoming.begin(files, small), incoming)
        card = source.card()
        own = {CARD_FILE: card, SIGNATURE_FILE: source.signature, MANIFEST_FILE: source.manifest}
        for file, data in own.items():
            if data is not None:
                incoming.write(file, data)
                fetched += len(data)
        incoming.check(source.shown)
        incoming.publish(replace=overwrite)
    _warn_of_card(form.what, card, manifest, source.shown)
    return received(fetched, was_there=False)


def _renew(path: Path, source: Source, key: Ed25519PublicKey | None, *, overwrite: bool) -> int:
    """Give what is here already the newer signature, and return how many bytes were written.

    With ``overwrite`` it gets the bytes that were signed too: others may say the same.

    Raises:
        ConflictError: It is not to be replaced, and this key did not sign what is here.
        ResourceError: The folder cannot be written.
    """
    if key is not None and not overwrite:
        try:
            here = read_signature(path) or source.signature
            manifest = read_file(path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
            require_signature(manifest, here, key, path)
        except (DamagedError, UnsafeError) as error:
            raise ConflictError(
                f"it is here already, but not signed by the key {fingerprint(key)}",
                where=path,
                remedy="replace its signature with --overwrite",
            ) from error
    newer = {MANIFEST_FILE: source.manifest, SIGNATURE_FILE: source.signature}
    return sum(update_file(path, file, data, replace=overwrite) for file, data in newer.items())


def _warn_of_card(what: str, card: bytes | None, manifest: Mapping[str, Any], shown: str) -> None:
    """Warn when a card is missing or is not the one that the manifest was made with."""
    if card is None:
        problem = f"the {what} card is missing"
    elif hashlib.sha256(card).hexdigest() != manifest["card"]["sha256"]:
        problem = f"the {what} card was edited after the {what} was made"
    else:
        return
    warnings.warn(f"{shown}: {problem}; the data are unchanged", CardWarning, stacklevel=4)


def silent(done: int, total: int) -> None:
    """Tell nobody of progress."""
    del done, total
