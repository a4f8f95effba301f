"""The manifest: size and sha256 of each file, where the data came from, a closing digest.

The manifest holds no clock time, host, user, process id or absolute path, so equal
settings give equal bytes. Its own digest is the dataset's digest.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import stat
import sys
from collections.abc import Collection, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from pbvf_datasets.format.schema import (
    CARD_FILE,
    CROISSANT_FILE,
    DATA_FILE,
    FORMAT,
    MANIFEST_FILE,
    METADATA_FILE,
    dataset_version,
)
from pbvf_offline import __version__
from pbvf_offline.envs.reference import EnvReference
from pbvf_offline.errors import DamagedError, PbvfError, UnsafeError, UsageError, printable
from pbvf_offline.io.formats import check_version
from pbvf_offline.io.reading import link_error, open_regular
from pbvf_offline.io.strict_json import canonical_json, parse_json

MAX_MANIFEST_BYTES: Final = 16 * 2**20

_KEYS = {"format", "version", "files", "card", "provenance", "digest"}
_PROVENANCE: Mapping[str, tuple[type, ...]] = {
    "tool": (str,),
    "settings": (dict,),
    "environment": (dict, type(None)),
    "spec": (dict,),
    "versions": (dict,),
    "seed": (int, type(None)),
    "license": (str, type(None)),
    "authors": (list,),
    "warmup_steps": (int,),
    "stats": (dict,),
}
_STATS: Mapping[str, tuple[type, ...]] = {
    "episodes": (int,),
    "steps": (int,),
    "policies": (int,),
    "cut": (int,),
    "return": (dict, type(None)),
}
_MORE: Mapping[str, tuple[type, ...]] = {
    "command": (str, type(None)),
    "repeatable": (bool,),  # since version 2
}
_KNOWN_AS: Mapping[str, tuple[type, ...]] = {
    "digest": (str,),
    "version": (int,),
    "files": (dict,),
    "card": (dict,),
    "license": (str, type(None)),
    "authors": (list,),
}
MAX_KNOWN_AS: Final = 20
"""How many earlier digests a manifest holds: each costs a serialisation of it at every reading."""
_MORE_STATS: Mapping[str, tuple[type, ...]] = {
    "normalisers": (int,),
    "terminated": (int,),
    "length": (dict,),
}
_MAX_COUNT: Final = 2**62
_SOURCE: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "digest": (str,),
    "verified": (bool,),
    "episodes": (int,),
    "steps": (int,),
    "from": (list,),
    "provenance": (dict, type(None)),
}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def file_entry(path: Path) -> dict[str, Any]:
    """Return ``{"size", "sha256"}`` of a file.

    Raises:
        UnsafeError: It is a link, something else than a regular file, or nearly all holes.
        OSError: It cannot be read.
    """
    with _open_plain(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": os.fstat(file.fileno()).st_size, "sha256": digest}


def read_plain(path: Path, limit: int = MAX_MANIFEST_BYTES) -> bytes:
    """Read a small file of a dataset or of a work folder.

    Raises:
        UnsafeError: It is a link, something else than a regular file, or too long.
        OSError: It cannot be read.
    """
    with _open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UnsafeError(f"it has {size:,} bytes; at most {limit:,} are read", where=path)
        return file.read(size + 1)


def _open_plain(path: Path) -> BufferedReader:
    try:
        return open_regular(path, follow=False)
    except UsageError as error:
        raise UnsafeError("this is not a regular file", where=path) from error


def build_manifest(
    folder: Path, provenance: Mapping[str, Any], *, known: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the manifest of a dataset folder whose other files are all in place.

    Args:
        folder: The folder.
        provenance: Where the data came from.
        known: :func:`file_entry` of files that need not be read again, by name.
    """
    names = [DATA_FILE, METADATA_FILE]
    if (folder / CROISSANT_FILE).is_file():
        names.append(CROISSANT_FILE)
    known = known or {}
    files = {name: known.get(name) or file_entry(folder / name) for name in names}
    return seal(
        folder, FORMAT, dataset_version(provenance), files, provenance, known.get(CARD_FILE)
    )


