"""How a dataset from elsewhere takes its place: put together beside it, checked, one rename.

Files arrive in the dot-folder ``.<name>.arriving`` beside the dataset (Minari's listing skips
dot-folders): ``part-<sha256>`` while a file is on its way, so that an interrupted transfer
goes on with it, and ``build`` for what is whole and has the right digest. The finished folder
goes through the door (:mod:`pbvf_datasets.read.untrusted`) like any stranger's, and is moved to its
name with one rename. A kill at any point leaves what was there before, or the dataset.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    DATA_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    dataset_path,
    datasets_root,
)
from pbvf_datasets.read.untrusted import (
    MAX_CARD_BYTES,
    MAX_CROISSANT_BYTES,
    MAX_METADATA_BYTES,
    CardWarning,
    open_folder,
)
from pbvf_datasets.share.signing import SIGNATURE_FILE
from pbvf_offline.errors import (
    ConflictError,
    DamagedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
)
from pbvf_offline.io.durable import (
    TEMPORARY,
    make_folders,
    megabytes,
    path_exists,
    remove_tree,
    resource_errors,
    write_durably,
)
from pbvf_offline.io.lock import LOCK_FILE, FolderLock
from pbvf_offline.io.tensor_file import sync_folder, write_all

Progress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""

CHUNK: Final = 2**20
"""Bytes that are held in memory at a time."""

MAX_DATA_BYTES: Final = 2**42
_LIMITS: Final = {
    DATA_FILE: MAX_DATA_BYTES,
    METADATA_FILE: MAX_METADATA_BYTES,
    CROISSANT_FILE: MAX_CROISSANT_BYTES,
    CARD_FILE: MAX_CARD_BYTES,
}
_KNOWN: Final = frozenset(("data", MANIFEST_FILE, CARD_FILE, CROISSANT_FILE, SIGNATURE_FILE))
_ROOM: Final = 16 * 2**20  # bytes left free beside a dataset
_REFUSED: Final = (DamagedError, UnsafeError, IncompatibleError)

BUILD_FOLDER: Final = "build"
REPLACED_FOLDER: Final = "replaced"
PART: Final = "part-"


def arrival_path(dataset_id: str, root: Path | None = None) -> Path:
    """Return where a dataset of this id will stand.

    Raises:
        UsageError: It is not an id, or the place is inside another dataset.
    """
    root = datasets_root() if root is None else root
    path = dataset_path(dataset_id, root)
    for above in path.parents:
        if above == root:
            break
        if (above / "data").exists():
            raise UsageError(
                f"{dataset_id} would lie inside the dataset {above}",
                remedy="choose another namespace",
            )
    return path


def listed_files(manifest: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Return size and sha256 of each file that must arrive; the card, which may be edited, not.

    Raises:
        UnsafeError: A size is over what such a file may have.
    """
    files: dict[str, dict[str, Any]] = dict(sorted(manifest["files"].items()))
    for name, entry in files.items():
        if not 0 <= entry["size"] <= _LIMITS[name]:
            raise UnsafeError(
                f"{name} is to have {entry['size']:,} bytes; {_LIMITS[name]:,} are the limit",
                where=where,
            )
    return files


def stands(path: Path, digest: str, *, overwrite: bool = False) -> bool:
    """Return whether a dataset of this digest stands at a place, every byte of it.

    Args:
        path: The place.
        digest: The manifest's digest.
        overwrite: Another dataset there will be replaced.

    Raises:
        ConflictError: Something else stands there and is not to be replaced, or holds more
            than a dataset, so that replacing it could lose what is nobody's business.
        DamagedError: That dataset stands there, damaged, and is not to be replaced.
        UnsafeError: The same, and it has been made dangerous.
    """
    if not path_exists(path):
        return False
    mode = path.lstat().st_mode
    if not stat.S_ISDIR(mode):
        raise ConflictError("this is a file or a link", where=path, remedy="choose another name")
    with resource_errors(path, lambda: "check its permissions"):
        entries = {entry.name for entry in path.iterdir()}
    if not entries:
        return False
    try:
        with open_folder(path, require_manifest=True, warn=False) as folder:
            found = folder.digest
    except PbvfError as error:
        if not isinstance(error, (*_REFUSED, UsageError)):
            raise
        if not overwrite:
            if _claims(path) == digest:
                raise type(error)(
                    error.what, where=error.where, remedy="replace it with --overwrite"
                ) from error
            raise ConflictError(
                f"it exists and is not this dataset ({error.what})",
                where=path,
                remedy="choose another name, or replace it with --overwrite",
            ) from error
    else:
        if found == digest:
            return True
        if not overwrite:
            raise ConflictError(
                f"another dataset is there: its digest is {found[:16]}…, the other's is "
                f"{digest[:16]}…",
                where=path,
                remedy="choose another name, or replace it with --overwrite",
            )
    others = sorted(name for name in entries - _KNOWN if not name.startswith(TEMPORARY))
    if others:
        raise ConflictError(
            f"it holds {others[0]!r}, which is no part of a dataset, and would be removed with it",
            where=path,
            remedy="move it away, or choose another name",
        )
    return False


