"""Ids of datasets, and the folders where they are."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pbvf_offline.errors import UsageError, did_you_mean, printable

# Minari's own pattern for ids, but with a version, and each component by itself.
_COMPONENT = re.compile(r"[-_\w]+")
_NAME = re.compile(r"(?P<name>[-_\w]+?)-v(?P<version>0|[1-9][0-9]{0,8})")
_ID_REMEDY = "give an id such as 'lab/swimmer-fragments-v0'"
_MOST_FOLDERS: Final = 10_000
_BEGUN: Final = {
    "collecting": ("it is unfinished", "run the command that makes it again, or '{}' removes it"),
    "arriving": ("its transfer is unfinished", "run that again, or '{}' removes what is there"),
    "deleting": ("a deletion of it was interrupted", "finish that with '{}'"),
    "relicense": (
        "setting its licence or authors was interrupted",
        "run 'pbvf dataset set' again, or '{}' removes what is left of that",
    ),
}
"""By the end of a work folder's name: what is the matter, and what to do."""


def datasets_root() -> Path:
    """Return the folder of local datasets: ``MINARI_DATASETS_PATH`` or Minari's default.

    Raises:
        UsageError: It begins with ``~``, which Minari takes for the name of a folder.
    """
    given = os.environ.get("MINARI_DATASETS_PATH")
    if given and given.startswith("~"):
        raise UsageError(
            f"{given!r} begins with ~, which only a shell expands",
            where="MINARI_DATASETS_PATH",
            remedy=f"give the whole path, such as {Path(given).expanduser()}",
        )
    return Path(given) if given else Path.home() / ".minari" / "datasets"


def check_dataset_id(dataset_id: str) -> tuple[str, str, int]:
    """Split ``namespace/name-vN`` into namespace (may be empty), name and version.

    Raises:
        UsageError: It is not such an id, or one that Minari's listing would trip over.
    """
    *namespace, last = dataset_id.split("/")
    match = _NAME.fullmatch(last)
    if match is None or any(_COMPONENT.fullmatch(part) is None for part in namespace):
        odd = [
            letter for letter in dataset_id if not _COMPONENT.fullmatch(letter) and letter != "/"
        ]
        why = f": {odd[0]!r} is none of letters, digits, - and _" if odd else ""
        raise UsageError(f"{dataset_id!r} is not a dataset id{why}", remedy=_ID_REMEDY)
    if namespace and len("/".join(namespace)) < 2:
        raise UsageError(
            f"the namespace of {dataset_id!r} is shorter than the two letters Minari wants",
            remedy=_ID_REMEDY,
        )
    if "data" in namespace:
        # Minari takes every folder with a 'data' inside for a dataset.
        raise UsageError(
            f"the namespace of {dataset_id!r} contains 'data', which hides its neighbours "
            "from Minari",
            remedy="choose another namespace",
        )
    if any(len(os.fsencode(part)) > 200 for part in (*namespace, last)):
        raise UsageError(f"{dataset_id[:60]!r}… is too long", remedy=_ID_REMEDY)
    return "/".join(namespace), match["name"], int(match["version"])


def dataset_path(dataset_id: str, root: Path | None = None) -> Path:
    """Return where a dataset of this id lives, whether it exists or not.

    Raises:
        UsageError: It is not an id.
    """
    check_dataset_id(dataset_id)
    return (datasets_root() if root is None else root).joinpath(*dataset_id.split("/"))


def new_dataset_path(dataset_id: str, root: Path | None = None) -> Path:
    """Return where a dataset of this id will be written.

    Raises:
        UsageError: It is not an id, or the folder is inside another dataset.
    """
    root = datasets_root() if root is None else root
    path = dataset_path(dataset_id, root)
    for above in path.relative_to(root).parents[:-1]:
        if (root / above / "data").exists():
            raise UsageError(
                f"{dataset_id} would lie inside the dataset {root / above}",
                remedy="choose another namespace",
            )
    return path


def resolve_dataset(name_or_path: str | os.PathLike[str], root: Path | None = None) -> Path:
    """Return the folder of a dataset given by id (under ``root``) or by path.

    Args:
        name_or_path: ``namespace/name-v0``, or the path of a folder.
        root: Folder of local datasets; default :func:`datasets_root`.

    Raises:
        UsageError: There is no such dataset, or the name is malformed.
    """
    text = os.fspath(name_or_path)
    root = datasets_root() if root is None else root
    is_id = False
    malformed: UsageError | None = None
    if isinstance(name_or_path, str):
        try:
            path = dataset_path(text, root)
            is_id = True
        except UsageError as error:
            malformed = error
        if is_id and path.is_dir():
            return path
    if "\0" in text or not text:
        raise UsageError(f"{text!r} is neither a dataset id nor a folder", remedy=_ID_REMEDY)
    path = Path(text).expanduser()
    if path.is_dir():
        return path
    if begun := _begun(text, dataset_path(text, root) if is_id else path):
        raise begun
    if is_id:
        raise UsageError(
            f"there is no dataset {text} under {root}",
            remedy=f"{did_you_mean(text, dataset_ids(root))}check the name, or set "
            "MINARI_DATASETS_PATH",
        )
    if path.exists():
        from pbvf_offline.io.tensor_file import what_it_is

        what, remedy = what_it_is(path)
        raise UsageError(f"this is {what}; a dataset is a folder", where=path, remedy=remedy)
    raise UsageError(
        "does not exist", where=printable(text), remedy=f"check its path, or {_ID_REMEDY}"
    ) from malformed


def _begun(name: str, path: Path) -> UsageError | None:
    """Return the error to raise where work on a dataset that is not there was interrupted."""
    for suffix, (what, remedy) in _BEGUN.items():
        if path.with_name(f".{path.name}.{suffix}").is_dir():
            command = f"pbvf dataset delete {shlex.quote(name)} --unfinished"
            return UsageError(what, where=name, remedy=remedy.format(command))
    return None


def dataset_ids(root: Path | None = None) -> Iterator[str]:
    """Yield the ids of folders that look like datasets; names alone are looked at.

    Args:
        root: Folder of local datasets; default :func:`datasets_root`.
    """
    top = os.fspath(datasets_root() if root is None else root)
    folders, looked = [""], 0
    while folders and looked < _MOST_FOLDERS:
        inside, looked = folders.pop(), looked + 1
        with contextlib.suppress(OSError), os.scandir(os.path.join(top, inside)) as found:  # noqa: PTH118
            entries = [e.name for e in found if e.is_dir(follow_symlinks=False)]
            if inside and "data" in entries:
                yield inside
                continue
            names = [name for name in entries if not name.startswith(".")]
            folders += [f"{inside}/{name}" if inside else name for name in names]
