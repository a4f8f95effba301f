"""Make a bundle of loose files and runs: a temporary folder with a card and a manifest.

It goes out as it would be received: what is sent is what was checked.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pbvf_datasets.format.bundle import Part, bundle_manifest, bundle_name, is_part_name
from pbvf_datasets.format.manifest import manifest_bytes
from pbvf_datasets.format.schema import CARD_FILE, MANIFEST_FILE
from pbvf_datasets.inspect.verify_file import verify_file
from pbvf_datasets.share.forms import DatasetForm
from pbvf_offline.errors import (
    IncompatibleError,
    PbvfError,
    ResourceError,
    UsageError,
    printable,
)
from pbvf_offline.io.durable import make_folders, read_error, resource_errors
from pbvf_offline.io.lock import locked, temporary_folder
from pbvf_offline.io.reading import open_regular
from pbvf_runs.folder import portable_files
from pbvf_runs.share.cards import bundle_card
from pbvf_runs.share.kinds import kind_of
from pbvf_runs.share.lineage import Thing, lineage, things

_OTHERS: Final = {
    "dataset": "share each dataset by itself",
    "bundle": "share each bundle by itself",
    "archive": "send the file as it is, or unpack it first",
    "signature": "it goes along with what it signs",
    "checkpoint": "share the folder of its run",
}
_OWN: Final = {"dataset": "; 'pbvf dataset set' gives a dataset another licence or authors"}


@contextlib.contextmanager
def outgoing(
    paths: Sequence[str | os.PathLike[str]],
    license: str | None,
    authors: Sequence[str],
    datasets: Sequence[str],
) -> Iterator[Path]:
    """Yield the folder of what is to be sent: a dataset or a bundle, made of the paths if need be.

    Errors inside that are about a file of a new bundle name the file that it was made from.
    """
    given = [os.fspath(path) for path in paths]
    if not given:
        raise UsageError("nothing was named that could be shared")
    kind, path = kind_of(given[0])
    if len(given) == 1 and kind in ("dataset", "bundle"):
        if license is not None or authors or datasets:
            raise UsageError(
                f"it is a {kind}, whose licence, authors and card stay as they are",
                where=path,
                remedy=f"leave --license, --author and --dataset out{_OWN.get(kind, '')}",
            )
        yield path
        return
    parts = _parts(given)
    cited = _cited(parts, datasets)
    with temporary_folder() as room:
        folder, made = room / "bundle", False
        try:
            with resource_errors(folder, lambda: "TMPDIR can name another disk"):
                _gather(folder, parts, license, authors, cited)
            made = True
            yield folder
        except PbvfError as error:
            if isinstance(error, ResourceError) and not made:
                raise  # of the disk that the copy is on, and not of what is copied
            raise _renamed(error, folder, parts, given) from error


def _parts(given: Sequence[str]) -> dict[str, Thing]:
    """Return what is to go into a bundle, by the name that it has there.

    Raises:
        UsageError: Something cannot be in a bundle, or two things have one name.
    """
    parts: dict[str, Thing] = {}
    for name in given:
        kind, path = kind_of(name)
        if kind in _OTHERS or kind == "file":
            if kind == "file":
                problem = verify_file(path).error
                what = "it is none of this project's files" if problem is None else problem.what
            else:
                what = f"{'an' if kind == 'archive' else 'a'} {kind} cannot be in a bundle"
            raise UsageError(what, where=path, remedy=_OTHERS.get(kind, "name another file"))
        for thing in things(name):
            base = Path(os.path.realpath(thing.path)).name if kind == "run" else thing.path.name
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", base)[:60].lstrip(".-")
            if not is_part_name(plain):
                raise UsageError(
                    f"{printable(base)!r} is no name for a part of a bundle",
                    where=thing.path,
                    remedy="rename it: letters, digits, '_', '-' and '.'",
                )
            same = next((one for one in parts if one.lower() == plain.lower()), None)
            if same is not None:  # some file systems take names that differ in case for one
                raise UsageError(
                    f"is called {plain}, like {parts[same].path}",
                    where=thing.path,
                    remedy="rename one of the two",
                )
            parts[plain] = thing
    return parts


def _cited(parts: dict[str, Thing], datasets: Sequence[str]) -> dict[str, str]:
    """Return the ids of datasets by their digests, once something was made from each.

    Raises:
        UsageError: There is no such dataset.
        IncompatibleError: Nothing among the parts was made from it.
    """
    cited: dict[str, str] = {}
    needed = {tie.source.digest for tie in lineage(list(parts.values()))} if datasets else set()
    for name in datasets:
        kind, path = kind_of(name)
        if kind != "dataset":
            raise UsageError(f"is a {kind} and no dataset", where=name, remedy="name a dataset")
        _, own = DatasetForm().check(path)
        digests = Thing(name, kind, path).digests() & needed
        if not digests:
            raise IncompatibleError(
                "nothing that is to be shared was made from this dataset",
                where=name,
                remedy="'pbvf info' shows the digests that it was made from",
            )
        cited |= dict.fromkeys(digests, str(own))
    return cited


def _gather(
    folder: Path,
    parts: dict[str, Thing],
    license: str | None,
    authors: Sequence[str],
    cited: dict[str, str],
) -> None:
    """Copy the parts into a new folder, and add card and manifest.

    Raises:
        ConflictError: A run is being written.
        PbvfError: A part cannot be read.
        OSError: The disk refuses.
    """
    folder.mkdir()
    files = [name for part, thing in parts.items() for name in _copied(thing, folder / part)]
    names = [file.relative_to(folder).as_posix() for file in files]
    placed = [Thing(name, thing.kind, folder / name) for name, thing in parts.items()]
    listed = [Part(thing.name, thing.kind) for thing in placed]
    title = bundle_name({"provenance": {"parts": [vars(part) for part in listed]}})
    card = bundle_card(title, placed, license=license, authors=authors, datasets=cited)
    (folder / CARD_FILE).write_text(card, "utf-8")
    manifest = bundle_manifest(folder, listed, names, license=license, authors=authors)
    (folder / MANIFEST_FILE).write_bytes(manifest_bytes(manifest))


def _copied(thing: Thing, target: Path) -> Iterator[Path]:
    """Copy a file, or the files of a run that go along, and yield where they are now."""
    if thing.kind != "run":
        _copy(thing.path, target)
        yield target
        return
    with locked(thing.path, look=True):
        for name in portable_files(thing.path):
            make_folders((target / name).parent)
            _copy(thing.path / name, target / name, follow=False)
            yield target / name


def _copy(source: Path, target: Path, *, follow: bool = True) -> None:
    try:
        stream = open_regular(source, follow=follow)
    except OSError as error:
        raise read_error(error, source) from error
    with stream, target.open("xb") as copy:
        shutil.copyfileobj(stream, copy)


def _renamed(
    error: PbvfError, folder: Path, parts: dict[str, Thing], given: Sequence[str]
) -> PbvfError:
    """Return an error that names the files which a bundle was made from, not its own."""
    where = error.where or ""
    for name, thing in parts.items():
        where = where.replace(str(folder / name), str(thing.path))
    where = where.replace(str(folder), given[0])
    return type(error)(error.what, where=where or None, remedy=error.remedy)
