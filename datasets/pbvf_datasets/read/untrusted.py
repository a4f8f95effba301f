"""Open untrusted dataset folders: everything is checked before it is used.

Stock Minari must not open such a folder: it builds the environment that ``metadata.json``
names when a space is missing, and HDF5 links, external storage and virtual datasets read any
file of the machine. :func:`open_folder` checks the folder's entries (``lstat``), sizes, strict
JSON and digests. The objects of the HDF5 file are checked when they are read
(:mod:`pbvf_datasets.read.untrusted_hdf5`).

Nothing here imports Minari, builds an environment, or opens a file outside the folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pbvf_datasets.format.bundle import FORMAT as BUNDLE
from pbvf_datasets.format.manifest import (
    MAX_MANIFEST_BYTES,
    mismatch,
    parse_manifest,
    stated_format,
)
from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    DATA_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
)
from pbvf_datasets.format.spaces import parse_space
from pbvf_datasets.read.metadata import MAX_METADATA_BYTES, check_space_kinds, parse_metadata
from pbvf_datasets.read.untrusted_hdf5 import GuardedFile, identity_of
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    PbvfError,
    ResourceError,
    UnsafeError,
    UsageError,
    printable,
)
from pbvf_offline.io.durable import read_error
from pbvf_offline.io.reading import link_error, refuse_holes
from pbvf_offline.io.strict_json import canonical_json

if TYPE_CHECKING:
    import gymnasium as gym

    from pbvf_datasets.format.episode_rules import Spaces

MAX_CARD_BYTES: Final = 16 * 2**20
MAX_CROISSANT_BYTES: Final = 16 * 2**20
MAX_ENTRIES: Final = 10_000


class UnverifiedWarning(UserWarning):
    """A dataset folder without a manifest was read: nothing vouches for its content."""


class CardWarning(UserWarning):
    """The dataset card was edited after the dataset was made, or is missing."""


@dataclass
class CheckedFolder:
    """A dataset folder whose files are what they should be; a context manager.

    Attributes:
        path: The folder.
        metadata: ``data/metadata.json``, parsed.
        manifest: ``manifest.json``, parsed and checked against the files, or None.
        digest: The manifest's digest; without a manifest, one of the files' digests.
        observation_space: From the metadata; one-dimensional.
        action_space: From the metadata.
        mismatches: One error for each file that is not the one its manifest lists; empty
            unless :func:`open_folder` was asked to keep them.
    """

    path: Path
    metadata: dict[str, Any]
    manifest: dict[str, Any] | None
    digest: str
    observation_space: gym.spaces.Box
    action_space: gym.spaces.Box | gym.spaces.Discrete
    mismatches: tuple[DamagedError, ...]
    _descriptor: int = field(repr=False)
    _before: tuple[int, ...] = field(repr=False)
    _file: GuardedFile | None = field(default=None, repr=False)

    @property
    def verified(self) -> bool:
        """Whether a manifest vouches for the files."""
        return self.manifest is not None

    @property
    def data_file(self) -> Path:
        """The HDF5 file."""
        return self.path / DATA_FILE

    @property
    def id(self) -> str:
        """The dataset's id as its metadata give it, else the folder's name."""
        given = self.metadata.get("dataset_id")
        return given if isinstance(given, str) else self.path.name

    @property
    def spaces(self) -> Spaces:
        """Observation and action space."""
        return self.observation_space, self.action_space

    @property
    def total_episodes(self) -> int:
        """Number of episodes, as the metadata claim."""
        return int(self.metadata["total_episodes"])

    @property
    def total_steps(self) -> int:
        """Number of steps, as the metadata claim."""
        return int(self.metadata["total_steps"])

    def open_data(self) -> GuardedFile:
        """Return the HDF5 file, each object of which is checked when it is asked for.

        Raises:
            DamagedError: It is not an HDF5 file, or somebody wrote to it since it was hashed.
            UnsafeError: Another file has its name.
        """
        if self._file is None:
            self._file = GuardedFile(self.data_file, self._descriptor, self._before)
        return self._file

    def open_checked(self) -> Any:
        """Return the ``h5py.File`` after a walk over all of it; valid until the folder closes.

        Raises:
            UnsafeError: An object could read other files, load code or exhaust the machine.
            DamagedError: An object cannot be read.
        """
        data = self.open_data()
        data.walk()
        return data.file

    def close_data(self) -> None:
        """Close the HDF5 file alone; :meth:`open_data` opens it again.

        Raises:
            DamagedError: Somebody wrote to it meanwhile.
        """
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.check_unchanged()
            finally:
                file.close()

    def close(self) -> None:
        """Close the files; further calls do nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> CheckedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_folder(
    path: str | os.PathLike[str],
    *,
    require_manifest: bool = False,
    warn: bool = True,
    keep_mismatches: bool = False,
) -> CheckedFolder:
    """Check a dataset folder and open it; see the module's text for what is checked.

    Args:
        path: The folder.
        require_manifest: Refuse a folder without ``manifest.json`` instead of warning.
        warn: Warn about a missing manifest and an edited card.
        keep_mismatches: Return the folder even when a file is not the one its manifest lists.
            The caller reads it in search of a more telling error, as
            :func:`pbvf_datasets.read.folder_episodes.folder_episodes` does.

    Raises:
        UsageError: There is no such folder.
        DamagedError: A file is missing or malformed, or not the one its manifest lists. Where
            the damage can be found, the object is named.
        UnsafeError: A file is a link or device, a space is missing, or a manifest is
            missing and required.
        IncompatibleError: A newer format, or spaces that are not supported.
        ResourceError: A file may not be read.
    """
    folder = Path(path)
    with contextlib.ExitStack() as stack:
        root = _open_directory(folder, None, folder)
        stack.callback(os.close, root)
        entries = _entries(root, folder)
        data = _open_data_folder(root, entries, folder)
        stack.callback(os.close, data)
        manifest = _read_manifest(root, entries, folder, require_manifest)
        raw = _read_small(data, METADATA_FILE, folder, MAX_METADATA_BYTES)
        descriptor = _open_file(data, DATA_FILE, folder)
        stack.callback(os.close, descriptor)
        before = identity_of(descriptor)
        files = {DATA_FILE: _file_entry(descriptor, folder), METADATA_FILE: _entry(raw)}
        if manifest is not None and CROISSANT_FILE in manifest["files"]:
            if not _is_file(entries, CROISSANT_FILE):
                raise DamagedError("the file is missing", where=folder / CROISSANT_FILE)
            files[CROISSANT_FILE] = _entry(
                _read_small(root, CROISSANT_FILE, folder, MAX_CROISSANT_BYTES)
            )
        listed = {} if manifest is None else manifest["files"]
        found = {
            n: mismatch(listed[n], **entry, where=folder / n)
            for n, entry in files.items()
            if n in listed
        }
        wrong = {name: error for name, error in found.items() if error is not None}
        metadata, spaces = _parse_metadata(raw, manifest, wrong.get(METADATA_FILE), folder)
        if warn and manifest is None:
            warnings.warn(
                f"{folder}: it has no manifest.json, so it is unverified: damage and "
                "changes cannot be noticed by digest",
                UnverifiedWarning,
                stacklevel=3,
            )
        if warn and manifest is not None:
            _check_card(manifest, root, entries, folder)
        hashes = {name: entry["sha256"] for name, entry in files.items()}
        opened = CheckedFolder(
            path=folder,
            metadata=metadata,
            manifest=manifest,
            digest=hashlib.sha256(canonical_json(hashes)).hexdigest()
            if manifest is None
            else manifest["digest"],
            observation_space=spaces[0],
            action_space=spaces[1],
            mismatches=tuple(wrong.values()),
            _descriptor=os.dup(descriptor),
            _before=before,
        )
    if opened.mismatches and not keep_mismatches:
        with opened:
            opened.open_data().walk(read=True)
            raise opened.mismatches[0]
    return opened


