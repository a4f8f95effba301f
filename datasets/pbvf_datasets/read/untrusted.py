"""The one door through which dataset folders of strangers come in.

Stock Minari must not open such a folder: it builds the environment that
``metadata.json`` names when a space is missing, and HDF5 links, external storage and
virtual datasets read any file of the machine. :func:`open_folder` looks before it
touches: the folder's entries (``lstat``), sizes, strict JSON, digests, and then the
HDF5 file, where the kind of each link is known before the link is followed, and the
layout, filters, type and size of each array before the array is read.

Nothing here imports Minari, builds an environment, or opens a file outside the folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from pbvf_datasets.format.manifest import MAX_MANIFEST_BYTES, parse_manifest
from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    DATA_FILE,
    MANIFEST_FILE,
    METADATA_FILE,
    check_spaces,
    parse_space,
)
from pbvf_datasets.read.untrusted_hdf5 import GuardedFile
from pbvf_offline.errors import (
    DamagedError,
    IncompatibleError,
    ResourceError,
    UnsafeError,
    UsageError,
    printable,
)
from pbvf_offline.io.strict_json import canonical_json, parse_json
from pbvf_offline.io.tensor_file import refuse_holes

if TYPE_CHECKING:
    import gymnasium as gym

MAX_METADATA_BYTES: Final = 16 * 2**20
MAX_CARD_BYTES: Final = 16 * 2**20
MAX_CROISSANT_BYTES: Final = 16 * 2**20
MAX_ENTRIES: Final = 10_000


class UnverifiedWarning(UserWarning):
    """A dataset folder without a manifest was read: nothing vouches for its content."""


class CardWarning(UserWarning):
    """The dataset card was edited after the dataset was made, or is missing."""


# ------------------------------------------------------------------------------ folder


@dataclass
class CheckedFolder:
    """A dataset folder whose files are what they should be; a context manager.

    Attributes:
        path: The folder.
        metadata: ``data/metadata.json``, parsed.
        manifest: ``manifest.json``, parsed and checked against the files, or None.
        hashes: sha256 (hex) of each listed file by its name in the folder.
        digest: The manifest's digest; without a manifest, one of ``hashes``.
        observation_space: From the metadata; one-dimensional.
        action_space: From the metadata.
        total_episodes: As the metadata claims; the reader checks it.
        total_steps: As the metadata claims; the reader checks it.
        mismatch: A file that is not the one its manifest lists; :func:`open_folder` never
            returns such a folder, :func:`open_suspect` does.
    """

    path: Path
    metadata: dict[str, Any]
    manifest: dict[str, Any] | None
    hashes: dict[str, str]
    digest: str
    observation_space: gym.spaces.Box
    action_space: gym.spaces.Box | gym.spaces.Discrete
    total_episodes: int
    total_steps: int
    mismatch: DamagedError | None
    _descriptor: int = field(repr=False)
    _file: GuardedFile | None = field(default=None, repr=False)

    @property
    def verified(self) -> bool:
        """Whether a manifest vouches for the files."""
        return self.manifest is not None

    @property
    def data_file(self) -> Path:
        """The HDF5 file."""
        return self.path / DATA_FILE

    def open_data(self) -> GuardedFile:
        """Return the HDF5 file, each object of which is checked when it is asked for.

        Raises:
            DamagedError: It is not an HDF5 file.
        """
        if self._file is None:
            self._file = GuardedFile(self.data_file, self._descriptor)
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

    def check_unchanged(self) -> None:
        """Check that the HDF5 file is still the one that was hashed.

        Raises:
            DamagedError: Somebody wrote to it meanwhile.
        """
        self.open_data().check_unchanged()

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_folder(
    path: str | os.PathLike[str], *, require_manifest: bool = False, warn: bool = True
) -> CheckedFolder:
    """Check a dataset folder and open it; see the module's text for what is checked.

    Takes the arguments and raises the errors of :func:`open_suspect`, and:

    Raises:
        DamagedError: A file is not the one its manifest lists. Where the damage can be
            found, the object is named.
        UnsafeError: The same, and the file has been made dangerous.
    """
    folder = open_suspect(path, require_manifest=require_manifest, warn=warn)
    if folder.mismatch is not None:
        with folder:
            folder.open_data().walk(read=True)
            raise folder.mismatch
    return folder


def open_suspect(
    path: str | os.PathLike[str], *, require_manifest: bool = False, warn: bool = True
) -> CheckedFolder:
    """Check a dataset folder and open it even when a digest does not fit.

    The caller looks for a more telling error and then raises ``mismatch``.

    The arrays of the HDF5 file are not looked at yet: :meth:`CheckedFolder.open_data`
    checks each when it is read, :meth:`CheckedFolder.open_checked` all at once.

    Args:
        path: The folder.
        require_manifest: Refuse a folder without ``manifest.json`` instead of warning.
        warn: Warn about a missing manifest and an edited card.

    Raises:
        UsageError: There is no such folder.
        DamagedError: A file is missing or malformed.
        UnsafeError: A file is a link or device, a space is missing, or a manifest is
            missing and required.
        IncompatibleError: A newer format, or spaces that are not supported.
        ResourceError: A file may not be read.
    """
    folder = Path(path)
    root = _open_directory(folder, None, folder)
    data = descriptor = -1
    try:
        entries = _look(root, folder)
        if "data" not in entries or not stat.S_ISDIR(entries["data"].st_mode):
            raise DamagedError(
                "this is not a dataset folder: it has no folder 'data'", where=folder
            )
        data = _open_directory("data", root, folder / "data")
        inside = _look(data, folder / "data")
        for name, listing in ((DATA_FILE, inside), (METADATA_FILE, inside)):
            found = listing.get(name.rpartition("/")[2])
            if found is None or not stat.S_ISREG(found.st_mode):
                raise DamagedError("the file is missing", where=folder / name)
        manifest = None
        if MANIFEST_FILE in entries:
            manifest = _read_manifest(root, folder / MANIFEST_FILE)
        elif require_manifest:
            raise UnsafeError(
                "it has no manifest.json, so nothing vouches for its content",
                where=folder,
                remedy="get it with its manifest, or read it without --require-manifest",
            )
        raw = _read_small(
            data, METADATA_FILE.rpartition("/")[2], folder / METADATA_FILE, MAX_METADATA_BYTES
        )
        descriptor = _open_file(data, DATA_FILE.rpartition("/")[2], folder / DATA_FILE)
        size = os.fstat(descriptor).st_size
        sizes = {DATA_FILE: size, METADATA_FILE: len(raw)}
        if size == 0:
            raise DamagedError("the file is empty", where=folder / DATA_FILE)
        hashes = {
            DATA_FILE: _hash(descriptor, folder / DATA_FILE),
            METADATA_FILE: hashlib.sha256(raw).hexdigest(),
        }
        if manifest is not None and CROISSANT_FILE in manifest["files"]:
            raw_croissant = _read_listed(
                root, CROISSANT_FILE, entries, folder / CROISSANT_FILE, MAX_CROISSANT_BYTES
            )
            sizes[CROISSANT_FILE] = len(raw_croissant)
            hashes[CROISSANT_FILE] = hashlib.sha256(raw_croissant).hexdigest()
        wrong = {} if manifest is None else _mismatches(manifest, sizes, hashes, folder)
        try:
            metadata = parse_metadata(raw, folder / METADATA_FILE)
            observation_space, action_space = metadata_spaces(metadata, folder / METADATA_FILE)
        except (UnsafeError, IncompatibleError):
            # A file of the right length with other bytes was damaged, whatever those say;
            # one of another length was edited, and is what it says.
            listed = None if manifest is None else manifest["files"][METADATA_FILE]
            if METADATA_FILE in wrong and listed is not None and listed["size"] == len(raw):
                raise wrong[METADATA_FILE] from None
            raise
        if manifest is None:
            digest = hashlib.sha256(canonical_json(hashes)).hexdigest()
        else:
            digest = manifest["digest"]
        if warn and manifest is None:
            warnings.warn(
                f"{folder}: it has no manifest.json, so it is unverified: damage and "
                "changes cannot be noticed by digest",
                UnverifiedWarning,
                stacklevel=3,
            )
        if warn and manifest is not None:
            _check_card(manifest, root, entries, folder)
        checked = CheckedFolder(
            path=folder,
            metadata=metadata,
            manifest=manifest,
            hashes=hashes,
            digest=digest,
            observation_space=observation_space,
            action_space=action_space,
            total_episodes=metadata["total_episodes"],
            total_steps=metadata["total_steps"],
            mismatch=next(iter(wrong.values()), None),
            _descriptor=descriptor,
        )
        descriptor = -1
        return checked
    finally:
        for handle in (root, data, descriptor):
            if handle >= 0:
                os.close(handle)


def _open_directory(name: str | Path, parent: int | None, where: Path) -> int:
    """Open a folder; one inside a dataset (``parent`` given) must not be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(name, flags | (0 if parent is None else os.O_NOFOLLOW), dir_fd=parent)
    except OSError as error:
        raise _os_error(error, where) from error


