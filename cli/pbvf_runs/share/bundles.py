"""Share whatever this project writes: datasets as they are, everything else in a bundle.

:mod:`pbvf_runs.share.outgoing` makes a bundle, and the functions of :mod:`pbvf_datasets.share` move
it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pbvf_datasets.format.bundle import (
    FORMAT,
)
from pbvf_datasets.inspect import bundle as bundles
from pbvf_datasets.inspect.bundle import PartKind, PartKinds
from pbvf_datasets.inspect.findings import Verification
from pbvf_datasets.inspect.verify_file import GRAPH, WEIGHTS, verify_file
from pbvf_datasets.share import archive, transfer
from pbvf_datasets.share.forms import BundleForm, DatasetForm, Forms, Progress
from pbvf_runs.folder import PORTABLE
from pbvf_runs.share.outgoing import outgoing
from pbvf_runs.verify import verify_run

if TYPE_CHECKING:
    from pbvf_datasets.share.archive import Inside, Packed
    from pbvf_datasets.share.receiving import ReceiveResult
    from pbvf_datasets.share.transfer import Pushed


def _verify_file(path: Path, progress: Progress | None) -> Verification:
    del progress
    return verify_file(path)


def _verify_run(path: Path, progress: Progress | None) -> Verification:
    return verify_run(path, progress=progress)


PARTS: Final[PartKinds] = {
    **dict.fromkeys(("critic", "model", "policies", WEIGHTS, GRAPH), PartKind(_verify_file)),
    "run": PartKind(_verify_run, PORTABLE),
}
"""What may be in a bundle."""


def forms(root: Path | None = None) -> Forms:
    """Return all that can be shared; ``root`` is the folder of datasets, Minari's when None."""
    dataset = DatasetForm(root)
    return {dataset.format: dataset, FORMAT: BundleForm(PARTS)}


def push(
    paths: Sequence[str | os.PathLike[str]],
    remote: str,
    *,
    license: str | None = None,
    authors: Sequence[str] = (),
    datasets: Sequence[str] = (),
    overwrite: bool = False,
    allow: Collection[str] = (),
    verifying: Progress | None = None,
    progress: Progress | None = None,
) -> Pushed:
    """Send a dataset, a bundle, or files and runs as a bundle; the manifest goes last.

    Args:
        paths: One dataset (an id or folder) or one bundle; or critics, models, policies files and
            runs, or folders of several.
        remote: Where to: a folder's path, or an address such as ``s3://bucket/name``.
        license: Licence of a new bundle.
        authors: Its authors.
        datasets: Datasets that its things were made from, which the card names by their ids.
        overwrite: Replace another one there.
        allow: Words and paths that may go out.
        verifying: Told how many steps are verified and of how many.
        progress: Told how many bytes are sent and of how many.

    Raises:
        UsageError: There is no such thing, it cannot be shared or has no licence, or it gives this
            machine away; nothing can be sent to such an address.
        DamagedError: It is damaged, or changed meanwhile.
        UnsafeError: It could harm those who get it.
        IncompatibleError: It cannot be checked to its end, or was not made from a dataset named.
        ConflictError: Something else is there, or a run goes on.
        NetworkError: The remote cannot be reached, or refuses.
        ResourceError: The disk refuses.
    """
    with outgoing(paths, license, authors, datasets) as path:
        return transfer.push(
            path,
            remote,
            overwrite=overwrite,
            allow=allow,
            forms=forms(),
            verifying=verifying,
            progress=progress,
        )


def pack(
    paths: Sequence[str | os.PathLike[str]],
    file: Path,
    *,
    license: str | None = None,
    authors: Sequence[str] = (),
    datasets: Sequence[str] = (),
    overwrite: bool = False,
    verifying: Progress | None = None,
    progress: Progress | None = None,
) -> Packed:
    """Write a dataset, a bundle, or files and runs as a bundle into a tar file.

    Equal input gives equal bytes. Arguments and errors are those of :func:`push`; it needs no
    licence, and texts are not searched for what gives the machine away.
    """
    with outgoing(paths, license, authors, datasets) as path:
        return archive.pack(
            path,
            file,
            overwrite=overwrite,
            forms=forms(),
            verifying=verifying,
            progress=progress,
        )


def pull(
    remote: str,
    name: str,
    *,
    overwrite: bool = False,
    public_key: Path | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> ReceiveResult:
    """Fetch a dataset or a bundle; nothing is visible before all of it is checked.

    Args:
        remote: Where from.
        name: The id of a dataset here, or the folder of a bundle.
        overwrite: Replace another one there.
        public_key: File of a key whose owner must have signed it.
        root: Folder of datasets.
        progress: Told how many bytes are done and of how many.

    Raises:
        PbvfError: As :func:`pbvf_datasets.share.transfer.pull` does.
    """
    return transfer.pull(
        remote,
        name,
        overwrite=overwrite,
        public_key=public_key,
        forms=forms(root),
        progress=progress,
    )


def unpack(
    file: Path,
    name: str | None = None,
    *,
    overwrite: bool = False,
    public_key: Path | None = None,
    root: Path | None = None,
    progress: Progress | None = None,
) -> ReceiveResult:
    """Read a dataset or a bundle out of an archive; nothing is visible before all is checked.

    Args:
        file: The archive.
        name: The id of a dataset here, or the folder of a bundle; as it calls itself when None.
        overwrite: Replace another one there.
        public_key: File of a key whose owner must have signed it.
        root: Folder of datasets.
        progress: Told how many bytes are done and of how many.

    Raises:
        PbvfError: As :func:`pbvf_datasets.share.archive.unpack` does.
    """
    return archive.unpack(
        file,
        name,
        overwrite=overwrite,
        public_key=public_key,
        forms=forms(root),
        progress=progress,
    )


def verify_bundle(path: Path, *, progress: Progress | None = None) -> Verification:
    """Check a bundle; see :func:`pbvf_datasets.inspect.bundle.verify_bundle`."""
    return bundles.verify_bundle(path, PARTS, progress=progress)


def verify_archive(path: Path, *, progress: Progress | None = None) -> Verification:
    """Check an archive; see :func:`pbvf_datasets.share.archive.verify_archive`."""
    return archive.verify_archive(path, forms=forms(), progress=progress)


def look_inside(path: Path) -> Inside:
    """Return what an archive holds; see :func:`pbvf_datasets.share.archive.look_inside`."""
    return archive.look_inside(path, forms())