def _parse_metadata(
    raw: bytes,
    manifest: Mapping[str, Any] | None,
    mismatch: DamagedError | None,
    folder: Path,
) -> tuple[dict[str, Any], Spaces]:
    """Return the metadata and their spaces."""
    where = folder / METADATA_FILE
    try:
        metadata = parse_metadata(raw, where)
        observations, actions = (
            parse_space(metadata[key], f"{where}: {key}")
            for key in ("observation_space", "action_space")
        )
        return metadata, check_space_kinds(observations, actions, str(where))
    except (UnsafeError, IncompatibleError):
        # A file of the right length with other bytes was damaged, whatever those say;
        # one of another length was edited, and is what it says.
        same_size = manifest and manifest["files"][METADATA_FILE]["size"] == len(raw)
        if mismatch is not None and same_size:
            raise mismatch from None
        raise


def _open_directory(name: str | Path, parent: int | None, where: Path) -> int:
    """Open a folder; one inside a dataset (``parent`` given) must not be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(name, flags | (0 if parent is None else os.O_NOFOLLOW), dir_fd=parent)
    except OSError as error:
        raise _os_error(error, where) from error


def is_dataset(folder: Path) -> bool:
    """Return whether a folder looks like a dataset's, be it damaged."""
    marks = (MANIFEST_FILE, DATA_FILE, METADATA_FILE)
    return any(os.path.lexists(folder / name) for name in marks)