def _open_file(parent: int, name: str, where: Path) -> int:
    """Open a regular file of the folder, not following a link, not waiting for a pipe."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except OSError as error:
        raise _os_error(error, where) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnsafeError("this is not a regular file", where=where)
    try:
        refuse_holes(os.fstat(descriptor), where)
    except UnsafeError:
        os.close(descriptor)
        raise
    return descriptor


def _os_error(
    error: OSError, where: Path
) -> UsageError | UnsafeError | ResourceError | DamagedError:
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return UnsafeError(
            "this is a symbolic link, which could lead anywhere",
            where=where,
            remedy="put the file itself there",
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return UsageError("there is no such dataset folder", where=where)
    if error.errno == errno.EIO:
        return DamagedError(f"it cannot be read: {error.strerror}", where=where)
    return ResourceError(f"it cannot be opened: {error.strerror}", where=where)


def _look(descriptor: int, where: Path) -> dict[str, os.stat_result]:
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
            raise UnsafeError(
                "this is a symbolic link, which could lead anywhere",
                where=where / printable(name),
                remedy="put the file itself there",
            )
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UnsafeError(
                "this is neither a regular file nor a folder", where=where / printable(name)
            )
    return entries


def _read_small(parent: int, name: str, where: Path, limit: int) -> bytes:
    descriptor = _open_file(parent, name, where)
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


def _read_listed(
    parent: int, name: str, entries: Mapping[str, os.stat_result], where: Path, limit: int
) -> bytes:
    """Read a small file of the folder that its manifest lists."""
    if name not in entries or not stat.S_ISREG(entries[name].st_mode):
        raise DamagedError("the file is missing", where=where)
    return _read_small(parent, name, where, limit)


def _hash(descriptor: int, where: Path) -> str:
    try:
        with os.fdopen(descriptor, "rb", buffering=0, closefd=False) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _os_error(error, where) from error


# ---------------------------------------------------------------------------- manifest


def _read_manifest(root: int, where: Path) -> dict[str, Any]:
    raw = _read_small(root, MANIFEST_FILE, where, MAX_MANIFEST_BYTES)
    return parse_manifest(raw, where)


_CHANGED: Final = "get the dataset again; without its manifest.json it could be read unverified"


def _mismatches(
    manifest: Mapping[str, Any], sizes: Mapping[str, int], hashes: Mapping[str, str], folder: Path
) -> dict[str, DamagedError]:
    """Return what is wrong with each file that is not the one listed, by name."""
    wrong = {}
    for name, size in sizes.items():
        listed = manifest["files"][name]
        if size != listed["size"]:
            problem = f"it has {size:,} bytes, but its manifest says {listed['size']:,}"
        elif hashes[name] != listed["sha256"]:
            problem = f"its sha256 is {hashes[name]}, but its manifest says {listed['sha256']}"
        else:
            continue
        wrong[name] = DamagedError(problem, where=folder / name, remedy=_CHANGED)
    return wrong


def _check_card(
    manifest: Mapping[str, Any], root: int, entries: Mapping[str, os.stat_result], folder: Path
) -> None:
    where = folder / CARD_FILE
    problem = None
    if CARD_FILE not in entries or not stat.S_ISREG(entries[CARD_FILE].st_mode):
        problem = "the dataset card is missing"
    elif entries[CARD_FILE].st_size != manifest["card"]["size"]:
        problem = "the dataset card was edited after the dataset was made"
    else:
        empty = entries[CARD_FILE].st_size == 0
        card = b"" if empty else _read_small(root, CARD_FILE, where, MAX_CARD_BYTES)
        if hashlib.sha256(card).hexdigest() != manifest["card"]["sha256"]:
            problem = "the dataset card was edited after the dataset was made"
    if problem is not None:
        warnings.warn(f"{where}: {problem}; the data are unchanged", CardWarning, stacklevel=4)


# ---------------------------------------------------------------------------- metadata


def parse_metadata(data: bytes, where: str | os.PathLike[str]) -> dict[str, Any]:
    """Read Minari's ``metadata.json`` strictly.

    Raises:
        DamagedError: It is malformed.
        UnsafeError: A space is missing: stock Minari would run code that the file names.
        IncompatibleError: The data are not in HDF5.
    """
    metadata = parse_json(data, where, max_bytes=MAX_METADATA_BYTES)
    if not isinstance(metadata, dict):
        raise DamagedError("it holds no JSON object", where=where)
    for key in ("observation_space", "action_space"):
        if metadata.get(key) is None:
            raise UnsafeError(
                f"it has no {key}; to find one, Minari would build the environment that the "
                "file names, which runs code",
                where=where,
                remedy="never open this folder with Minari; ask its author for the spaces",
            )
    data_format = metadata.get("data_format")
    if data_format != "hdf5":
        raise IncompatibleError(
            f"its data_format is {printable(str(data_format))[:40]!r}; only 'hdf5' is read",
            where=where,
        )
    for key in ("total_episodes", "total_steps"):
        value = metadata.get(key)
        if type(value) is not int or not 0 <= value < 2**62:
            raise DamagedError(f"its {key} is no non-negative integer", where=where)
    for key in ("env_spec", "eval_env_spec"):
        text = metadata.get(key)
        if text is None:
            continue
        if not isinstance(text, str):
            raise DamagedError(f"its {key} is no text", where=where)
        if not isinstance(
            parse_json(text, f"{os.fspath(where)}: {key}", allow_infinity=True), dict
        ):
            raise DamagedError(f"its {key} holds no JSON object", where=where)
    return metadata


def metadata_spaces(
    metadata: Mapping[str, Any], where: str | os.PathLike[str]
) -> tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]:
    """Return the observation and action space that the metadata declare.

    Raises:
        DamagedError: One is malformed.
        IncompatibleError: One is of a kind that is not supported.
    """
    place = os.fspath(where)
    return check_space_kinds(
        parse_space(metadata["observation_space"], f"{place}: observation_space"),
        parse_space(metadata["action_space"], f"{place}: action_space"),
        place,
    )


def check_space_kinds(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], place: str
) -> tuple[gym.spaces.Box, gym.spaces.Box | gym.spaces.Discrete]:
    """Return the spaces of a file when datasets can hold them.

    Raises:
        IncompatibleError: One is of a kind that is not supported.
    """
    try:
        return check_spaces(observation_space, action_space)
    except UsageError as error:
        raise IncompatibleError(error.what, where=place, remedy=error.remedy) from error
