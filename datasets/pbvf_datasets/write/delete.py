"""Delete datasets, and what was begun of others: only files that are a dataset's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Final

from pbvf_datasets.format.bundle import is_bundle
from pbvf_datasets.format.identity import dataset_work
from pbvf_datasets.format.names import dataset_path, resolve_dataset
from pbvf_datasets.format.schema import DATASET_FILES
from pbvf_datasets.read.untrusted import is_dataset
from pbvf_offline.errors import UnsafeError, UsageError
from pbvf_offline.io.durable import path_exists, resource_errors, sync_folder
from pbvf_offline.io.lock import OutputLock
from pbvf_offline.io.work_folder import refuse_fixed, refuse_foreign

_DELETING: Final = "deleting"
_BEGUN: Final = ("collecting", "arriving", _DELETING, "relicense")


@dataclass(frozen=True)
class Deletion:
    """Something that can be deleted.

    Attributes:
        dataset: What the user called it.
        path: The folder of the dataset, whether it is there or not.
        folders: What is to be deleted: the dataset's folder, or work folders beside it.
        size: Bytes of all files in there.
        unfinished: Whether these are work folders.
    """

    dataset: str
    path: Path
    folders: tuple[Path, ...]
    size: int
    unfinished: bool


def plan_deletion(
    dataset: str | os.PathLike[str], *, unfinished: bool = False, root: Path | None = None
) -> Deletion:
    """Look at what would be deleted, and change nothing.

    Args:
        dataset: Id or folder.
        unfinished: What was begun of it and not finished, in place of the dataset.
        root: Folder of datasets; Minari's when None.

    Raises:
        UsageError: There is no such dataset, or nothing unfinished.
        UnsafeError: It is a link or holds one.
        ConflictError: It holds a file that is not a dataset's, or another process writes it.
        ResourceError: It cannot be read, or nothing may be changed in it or beside it.
    """
    name = os.fspath(dataset)
    if unfinished:
        path = _place(name, root)
        works = (dataset_work(path, suffix).folder for suffix in _BEGUN)
        folders = tuple(folder for folder in works if path_exists(folder))
        if not folders:
            raise UsageError("there is nothing unfinished of it", where=name)
    else:
        path = Path(os.path.abspath(resolve_dataset(dataset, root)))  # noqa: PTH100, keeps links
        _refuse_link(path)
        if not is_dataset(path) or is_bundle(path):
            what, remedy = "this is not a dataset folder", "only datasets are deleted"
            if is_bundle(path):
                what, remedy = f"{what} but a bundle", f"{remedy}; use rm -r {quote(str(path))}"
            raise UsageError(what, where=path, remedy=remedy)
        refuse_foreign(path, DATASET_FILES)
        folders = (path,)
    with resource_errors(path, lambda: "nothing was deleted"):
        size = sum(map(_size, folders))
        OutputLock(path).release()
    if not unfinished:
        refuse_fixed(path)
    return Deletion(name, path, folders, size, unfinished)


def delete(deletion: Deletion) -> None:
    """Delete it; a dataset is gone at once, and a kill may leave files of it in a work folder.

    Raises:
        ConflictError: Another process writes it, or its folder holds other files by now.
        ResourceError: The disk or a permission refuses.
    """
    with resource_errors(deletion.path):
        if deletion.unfinished:
            for suffix in _BEGUN:
                work = dataset_work(deletion.path, suffix)
                if work.folder in deletion.folders:
                    try:
                        work.hold()
                        work.remove()
                    finally:
                        work.close()
            return
        work = dataset_work(deletion.path, _DELETING)
        try:
            work.hold()
            work.clear()
            work.refuse_foreign()
            deletion.path.rename(work.build)
            sync_folder(deletion.path.parent)
            work.remove()
        finally:
            work.close()


def _place(name: str, root: Path | None) -> Path:
    """Return the folder of a dataset that need not be there."""
    try:
        return dataset_path(name, root)
    except UsageError:
        path = Path(os.path.abspath(name))  # noqa: PTH100, keeps links
        if not path.parent.is_dir():
            raise
        return path


def _size(folder: Path) -> int:
    """Return the bytes of all files.

    Raises:
        UnsafeError: It is a link or holds one.
    """
    _refuse_link(folder)
    if not folder.is_dir():
        return folder.lstat().st_size
    return sum(map(_size, folder.iterdir()))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UnsafeError(
            "this is a symbolic link, so nothing is deleted",
            where=path,
            remedy="name what it leads to, or remove the link itself",
        )