def _open_data_folder(root: int, entries: Mapping[str, os.stat_result], folder: Path) -> int:
    """Open the folder ``data``, in which both files must be."""
    if not is_dataset(folder):
        raise UsageError(
            f"this is not a dataset folder: it has neither {DATA_FILE} nor a manifest.json",
            where=folder,
            remedy="name a dataset; 'pbvf info' tells what a folder holds, and 'pbvf train-online "
            "--export-dataset' makes a dataset of a run",
        )
    if "data" not in entries and MANIFEST_FILE in entries:
        manifest = _read_small(root, MANIFEST_FILE, folder, MAX_MANIFEST_BYTES)
        if stated_format(manifest) == BUNDLE:
            raise UsageError(
                "this is not a dataset folder but a bundle",
                where=folder,
                remedy="'pbvf info' tells what it holds",
            )
    if "data" not in entries or not stat.S_ISDIR(entries["data"].st_mode):
        raise DamagedError("this is not a dataset folder: it has no folder 'data'", where=folder)
    data = _open_directory("data", root, folder / "data")
    try:
        inside = _entries(data, folder / "data")
        for name in (DATA_FILE, METADATA_FILE):
            if not _is_file(inside, name.rpartition("/")[2]):
                raise DamagedError("the file is missing", where=folder / name)
    except BaseException:
        os.close(data)
        raise
    return data


def _is_file(entries: Mapping[str, os.stat_result], name: str) -> bool:
    return name in entries and stat.S_ISREG(entries[name].st_mode)


def _open_file(parent: int, name: str, folder: Path) -> int:
    """Open a regular file of the folder, not following a link, not waiting for a pipe."""
    where, name = folder / name, name.rpartition("/")[2]
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except OSError as error:
        raise _os_error(error, where) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnsafeError("this is not a regular file", where=where)
        refuse_holes(os.fstat(descriptor), where)
    except UnsafeError:
        os.close(descriptor)
        raise
    return descriptor


def _os_error(error: OSError, where: Path) -> PbvfError:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return link_error(where)
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return UsageError("does not exist", where=where)
    if error.errno == errno.EIO:
        return DamagedError(f"it cannot be read: {error.strerror}", where=where)
    if isinstance(error, PermissionError):
        return read_error(error, where)
    return ResourceError(f"it cannot be opened: {error.strerror}", where=where)


def _entries(descriptor: int, where: Path) -> dict[str, os.stat_result]:
    """Return the ``lstat`` of each entry of a folder; links and devices are refused."""
    entries: dict[str, os.stat_result] = {}
    try:
        with os.scandir(descriptor) as found:
            for entry in found:
                if len(entries) >= MAX_ENTRIES:
                    raise UnsafeError(f"it holds more than {MAX_ENTRIES:,} entries", where=where)
                entries[entry.name] = entry.stat(follow_symlinks=False)
    except OSError as error:
        raise _os_error(error, where) from error
    for name, found_stat in sorted(entries.items()):
        mode = found_stat.st_mode
        if stat.S_ISLNK(mode):
            raise link_error(where / printable(name))
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UnsafeError(
                "this is neither a regular file nor a folder", where=where / printable(name)
            )
    return entries


def _read_small(parent: int, name: str, folder: Path, limit: int) -> bytes:
    where = folder / name
    descriptor = _open_file(parent, name, folder)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > limit:
            raise UnsafeError(f"it has {size:,} bytes; at most {limit:,} are read", where=where)
        if size == 0:
            raise DamagedError("the file is empty", where=where)
        try:
            return file.read(size + 1)  # as much as is asked for is allocated
        except OSError as error:
            raise _os_error(error, where) from error


def _file_entry(descriptor: int, folder: Path) -> dict[str, Any]:
    """Return size and digest of the data file."""
    where, size = folder / DATA_FILE, os.fstat(descriptor).st_size
    if size == 0:
        raise DamagedError("the file is empty", where=where)
    try:
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
            return {"size": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    except OSError as error:
        raise _os_error(error, where) from error


def _entry(raw: bytes) -> dict[str, Any]:
    return {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


# ---------------------------------------------------------------------------- manifest


def _read_manifest(
    root: int, entries: Mapping[str, os.stat_result], folder: Path, required: bool
) -> dict[str, Any] | None:
    if MANIFEST_FILE in entries:
        raw = _read_small(root, MANIFEST_FILE, folder, MAX_MANIFEST_BYTES)
        return parse_manifest(raw, folder / MANIFEST_FILE)
    if required:
        raise UnsafeError(
            "it has no manifest.json, so its content cannot be checked",
            where=folder,
            remedy="get it with its manifest, or leave out --require-manifest if you gave it",
        )
    return None


def _check_card(
    manifest: Mapping[str, Any], root: int, entries: Mapping[str, os.stat_result], folder: Path
) -> None:
    listed, problem = manifest["card"], None
    if not _is_file(entries, CARD_FILE):
        problem = "is missing"
    else:
        same = entries[CARD_FILE].st_size == listed["size"]
        if same and listed["size"] > 0:
            same = _entry(_read_small(root, CARD_FILE, folder, MAX_CARD_BYTES)) == listed
        if not same:
            problem = "was edited after the dataset was made"
    if problem is not None:
        warnings.warn(
            f"{folder / CARD_FILE}: the dataset card {problem}; the data are unchanged",
            CardWarning,
            stacklevel=4,
        )
