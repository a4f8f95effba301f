"""Check bundles: every file by the manifest, and every part as what it says it is."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pbvf_datasets.format.bundle import Part, bundle_layout, files_of, parse_bundle, parts_of
from pbvf_datasets.format.manifest import file_entry, read_plain, verify_files
from pbvf_datasets.format.schema import CARD_FILE, MANIFEST_FILE
from pbvf_datasets.inspect.findings import FOUND, Findings, Verification, warn_of_unlisted
from pbvf_datasets.inspect.verify_file import GRAPH
from pbvf_offline.errors import DamagedError, IncompatibleError, UnsafeError, UsageError
from pbvf_offline.io.durable import path_exists, read_error
from pbvf_offline.io.reading import link_error

Progress = Callable[[int, int], None]

_AGAIN: Final = "get the bundle again"


@dataclass(frozen=True)
class PartKind:
    """One kind of part.

    Attributes:
        verify: Checks it; told of progress.
        files: The names of its files, relative to its folder; None for one file.
    """

    verify: Callable[[Path, Progress | None], Verification]
    files: re.Pattern[str] | None = None


PartKinds = Mapping[str, PartKind]


def check_parts(manifest: Mapping[str, Any], kinds: PartKinds, where: str) -> None:
    """Check that a bundle holds known kinds of parts, and each part no file but its own.

    Raises:
        IncompatibleError: A part is of a kind that is not known here.
        UnsafeError: A file belongs to no part.
    """
    for part in parts_of(manifest):
        kind = kinds.get(part.kind)
        if kind is None:
            raise IncompatibleError(
                f"{part.name} is of a kind that this program does not know",
                where=where,
                remedy="upgrade pbvf-offline",
            )
        pattern = re.compile(re.escape(".")) if kind.files is None else kind.files
        for name in files_of(manifest, part.name):
            if pattern.fullmatch(name) is None:
                raise UnsafeError(
                    f"it lists {part.name}/{name}, which no {part.kind} holds", where=where
                )


def open_bundle(folder: Path, kinds: PartKinds | None = None) -> dict[str, Any]:
    """Return the manifest of a bundle whose files are those that it lists.

    Args:
        folder: The bundle.
        kinds: The kinds of parts that it may hold; any when None.

    Raises:
        DamagedError: It is malformed, or a file is missing or differs.
        UnsafeError: A file is a link or no regular file, or belongs to no part.
        IncompatibleError: It is of a newer format, or holds a part of an unknown kind.
        ResourceError: It cannot be read.
    """
    where = folder / MANIFEST_FILE
    try:
        manifest = parse_bundle(read_plain(where), where)
        if kinds is not None:
            check_parts(manifest, kinds, str(where))
        verify_files(folder, manifest, _AGAIN)
        _refuse_unlisted(folder, manifest)
    except OSError as error:
        found = read_error(error, where)
        if isinstance(found, UsageError):
            raise DamagedError("the file is missing", where=where) from error
        raise found from error
    return manifest


def _refuse_unlisted(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse links and devices, as in datasets, and in a part files that no digest vouches for.

    The check of the part would read those.
    """
    for path in sorted(folder.iterdir()):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise link_error(path)
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UnsafeError("this is neither a regular file nor a folder", where=path)
    for part in parts_of(manifest):
        for path in sorted((folder / part.name).rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name not in manifest["files"] and (path.is_symlink() or not path.is_dir()):
                raise DamagedError(
                    "the bundle's manifest does not list it",
                    where=path,
                    remedy=f"move it away, or share {part.name} anew by itself",
                )


def verify_parts(
    folder: Path, manifest: Mapping[str, Any], kinds: PartKinds, progress: Progress | None = None
) -> Iterator[Verification]:
    """Yield what became of the check of each part of an open bundle."""
    for part in parts_of(manifest):
        yield _verified(folder / part.name, part, kinds, progress)


def _verified(path: Path, part: Part, kinds: PartKinds, progress: Progress | None) -> Verification:
    try:
        found = kinds[part.kind].verify(path, progress)
    except UsageError as error:  # a part of something else, say
        if part.kind == GRAPH:  # which cannot be read without a package
            raise
        problem = DamagedError(error.what, where=error.where or path)
        return Verification(path, part.kind, "damaged", (problem,))
    if found.kind == part.kind or found.problems:
        return found
    wrong = DamagedError(f"is a {found.kind}, and the manifest says {part.kind}", where=path)
    return Verification(path, part.kind, "damaged", (wrong,))


def verify_bundle(
    folder: Path, kinds: PartKinds, *, progress: Progress | None = None
) -> Verification:
    """Check a bundle: every file by its digest, and every part as what it is.

    Args:
        folder: The bundle.
        kinds: How each kind of part is checked.
        progress: Told the steps checked of a run and the steps in all.

    Raises:
        ResourceError: A file cannot be read, or memory is short.
    """
    found, digest = Findings(), None
    warnings: list[str] = []
    counts: dict[str, int] = {}
    try:
        manifest = open_bundle(folder, kinds)
        digest = manifest["digest"]
        for part in verify_parts(folder, manifest, kinds, progress):
            for problem in part.problems:
                found.add(problem)
            warnings += part.warnings
        counts = {"parts": len(parts_of(manifest))}
        if not path_exists(folder / CARD_FILE):
            warnings.append(f"{folder / CARD_FILE}: the card is missing")
        elif file_entry(folder / CARD_FILE) != manifest["card"]:
            warnings.append(f"{folder / CARD_FILE}: the card was edited after the bundle was made")
        warnings += warn_of_unlisted(folder, bundle_layout(folder))
    except FOUND as error:
        found.add(error)
    return Verification(
        path=folder,
        kind="bundle",
        status=found.status(verified=True),
        problems=tuple(found.problems),
        warnings=tuple(warnings),
        manifest=True,
        digest=None if found.problems else digest,
        counts=counts,
    )