def manifest_digest(manifest: Mapping[str, Any]) -> str:
    """Return the sha256 of a manifest's canonical JSON without its ``digest`` entry."""
    body = {key: value for key, value in manifest.items() if key != "digest"}
    return hashlib.sha256(canonical_json(body)).hexdigest()


def known_as(manifest: Mapping[str, Any]) -> list[str]:
    """Return the digests that a dataset had before its rights were set anew, the first one first.

    Args:
        manifest: As :func:`parse_manifest` returns it, which has checked them.
    """
    return [was["digest"] for was in manifest["provenance"].get("known_as", ())]


def what_was(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be kept of a manifest whose dataset gets other rights.

    That is its digest, and all that went into it and does not stay: from that and from what stays,
    the data file's SHA-256 above all, the digest can be computed again.
    """
    provenance = manifest["provenance"]
    return {
        "digest": manifest["digest"],
        "version": manifest["version"],
        "files": {name: entry for name, entry in manifest["files"].items() if name != DATA_FILE},
        "card": manifest["card"],
        "license": provenance["license"],
        "authors": provenance["authors"],
    }


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``manifest.json``."""
    return canonical_json(dict(manifest)) + b"\n"


def parse_manifest(data: bytes, where: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the bytes of ``manifest.json`` strictly.

    Args:
        data: The file's bytes.
        where: The file, for messages.

    Returns:
        The manifest; every key this module writes is there with the right type.

    Raises:
        UnsafeError: It lists a file outside its folder.
        DamagedError: It is malformed or its digest does not fit.
        IncompatibleError: A newer version of the format wrote it.
    """
    manifest = parse_sealed(data, where, FORMAT)
    # Datasets made before there was a croissant.json have none.
    if set(manifest["files"]) - {CROISSANT_FILE} != {DATA_FILE, METADATA_FILE}:
        raise DamagedError(
            f"the manifest must list the files {DATA_FILE} and {METADATA_FILE}, may list "
            f"{CROISSANT_FILE}, and no other",
            where=where,
        )
    check_entries(manifest, where)
    _check_provenance(manifest["provenance"], where)
    _check_known_as(manifest, where)
    return manifest


def parse_sealed(data: bytes, where: str | os.PathLike[str], form: str) -> dict[str, Any]:
    """Read what the manifests of all formats have in common, strictly.

    Args:
        data: The file's bytes.
        where: The file, for messages.
        form: The format that it must state.

    Returns:
        The manifest, whose digest fits; names, entries and provenance are for the caller to check.

    Raises:
        UnsafeError: It lists a file outside its folder.
        DamagedError: It is malformed or its digest does not fit.
        IncompatibleError: A newer version of the format wrote it.
    """
    manifest = parse_json(data, where, max_bytes=MAX_MANIFEST_BYTES)
    _refuse_escapes(manifest, where)
    if not isinstance(manifest, dict) or manifest.get("format") != form:
        raise DamagedError(f"it is not a {form} manifest", where=where)
    check_version(manifest.get("version"), where)
    if set(manifest) != _KEYS:
        raise DamagedError(
            f"the manifest has the keys {sorted(manifest)}; {sorted(_KEYS)} are expected",
            where=where,
        )
    if manifest["digest"] != manifest_digest(manifest):
        raise DamagedError("the manifest does not fit its own digest", where=where)
    if not isinstance(manifest["files"], dict):
        raise DamagedError("the manifest must list the files by name", where=where)
    return manifest


def stated_format(data: bytes) -> str | None:
    """Return the format that the bytes of a ``manifest.json`` state, be they damaged."""
    try:
        value = parse_json(data, MANIFEST_FILE, max_bytes=MAX_MANIFEST_BYTES)
    except PbvfError:
        found = re.search(rb'"format":"([a-z-]{1,40})"', data)
        return None if found is None else found[1].decode()
    stated = value.get("format") if isinstance(value, dict) else None
    return stated if isinstance(stated, str) else None


def check_entries(manifest: Mapping[str, Any], where: str | os.PathLike[str]) -> None:
    """Check what a manifest says of each file: its size and its sha256.

    Raises:
        DamagedError: An entry is malformed.
    """
    for name, entry in (*manifest["files"].items(), (CARD_FILE, manifest["card"])):
        if (
            not isinstance(entry, dict)
            or set(entry) != {"size", "sha256"}
            or type(entry["size"]) is not int
            or not isinstance(entry["sha256"], str)
            or _SHA256.fullmatch(entry["sha256"]) is None
        ):
            raise DamagedError(
                f"the manifest's entry for {printable(name)} is malformed", where=where
            )


def seal(
    folder: Path,
    form: str,
    version: int,
    files: Mapping[str, Mapping[str, Any]],
    provenance: Mapping[str, Any],
    card: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a manifest over these files and the card, with its closing digest.

    Args:
        folder: Where the card is.
        form: The format.
        version: Its version.
        files: :func:`file_entry` of each file but the card, by name.
        provenance: Where it came from.
        card: The entry of the card, if it is known.
    """
    body = {
        "format": form,
        "version": version,
        "files": dict(files),
        "card": card or file_entry(folder / CARD_FILE),
        "provenance": dict(provenance),
    }
    return {**body, "digest": manifest_digest(body)}


def _refuse_escapes(manifest: object, where: str | os.PathLike[str]) -> None:
    files = manifest.get("files") if isinstance(manifest, dict) else None
    for name in files if isinstance(files, dict) else ():
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "~")) or ".." in parts or ":" in parts[0] or "\0" in name:
            raise UnsafeError(
                f"it lists {printable(name)!r}, which is outside its folder", where=where
            )


