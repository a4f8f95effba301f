"""Bundles: critics, models, policies and runs in one folder, with a card and a manifest.

A bundle holds parts, each a file or a folder of files under its own name, ``README.md``, and
``manifest.json`` of the same form as a dataset's. Which kinds of parts there are, and how each is
checked, those know who make them: see :mod:`pbvf_datasets.inspect.bundle`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pbvf_datasets.format.manifest import (
    check_entries,
    file_entry,
    parse_sealed,
    read_plain,
    seal,
    stated_format,
    tool_version,
)
from pbvf_datasets.format.schema import CARD_FILE, MANIFEST_FILE, SIGNATURE_FILE
from pbvf_offline.errors import DamagedError, PbvfError, UnsafeError, printable
from pbvf_offline.io.work_folder import Layout

FORMAT: Final = "pbvf-bundle"
SINCE: Final = 2
"""The format version that bundles came with."""
MAX_FILES: Final = 4_096
"""A bundle holds no more files."""
_COMPONENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_OWN: Final = frozenset({MANIFEST_FILE, CARD_FILE, SIGNATURE_FILE, "SHA256SUMS"})


@dataclass(frozen=True)
class Part:
    """One thing in a bundle.

    Attributes:
        name: Its file or folder.
        kind: What it is, such as ``critic`` or ``run``.
    """

    name: str
    kind: str


def is_part_name(name: str) -> bool:
    """Return whether a part may have this name: plain ASCII, and none that a bundle uses itself."""
    return _COMPONENT.fullmatch(name) is not None and name not in _OWN


def is_bundle(folder: Path) -> bool:
    """Return whether a folder says that it is a bundle, be it damaged."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return False
    with contextlib.suppress(PbvfError, OSError):
        return stated_format(read_plain(path)) == FORMAT
    return False


def bundle_manifest(
    folder: Path,
    parts: Sequence[Part],
    files: Collection[str],
    *,
    license: str | None,
    authors: Sequence[str],
) -> dict[str, Any]:
    """Return the manifest of a bundle whose other files are all in place.

    Args:
        folder: The folder.
        parts: What is in it.
        files: The names of the parts' files, relative to the folder.
        license: Identifier of the licence, or None.
        authors: Names.
    """
    provenance = {
        "tool": tool_version(),
        "license": license,
        "authors": list(authors),
        "parts": [{"name": part.name, "kind": part.kind} for part in parts],
    }
    entries = {name: file_entry(folder / name) for name in files}
    return seal(folder, FORMAT, SINCE, entries, provenance)


def parse_bundle(data: bytes, where: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the bytes of a bundle's ``manifest.json`` strictly.

    Raises:
        UnsafeError: It lists a file outside the bundle's folder, or one of no part.
        DamagedError: It is malformed or its digest does not fit.
        IncompatibleError: A newer version of the format wrote it.
    """
    manifest = parse_sealed(data, where, FORMAT)
    check_entries(manifest, where)
    provenance = manifest["provenance"]
    kinds = {"tool": str, "license": str | None, "authors": list, "parts": list}
    if (
        not isinstance(provenance, dict)
        or set(provenance) != set(kinds)
        or not all(isinstance(provenance[key], kind) for key, kind in kinds.items())
        or not all(isinstance(name, str) for name in provenance["authors"])
    ):
        raise DamagedError("the bundle's provenance is malformed", where=where)
    for part in provenance["parts"]:
        if not isinstance(part, dict) or {key: type(part[key]) for key in part} != {
            "name": str,
            "kind": str,
        }:
            raise DamagedError("an entry of the bundle's parts is malformed", where=where)
    _check_names(manifest, where)
    return manifest


def _check_names(manifest: Mapping[str, Any], where: str | os.PathLike[str]) -> None:
    """Check that each file has a plain name and belongs to one part, and that no part is empty."""
    parts, files = parts_of(manifest), manifest["files"]
    names = [part.name for part in parts]
    if not names or len(set(names)) != len(names) or not all(map(is_part_name, names)):
        raise DamagedError("the names of the bundle's parts are malformed", where=where)
    if len(files) > MAX_FILES:
        raise UnsafeError(f"it lists more than {MAX_FILES:,} files", where=where)
    for name in files:
        path = PurePosixPath(name)
        above = {str(parent) for parent in path.parents}
        plain = all(_COMPONENT.fullmatch(one) for one in name.split("/"))
        if not plain or path.parts[0] not in names or above & set(files):
            raise UnsafeError(
                f"it lists {printable(name)!r}, which is no file of the bundle's parts", where=where
            )
    missing = next((name for name in names if not files_of(manifest, name)), None)
    if missing is not None:
        raise DamagedError(f"it lists no file of {missing}", where=where)


def parts_of(manifest: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return what is in a bundle, in the order in which it was given."""
    return tuple(Part(**part) for part in manifest["provenance"]["parts"])


def files_of(manifest: Mapping[str, Any], part: str) -> list[str]:
    """Return the files of a part, relative to it; ``["."]`` where it is one file itself."""
    whole = PurePosixPath(part)
    paths = [PurePosixPath(name) for name in manifest["files"]]
    return [str(path.relative_to(whole)) for path in paths if path.is_relative_to(whole)]


def bundle_layout(folder: Path) -> Layout:
    """Return what the bundle in a folder holds, so that another one may replace it."""
    names: list[str] = []
    with contextlib.suppress(PbvfError, OSError):
        path = folder / MANIFEST_FILE
        names += parse_bundle(read_plain(path), path)["files"]
    own = (MANIFEST_FILE, CARD_FILE, SIGNATURE_FILE)
    return Layout((*own, *names), marks=(MANIFEST_FILE,))


def bundle_name(manifest: Mapping[str, Any]) -> str:
    """Return what to call a bundle: its first part, without an ending."""
    return parts_of(manifest)[0].name.partition(".")[0]