def _claims(path: Path) -> str | None:
    """Return the digest that a damaged dataset's manifest names, if it can be read."""
    from pbvf_datasets.format.manifest import parse_manifest

    with contextlib.suppress(PbvfError, OSError):
        claimed: str = parse_manifest((path / MANIFEST_FILE).read_bytes(), path)["digest"]
        return claimed
    return None


class Landing:
    """The dot-folder in which one dataset is put together; a context manager.

    Inside the ``with`` block this process alone works there. Leaving it without
    :meth:`publish` keeps what has arrived, for the next attempt.

    Args:
        path: Where the dataset will stand.
        what: What to call it in messages.

    Raises:
        ConflictError: Another process is at it.
        ResourceError: The folder cannot be written.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self.what = what
        self.work = path.with_name(f".{path.name}.arriving")
        self.build = self.work / BUILD_FOLDER
        self._replaced = self.work / REPLACED_FOLDER
        self._lock: FolderLock | None = None

    def __enter__(self) -> Self:
        with self.resources():
            make_folders(self.work.parent)
            self._lock = FolderLock(self.work, self.what)
        try:
            with self.resources():
                self._recover()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._lock is not None and not self._holds_something():
                with contextlib.suppress(OSError):
                    self._remove_work()
        finally:
            self._release()

    def resources(self) -> contextlib.AbstractContextManager[None]:
        """Turn the system's refusals into errors that say what to do."""
        return resource_errors(
            self.work, lambda: "free space or choose another place; the same command continues"
        )

    # -------------------------------------------------------------------------- filling

    def begin(self, files: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Make ready for these files; what has arrived of others is removed.

        Args:
            files: Size and sha256 by name.

        Returns:
            The names of those that are not whole yet.

        Raises:
            ResourceError: The disk is too full for them.
        """
        digests = {entry["sha256"] for entry in files.values()}
        with self.resources():
            for entry in sorted(self.work.iterdir()):
                if entry.name in (LOCK_FILE, BUILD_FOLDER):
                    continue
                if entry.name.removeprefix(PART) not in digests:
                    remove_tree(entry)
            data = (self.build / DATA_FILE).parent
            make_folders(data)
            for folder in (self.build, data):
                for entry in sorted(folder.iterdir()):
                    if entry != data and entry.relative_to(self.build).as_posix() not in files:
                        remove_tree(entry)
            missing = [name for name, entry in files.items() if not self._has(name, entry)]
            need = sum(files[name]["size"] - self.arrived(files[name]) for name in missing)
            free = shutil.disk_usage(self.work).free
        if need + _ROOM > free:
            raise ResourceError(
                f"{megabytes(need)} are to arrive, with {megabytes(_ROOM)} left beside them, and "
                f"{megabytes(free)} are free",
                where=self.work.parent,
                remedy="free space or choose another disk",
            )
        return missing

    def _has(self, name: str, entry: Mapping[str, Any]) -> bool:
        """Whether a file is whole already; one that is not right is removed."""
        file = self.build / name
        if not path_exists(file):
            return False
        status = file.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_size == entry["size"]:
            with file.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() == entry["sha256"]:
                    return True
        remove_tree(file)
        return False

    def part(self, entry: Mapping[str, Any]) -> Path:
        """Return the file in which a file arrives."""
        return self.work / f"{PART}{entry['sha256']}"

    def arrived(self, entry: Mapping[str, Any]) -> int:
        """Return how many bytes of a file arrived earlier; one that is too long is removed."""
        part = self.part(entry)
        if not path_exists(part):
            return 0
        with self.resources():
            status = part.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_size <= entry["size"]:
                return status.st_size
            remove_tree(part)
        return 0

    @contextlib.contextmanager
    def arriving(
        self, entry: Mapping[str, Any], start: int = 0
    ) -> Iterator[Callable[[bytes], None]]:
        """Open a part and yield what appends bytes to it; :meth:`keep` syncs them.

        Args:
            entry: Size and sha256.
            start: Keep so many bytes of what arrived earlier.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self.resources():
            descriptor = os.open(self.part(entry), flags, 0o666)
        try:
            with self.resources():
                os.ftruncate(descriptor, start)
                os.lseek(descriptor, start, os.SEEK_SET)

            def write(data: bytes) -> None:
                with self.resources():
                    write_all(descriptor, data)

            yield write
        finally:
            os.close(descriptor)

    def keep(self, name: str, entry: Mapping[str, Any]) -> None:
        """Take a part, whole and of the right digest, as this file."""
        with self.resources():
            descriptor = os.open(self.part(entry), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            self.part(entry).rename(self.build / name)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        with self.resources():
            write_durably(self.build / name, data, sync=False)

    # ------------------------------------------------------------------------ finishing

    def check(self, shown: str) -> None:
        """Let the finished folder through the door; what is refused there is removed.

        Args:
            shown: What to call the place that it came from.

        Raises:
            DamagedError: A file is not the one its manifest lists, or cannot be read.
            UnsafeError: It could run code, read other files or exhaust the machine.
            IncompatibleError: It is of another format version.
        """
        with self.resources():
            sync_folder((self.build / DATA_FILE).parent)
            sync_folder(self.build)
        try:
            with open_folder(self.build, require_manifest=True, warn=False) as folder:
                folder.open_checked()
        except _REFUSED as error:
            with contextlib.suppress(OSError):
                remove_tree(self.work, keep=LOCK_FILE)
            where = (error.where or "").replace(str(self.build), shown, 1)
            raise type(error)(error.what, where=where, remedy=error.remedy) from error

    def publish(self, *, overwrite: bool = False) -> None:
        """Move the finished folder to its place.

        Args:
            overwrite: Replace what stands there; whether it may be, :func:`stands` says.

        Raises:
            ConflictError: Something else took the place meanwhile.
            ResourceError: The system refuses.
        """
        with self.resources():
            if overwrite and path_exists(self.path) and any(self.path.iterdir()):
                remove_tree(self._replaced)
                self.path.rename(self._replaced)
                sync_folder(self.path.parent)
            try:
                self.build.rename(self.path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                raise ConflictError(
                    "something else took this place meanwhile",
                    where=self.path,
                    remedy="move it away and run the same command again",
                ) from error
            sync_folder(self.path.parent)
        # The dataset stands; what cannot be removed now is tidied the next time.
        with contextlib.suppress(OSError):
            self._remove_work()
        self._release()

    def discard(self) -> None:
        """Remove all that has arrived, since the dataset stands already."""
        with contextlib.suppress(OSError):
            self._remove_work()
        self._release()

    # -------------------------------------------------------------------------- helpers

    def _recover(self) -> None:
        """Complete or undo a replacement that was killed between its two renames."""
        if not path_exists(self._replaced):
            return
        if not path_exists(self.path):
            try:
                with open_folder(self.build, require_manifest=True, warn=False):
                    pass
                self.build.rename(self.path)
            except PbvfError:
                self._replaced.rename(self.path)
            sync_folder(self.path.parent)
        remove_tree(self._replaced)

    def _holds_something(self) -> bool:
        with contextlib.suppress(OSError):
            for entry in self.work.iterdir():
                if entry.name == BUILD_FOLDER:
                    if any(child.is_file() for child in entry.rglob("*")):
                        return True
                elif entry.name != LOCK_FILE and (entry.is_dir() or entry.stat().st_size):
                    return True
            return False
        return True

    def _remove_work(self) -> None:
        """Remove the work folder; the lock last, so that no other process slips in before."""
        remove_tree(self.work, keep=LOCK_FILE)
        (self.work / LOCK_FILE).unlink()
        self.work.rmdir()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def renew(path: Path, name: str, data: bytes | None, *, replace: bool) -> int:
    """Give a dataset that stands already its newer card or signature.

    Args:
        path: The dataset's folder.
        name: Which file.
        data: What the other place has, or None.
        replace: Also where another is there.

    Returns:
        How many bytes were written.

    Raises:
        ResourceError: The folder cannot be written.
    """
    file = path / name
    with resource_errors(file, lambda: "check its permissions"):
        there = file.read_bytes() if path_exists(file) else None
        if data is None or there == data or (there is not None and not replace):
            return 0
        write_durably(file, data)
    return len(data)


def silent(done: int, total: int) -> None:
    """Tell nobody of progress."""
    del done, total


def tidy(path: Path, what: str) -> None:
    """Remove what a kill after the final rename left behind; never essential."""
    work = path.with_name(f".{path.name}.arriving")
    if path_exists(work):
        with contextlib.suppress(PbvfError, OSError), Landing(path, what) as landing:
            landing.discard()


def card_differs(card: bytes | None, manifest: Mapping[str, Any], shown: str) -> None:
    """Warn when a card is missing or is not the one that the manifest was made with."""
    if card is None:
        problem = "the dataset card is missing"
    elif hashlib.sha256(card).hexdigest() != manifest["card"]["sha256"]:
        problem = "the dataset card was edited after the dataset was made"
    else:
        return
    warnings.warn(f"{shown}: {problem}; the data are unchanged", CardWarning, stacklevel=3)


def named_folder(path: Path) -> Path:
    """Return a folder by a name that has a folder above it.

    Raises:
        UsageError: It is the root of a file system, or no name at all.
    """
    if path.name not in ("", ".."):
        return path
    full = Path(os.path.realpath(path))
    if full.name == "":
        raise UsageError("has no folder above it", where=path, remedy="name another folder")
    return full