def _check_provenance(value: object, where: str | os.PathLike[str]) -> None:
    provenance = _typed(value, _PROVENANCE, "provenance", where, (*_MORE, "known_as", "sources"))
    _check_origin(provenance, where)
    sources = provenance.get("sources", [])
    if not isinstance(sources, list):
        raise DamagedError("provenance.sources is no list", where=where)
    for source in sources:
        entry = _typed(source, _SOURCE, "provenance.sources", where)
        if any(
            not isinstance(digest, str) or _SHA256.fullmatch(digest) is None
            for digest in (entry["digest"], *entry["from"])
        ):
            raise DamagedError("provenance.sources holds a malformed digest", where=where)
        if entry["provenance"] is not None:
            table = {key: kinds for key, kinds in _PROVENANCE.items() if key != "spec"}
            name = "provenance.sources.provenance"
            inner = _typed(entry["provenance"], table, name, where, _MORE)
            _check_origin(inner, where)


def _check_known_as(manifest: Mapping[str, Any], where: str | os.PathLike[str]) -> None:
    """Compute the earlier digests again: anyone could claim that of a dataset with a critic."""
    provenance = manifest["provenance"]
    earlier = provenance.get("known_as", [])
    if not isinstance(earlier, list) or len(earlier) > MAX_KNOWN_AS:
        raise DamagedError(
            f"provenance.known_as is no list of at most {MAX_KNOWN_AS} digests", where=where
        )
    for k, entry in enumerate(earlier):
        was = _typed(entry, _KNOWN_AS, "provenance.known_as", where)
        before = {**provenance, "license": was["license"], "authors": was["authors"]}
        before["known_as"] = earlier[:k]
        if not k:
            del before["known_as"]
        body = {
            **manifest,
            "version": was["version"],
            "files": {**was["files"], DATA_FILE: manifest["files"][DATA_FILE]},
            "card": was["card"],
            "provenance": before,
        }
        if was["digest"] != manifest_digest(body):
            raise DamagedError(
                "provenance.known_as names a digest that these data never had", where=where
            )


