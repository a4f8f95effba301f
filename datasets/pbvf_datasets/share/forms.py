"""What can be shared: datasets, and bundles of everything else.

Transfers and archives move files under names. What the files are, where they go and what they have
to pass is the matter of a form, which the manifest names. Bundles hold things of packages that this
one does not know, so whoever shares them says how they are checked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from pbvf_datasets.format import bundle
from pbvf_datasets.format.manifest import parse_manifest, read_plain, stated_format
from pbvf_datasets.format.names import check_dataset_id, new_dataset_path
from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    DATA_FILE,
    DATASET_FILES,
    MANIFEST_FILE,
    METADATA_FILE,
)
from pbvf_datasets.format.schema import FORMAT as DATASET
from pbvf_datasets.inspect.bundle import (
    PartKinds,
    check_parts,
    open_bundle,
    verify_bundle,
    verify_parts,
)
from pbvf_datasets.inspect.findings import Verification
from pbvf_datasets.inspect.verify_dataset import verify_dataset
from pbvf_datasets.read.metadata import MAX_METADATA_BYTES, parse_metadata
from pbvf_datasets.read.untrusted import MAX_CROISSANT_BYTES, open_folder
from pbvf_offline.errors import PbvfError, UnsafeError, UsageError
from pbvf_offline.io.reading import MAX_FILE, open_regular
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.io.tensor_file import read_header
from pbvf_offline.io.work_folder import Layout

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""

MAX_DATA_BYTES: Final = 2**42
_LIMITS: Final = {
    DATA_FILE: MAX_DATA_BYTES,
    METADATA_FILE: MAX_METADATA_BYTES,
    CROISSANT_FILE: MAX_CROISSANT_BYTES,
}
_JSON: Final = (".json", ".jsonl")


class Form(Protocol):
    """One form of what is shared."""

    what: ClassVar[str]
    """What to call such a thing."""
    license_remedy: ClassVar[str]
    """How to give one a licence."""

    def parse(self, data: bytes, where: str) -> dict[str, Any]:
        """Read the bytes of ``manifest.json`` strictly.

        Raises:
            DamagedError: It is malformed or its digest does not fit.
            UnsafeError: It lists files that may not be there.
            IncompatibleError: A newer version of the format wrote it.
        """

    def limit(self, name: str) -> int:
        """Return how many bytes a file may have that the manifest lists."""

    def named(self, manifest: Mapping[str, Any], read: Callable[[str], bytes]) -> object:
        """Return how it calls itself.

        Args:
            manifest: The manifest.
            read: Returns the bytes of a small file of it.
        """

    def layout(self, path: Path) -> Layout:
        """Return what such a thing at a path holds, so that another one may replace it."""

    def place(self, given: str | None, own: object, where: Path) -> tuple[str, Path]:
        """Return what to call it here and where it goes.

        Args:
            given: What the user calls it, or None.
            own: How it calls itself.
            where: What it comes from, for messages.

        Raises:
            UsageError: The name is malformed, or there is none.
        """

    def digest(self, path: Path) -> str:
        """Return the manifest's digest of one that is at a path, every byte of it.

        Raises:
            PbvfError: It is not there, or not whole.
        """

    def check(self, path: Path) -> tuple[str, object]:
        """Check one that is to be sent, before all of it is verified; return digest and own name.

        Raises:
            DamagedError: It is not whole.
            UnsafeError: It could run code, read other files or exhaust the machine.
            IncompatibleError: It is of another format version.
        """

    def admit(self, path: Path) -> None:
        """Check one from elsewhere before it gets its name.

        Raises:
            DamagedError: It is not whole.
            UnsafeError: It could run code, read other files or exhaust the machine.
            IncompatibleError: It is of another format version.
        """

    def verify(self, path: Path, progress: Progress | None) -> Verification:
        """Check all of it, as ``verify`` does."""

    def texts(self, path: Path, files: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield the files that hold words, and of those that are not all text their words."""


Forms = Mapping[str, Form]
"""By the format that the manifest names."""


