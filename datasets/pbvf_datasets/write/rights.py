"""Set licence and authors of a dataset, and leave its data as they are.

The texts are written anew in a folder beside the dataset, into which the data file comes as a hard
link, and the two folders change places in one step. What was fitted to the data goes on: the
manifest keeps the digests that the dataset had before, and of what they were (``known_as``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbvf_datasets.format.card import card_text
from pbvf_datasets.format.croissant import croissant_bytes
from pbvf_datasets.format.identity import dataset_work
from pbvf_datasets.format.manifest import (
    MAX_KNOWN_AS,
    build_manifest,
    file_entry,
    known_as,
    manifest_bytes,
    what_was,
)
from pbvf_datasets.format.names import dataset_path, resolve_dataset
from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    DATA_FILE,
    FIELDS,
    MANIFEST_FILE,
    METADATA_FILE,
    SIGNATURE_FILE,
)
from pbvf_datasets.format.statistics import Tally
from pbvf_datasets.read.folder_episodes import folder_episodes
from pbvf_datasets.read.untrusted import CheckedFolder, open_folder
from pbvf_offline.errors import UsageError
from pbvf_offline.io.durable import path_exists, resource_errors, write_durably
from pbvf_offline.io.strict_json import canonical_json
from pbvf_offline.policies.spec import PolicySpec

_NEEDED = ("rewards", "terminations", "truncations", "infos/obs_mean", "infos/obs_std")


@dataclass(frozen=True)
class Rights:
    """What a dataset says of its rights now.

    Attributes:
        dataset: Its id.
        path: Its folder.
        license: Its licence, or None.
        authors: Names.
        digest: Of its manifest now.
        known_as: The digest by which what was fitted to the data names them.
        signature_removed: Whether there was a signature, of a manifest that is no more.
        card_kept: Whether the card had been edited, so that its text stays as it was.
        already_complete: Whether nothing had to be done.
    """

    dataset: str
    path: Path
    license: str | None
    authors: tuple[str, ...]
    digest: str
    known_as: str
    signature_removed: bool
    card_kept: bool
    already_complete: bool


def set_rights(
    dataset: str | os.PathLike[str],
    *,
    license: str | None = None,
    authors: Sequence[str] | None = None,
    root: Path | None = None,
) -> Rights:
    """Set a dataset's licence or authors, or both; what is None stays.

    A kill at any moment leaves the dataset as it was or as it is to be. Where the file system
    cannot exchange two folders in one step, the dataset is gone for the moment between two
    renames, and the next command that writes there, such as this one, brings it back.

    Args:
        dataset: Id or folder.
        license: Its licence.
        authors: Names, in the place of those before.
        root: Folder of datasets; Minari's when None.

    Raises:
        UsageError: There is no such dataset, it has no manifest, nothing is to be set, or they
            were set too often.
        DamagedError: It is damaged.
        UnsafeError: It could do harm.
        ConflictError: Another process writes it, or its folder holds other files.
        ResourceError: The disk or a permission refuses; the dataset is as it was.
    """
    if license is None and not authors:
        raise UsageError("there is nothing to set", remedy="give --license or --author")
    path = Path(os.path.abspath(_folder_of(dataset, root)))  # noqa: PTH100, keeps links
    work = dataset_work(path, "relicense")
    try:
        with resource_errors(path, lambda: "the dataset is as it was"):
            work.hold()
            work.clear()  # what a kill left
        with open_folder(path, warn=False) as folder:
            if folder.manifest is None:
                raise UsageError(
                    "it has no manifest.json, so it has no licence to set",
                    where=path,
                    remedy="write it anew with 'pbvf dataset merge', or with 'pbvf dataset tag' "
                    "where it names no policies, and give --license there",
                )
            old = folder.manifest["provenance"]
            changed: dict[str, Any] = {
                "license": old["license"] if license is None else license,
                "authors": list(authors) if authors else old["authors"],
            }
            same = all(old[name] == value for name, value in changed.items())
            digests = [*known_as(folder.manifest), folder.digest]
            card_kept = signed = False
            digest = folder.digest
            if not same:
                if len(digests) > MAX_KNOWN_AS:
                    raise UsageError(
                        f"licence and authors were set {MAX_KNOWN_AS} times already",
                        where=path,
                        remedy="write it anew with 'pbvf dataset merge'; what was fitted to it "
                        "names the old one",
                    )
                work.refuse_foreign()
                with resource_errors(path, lambda: "the dataset is as it was"):
                    card_kept = not _card_is_ours(folder)
                    signed = path_exists(path / SIGNATURE_FILE)
                    earlier = [*old.get("known_as", ()), what_was(folder.manifest)]
                    provenance = {**old, **changed, "known_as": earlier}
                    digest = _lay_out(work.build, folder, provenance, keep_card=card_kept)
                    work.swap()
        return Rights(
            dataset=folder.id,
            path=path,
            license=changed["license"],
            authors=tuple(changed["authors"]),
            digest=digest,
            known_as=digests[0],
            signature_removed=signed,
            card_kept=card_kept,
            already_complete=same,
        )
    finally:
        work.close()


def _folder_of(dataset: str | os.PathLike[str], root: Path | None) -> Path:
    """Return the folder of a dataset, also where it has lost its name between two renames."""
    try:
        return resolve_dataset(dataset, root)
    except UsageError:
        places = [Path(dataset).expanduser()]
        if isinstance(dataset, str):
            with contextlib.suppress(UsageError):  # it is no id
                places.insert(0, dataset_path(dataset, root))
        for path in places:
            if path.name and dataset_work(path, "relicense").replacing:
                return path  # whoever holds its work folder brings it back
        raise


def _card_is_ours(folder: CheckedFolder) -> bool:
    assert folder.manifest is not None  # looked at before
    card = folder.path / CARD_FILE
    return card.is_file() and file_entry(card) == folder.manifest["card"]


def _lay_out(
    build: Path, folder: CheckedFolder, provenance: dict[str, Any], *, keep_card: bool
) -> str:
    """Write the dataset with another provenance, and return its digest."""
    assert folder.manifest is not None  # looked at before
    tally = Tally()
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    for episode in folder_episodes(folder, fields=_NEEDED):
        episode.count_in(tally)
    (first,) = folder_episodes(folder, indices=[0])
    for field in FIELDS:
        if field.name in first.arrays:
            array = first.arrays[field.name]
            arrays[field.name] = (str(array.dtype), array.shape[1:])
    build.mkdir()
    (build / DATA_FILE).parent.mkdir()
    try:
        os.link(folder.data_file, build / DATA_FILE)
    except OSError:  # not every file system has them
        shutil.copyfile(folder.data_file, build / DATA_FILE)
    files = {DATA_FILE: folder.manifest["files"][DATA_FILE]}
    card = folder.path / CARD_FILE
    metadata = {**folder.metadata, "author": provenance["authors"]}
    if not provenance["authors"]:
        metadata.pop("author")
    write_durably(build / METADATA_FILE, canonical_json(metadata))
    files[METADATA_FILE] = file_entry(build / METADATA_FILE)
    known = dict(files)
    if not keep_card:
        text = card_text(
            folder.id,
            provenance,
            spec=PolicySpec.from_dict(provenance["spec"], folder.path / MANIFEST_FILE),
            returns=tally.returns,
            command=provenance.get("command"),
            data_sha256=files[DATA_FILE]["sha256"],
        )
        write_durably(build / CARD_FILE, text.encode("utf-8"), sync=False)
    else:
        known[CARD_FILE] = folder.manifest["card"]  # so that it counts as edited still
        if card.is_file():
            shutil.copyfile(card, build / CARD_FILE)
    described = croissant_bytes(folder.id, provenance, files=files, arrays=arrays)
    write_durably(build / CROISSANT_FILE, described, sync=False)
    manifest = build_manifest(build, provenance, known=known)
    write_durably(build / MANIFEST_FILE, manifest_bytes(manifest))
    digest: str = manifest["digest"]
    return digest
