"""What a path holds, told by a look at it and never by its name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pbvf_offline.errors import UnsafeError, UsageError


def kind_of(name: str) -> tuple[str, Path]:
    """Return the kind of what an id or a path names, and its path.

    ``dataset``, ``bundle``, ``run``, ``runs`` (a folder of several), ``archive``, ``signature``,
    the kind that a tensor file gives itself, or ``file`` where nothing tells.

    Raises:
        UsageError: There is nothing, or it is a part of something else.
        ResourceError: It cannot be read.
    """
    if Path(name).is_file():
        return _file_kind(Path(name)), Path(name)

    from pbvf_datasets.format.bundle import is_bundle
    from pbvf_datasets.format.names import resolve_dataset
    from pbvf_datasets.read.untrusted import is_dataset
    from pbvf_runs.data import runs_in
    from pbvf_runs.folder import is_run
    from pbvf_runs.loggers import METRICS_FILE

    try:
        folder = resolve_dataset(name)
    except UsageError as error:
        if name and Path(name).exists():
            raise UsageError(
                "this is neither a regular file nor a folder", where=name, remedy="check its path"
            ) from error
        raise
    if is_bundle(folder):
        return "bundle", folder
    if is_dataset(folder):
        return "dataset", folder
    if is_run(folder):
        return "run", folder
    if runs_in(folder):
        return "runs", folder
    if any(map(Path.is_file, (folder / METRICS_FILE, *folder.glob(f"*/{METRICS_FILE}")))):
        raise _of_log_dir(folder)
    raise _part_or_unknown(folder)


def _file_kind(path: Path) -> str:
    from pbvf_datasets.inspect.findings import FOUND
    from pbvf_datasets.inspect.verify_file import FILE_KINDS, file_kind, is_tar, start_of
    from pbvf_datasets.share.signing import SIGNATURE_BYTES
    from pbvf_runs.curves import CURVE_FILE
    from pbvf_runs.loggers import METRICS_FILE

    start = start_of(path)
    if is_tar(start):
        return "archive"
    folder = path.parent.parent if path.parent.name == "data" else path.parent
    whole = _whole(folder, path)
    if whole in ("dataset", "bundle") and len(start) == SIGNATURE_BYTES:
        return "signature"
    try:
        kind = file_kind(path)
    except FOUND as error:
        begins = start[:1] != b"{" == start[8:9] or b"__metadata__" in start
        # What begins as a tensor file, or is unsafe, is judged by itself, also in a folder.
        if whole is not None and not begins and not isinstance(error, UnsafeError):
            raise UsageError(
                f"is a part of a {whole}", where=path, remedy=f"give {folder}"
            ) from None
        if path.name in (METRICS_FILE, CURVE_FILE) and (path.parent / CURVE_FILE).is_file():
            raise _of_log_dir(path.parent) from None
        return "file"  # what is wrong with it, its check says
    return kind if kind in FILE_KINDS else "file"


def _part_or_unknown(folder: Path) -> UsageError:
    for above in folder.parents[:2]:
        if (whole := _whole(above, folder)) is not None:
            return UsageError(f"is a part of a {whole}", where=folder, remedy=f"give {above}")
    return UsageError(
        "this folder is neither a dataset's, a bundle's nor a run's, and no run is directly in it",
        where=folder,
        remedy="check its path, or name a folder inside it",
    )


def _of_log_dir(folder: Path) -> UsageError:
    return UsageError(
        "this folder holds what a fit wrote for --log-dir",
        where=folder,
        remedy="'pbvf plot' draws it; for all else name the file that was fitted, which keeps its "
        "curve too",
    )


def _whole(folder: Path, path: Path) -> str | None:
    """Return what a file or folder is a part of; None where it only lies in there."""
    from pbvf_datasets.format.bundle import bundle_layout, is_bundle
    from pbvf_datasets.format.schema import DATASET_FILES
    from pbvf_datasets.read.untrusted import is_dataset
    from pbvf_runs.folder import is_run, own_entries

    name = path.relative_to(folder).as_posix()

    def listed(names: Iterable[str]) -> bool:
        return any(one == name or one.startswith(f"{name}/") for one in names)

    if is_bundle(folder):
        return "bundle" if listed(bundle_layout(folder).names) else None
    if is_dataset(folder):
        return "dataset" if listed(DATASET_FILES.names) else None
    return "run" if is_run(folder) and path in own_entries(folder) else None