@dataclass(frozen=True)
class DatasetForm:
    """Datasets.

    Attributes:
        root: Their folder; Minari's when None.
    """

    root: Path | None = None
    format: ClassVar[str] = DATASET
    what: ClassVar[str] = "dataset"
    license_remedy: ClassVar[str] = "give it one, such as 'pbvf dataset set {} --license CC-BY-4.0'"

    def parse(self, data: bytes, where: str) -> dict[str, Any]:
        """See :class:`Form`."""
        return parse_manifest(data, where)

    def limit(self, name: str) -> int:
        """See :class:`Form`."""
        return _LIMITS[name]

    def named(self, manifest: Mapping[str, Any], read: Callable[[str], bytes]) -> object:
        """See :class:`Form`."""
        del manifest
        return parse_metadata(read(METADATA_FILE), METADATA_FILE).get("dataset_id")

    def layout(self, path: Path) -> Layout:
        """See :class:`Form`."""
        del path
        return DATASET_FILES

    def place(self, given: str | None, own: object, where: Path) -> tuple[str, Path]:
        """See :class:`Form`."""
        name = given
        if name is None and isinstance(own, str):
            with contextlib.suppress(UsageError):
                check_dataset_id(own)
                name = own
        if name is None:
            raise UsageError(
                "the dataset in it does not say what it is called",
                where=where,
                remedy="give an id, such as lab/name-v0, after the file",
            )
        return name, new_dataset_path(name, self.root)

    def digest(self, path: Path) -> str:
        """See :class:`Form`."""
        with open_folder(path, require_manifest=True, warn=False) as folder:
            return folder.digest

    def check(self, path: Path) -> tuple[str, object]:
        """See :class:`Form`."""
        with open_folder(path, require_manifest=True, warn=False) as folder:
            folder.open_checked()
            return folder.digest, folder.metadata.get("dataset_id")

    def admit(self, path: Path) -> None:
        """See :class:`Form`."""
        self.check(path)

    def verify(self, path: Path, progress: Progress | None) -> Verification:
        """See :class:`Form`."""
        return verify_dataset(path, progress=progress)

    def texts(self, path: Path, files: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """See :class:`Form`."""
        del path
        yield from ((name, None) for name in (METADATA_FILE, CROISSANT_FILE) if name in files)


@dataclass(frozen=True)
class BundleForm:
    """Bundles.

    Attributes:
        kinds: How each kind of part is checked.
    """

    kinds: PartKinds
    what: ClassVar[str] = "bundle"
    license_remedy: ClassVar[str] = "choose one, such as CC-BY-4.0, and give it as --license"

    def parse(self, data: bytes, where: str) -> dict[str, Any]:
        """See :class:`Form`."""
        manifest = bundle.parse_bundle(data, where)
        check_parts(manifest, self.kinds, where)
        return manifest

    def limit(self, name: str) -> int:
        """See :class:`Form`."""
        del name
        return MAX_FILE

    def named(self, manifest: Mapping[str, Any], read: Callable[[str], bytes]) -> object:
        """See :class:`Form`."""
        del read
        return bundle.bundle_name(manifest)

    def layout(self, path: Path) -> Layout:
        """See :class:`Form`."""
        return bundle.bundle_layout(path)

    def place(self, given: str | None, own: object, where: Path) -> tuple[str, Path]:
        """See :class:`Form`."""
        del where
        folder = Path(str(own) if given is None else given)
        if folder.name in ("", ".."):
            raise UsageError(f"{given!r} names no folder", remedy="name a new one")
        return folder.name, folder

    def digest(self, path: Path) -> str:
        """See :class:`Form`."""
        digest: str = open_bundle(path, self.kinds)["digest"]
        return digest

    def check(self, path: Path) -> tuple[str, object]:
        """See :class:`Form`."""
        manifest = open_bundle(path, self.kinds)
        return manifest["digest"], bundle.bundle_name(manifest)

    def admit(self, path: Path) -> None:
        """See :class:`Form`."""
        for part in verify_parts(path, open_bundle(path, self.kinds), self.kinds):
            if part.error is not None:
                raise part.error

    def verify(self, path: Path, progress: Progress | None) -> Verification:
        """See :class:`Form`."""
        return verify_bundle(path, self.kinds, progress=progress)

    def texts(self, path: Path, files: Collection[str]) -> Iterator[tuple[str, bytes | None]]:
        """See :class:`Form`."""
        for name in files:
            if name == CARD_FILE:
                continue
            with open_regular(path / name, follow=False) as file:
                if name.endswith(_JSON) or file.read(9)[8:] != b"{":
                    yield name, None
                    continue
                file.seek(0)
                words = read_header(file, path / name).get("__metadata__")
            yield f"{name}: header.json", canonical_json(words)


def form_of(manifest: bytes, forms: Forms, where: object) -> Form:
    """Return the form of what has this manifest; that of datasets where it states none.

    Raises:
        UsageError: It is a bundle, and only datasets are wanted.
    """
    stated = stated_format(manifest)
    if stated == bundle.FORMAT and stated not in forms:
        raise UsageError(
            "is a bundle and no dataset",
            where=str(where),
            remedy="use 'pbvf push', 'pull', 'pack' and 'unpack', which take both",
        )
    return forms.get(stated or DATASET, forms[DATASET])


def form_at(folder: Path, forms: Forms) -> Form:
    """Return the form of what is in a folder; errors are those of :func:`form_of`."""
    try:
        manifest = read_plain(folder / MANIFEST_FILE)
    except (PbvfError, OSError):  # what is wrong with it, its check says
        return forms[DATASET]
    return form_of(manifest, forms, folder)


def listed_files(form: Form, manifest: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Return size and sha256 of each file that must arrive; the card, which may be edited, not.

    Raises:
        UnsafeError: A size is over what such a file may have.
    """
    files: dict[str, dict[str, Any]] = dict(sorted(manifest["files"].items()))
    for name, entry in files.items():
        limit = form.limit(name)
        if not 0 <= entry["size"] <= limit:
            raise UnsafeError(
                f"{name} is to have {entry['size']:,} bytes; {limit:,} are the limit", where=where
            )
    return files


def only_datasets(root: Path | None) -> Forms:
    """Return the forms where nothing but datasets in this folder is wanted."""
    return {DATASET: DatasetForm(root)}