def _check_origin(provenance: dict[str, Any], where: str | os.PathLike[str]) -> None:
    """Check what is inside a provenance, but for what it says of its sources."""
    if provenance["environment"] is not None:
        EnvReference.from_dict(
            provenance["environment"], f"{os.fspath(where)}: provenance.environment"
        )
    if any(not isinstance(name, str) for name in provenance["authors"]):
        raise DamagedError("provenance.authors is malformed", where=where)
    for name, kinds in _MORE.items():
        if name in provenance and type(provenance[name]) not in kinds:
            raise DamagedError(f"provenance.{name} is malformed", where=where)
    stats = provenance["stats"]
    table = {**_STATS, **{name: kinds for name, kinds in _MORE_STATS.items() if name in stats}}
    for name, value in _typed(stats, table, "provenance.stats", where).items():
        if type(value) is int:
            good = 0 <= value <= _MAX_COUNT
        else:
            good = value is None or _is_summary(value)
        if not good:
            raise DamagedError(f"provenance.stats.{name} is malformed", where=where)


def _is_summary(value: Mapping[str, Any]) -> bool:
    """Whether these are a mean, a min and a max that floats can hold."""
    return set(value) == {"mean", "min", "max"} and all(
        type(number) in (int, float) and abs(number) <= sys.float_info.max
        for number in value.values()
    )


def _typed(
    value: object,
    table: Mapping[str, tuple[type, ...]],
    name: str,
    where: str | os.PathLike[str],
    more: Collection[str] = (),
) -> dict[str, Any]:
    """Return an object that has all keys of a table, of its types, and perhaps some more."""
    if not isinstance(value, dict) or not set(table) <= set(value):
        raise DamagedError(f"{name} lacks some of the keys {sorted(table)}", where=where)
    unknown = sorted(set(value) - set(table) - set(more))
    if unknown:
        raise DamagedError(
            f"{name} has the field {printable(unknown[0])!r}, which does not belong there",
            where=where,
        )
    for key, kinds in table.items():
        if type(value[key]) not in kinds:
            raise DamagedError(f"{name}.{key} is a {type(value[key]).__name__}", where=where)
    return value


def mismatch(
    listed: Mapping[str, Any],
    size: int,
    sha256: str | None,
    where: Path,
    remedy: str = "get the dataset again; without its manifest.json it could be read unverified",
) -> DamagedError | None:
    """Return what is wrong with a file that is not the one that a manifest lists, or None.

    Args:
        listed: The manifest's entry.
        size: Bytes of the file.
        sha256: Its digest; None when it was not computed, and the size alone is compared.
        where: The file, for the message.
        remedy: What to do.
    """
    if size != listed["size"]:
        what = f"it has {size:,} bytes, but its manifest says {listed['size']:,}"
    elif sha256 is not None and sha256 != listed["sha256"]:
        what = f"its sha256 is {sha256}, but its manifest says {listed['sha256']}"
    else:
        return None
    return DamagedError(what, where=where, remedy=remedy)


def verify_files(folder: Path, manifest: Mapping[str, Any], *remedy: str) -> None:
    """Compare the files of a folder with its manifest; the card may be edited or missing.

    Args:
        folder: The folder.
        manifest: What it must hold.
        remedy: What to do where it does not, in place of what :func:`mismatch` says.

    Raises:
        DamagedError: A file is missing or differs.
        UnsafeError: A file, the card included, is a link or no regular file.
    """
    for name, listed in manifest["files"].items():
        path = folder / name
        for above in Path(name).parents[:-1]:
            if (folder / above).is_symlink():
                raise link_error(folder / above)
        try:
            status = path.lstat()
            wrong = None
            if stat.S_ISREG(status.st_mode):
                wrong = mismatch(listed, status.st_size, None, path, *remedy)
            if wrong is None:
                found = file_entry(path)
                wrong = mismatch(listed, found["size"], found["sha256"], path, *remedy)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DamagedError("the file is missing", where=path) from error
        if wrong is not None:
            raise wrong
    with contextlib.suppress(FileNotFoundError):
        file_entry(folder / CARD_FILE)


def tool_version() -> str:
    """Return ``pbvf-offline VERSION`` as provenance names it."""
    return f"pbvf-offline {__version__}"


def versions() -> dict[str, str]:
    """Return the versions of what the bytes of a dataset depend on."""
    found = {"python": platform.python_version()}
    for package in ("gymnasium", "h5py", "minari", "mujoco", "numpy"):
        version = _version(package)
        if version is not None:
            found[package] = version
    return found


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
