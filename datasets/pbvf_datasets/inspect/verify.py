"""Verify: whether a file is whole, says the truth about itself, and is safe to open."""

from __future__ import annotations

import os
from pathlib import Path

from pbvf_datasets.format.names import resolve_dataset
from pbvf_datasets.inspect.findings import Verification
from pbvf_datasets.inspect.verify_dataset import Progress, verify_dataset
from pbvf_datasets.inspect.verify_file import verify_file
from pbvf_offline.errors import UsageError


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> Verification:
    """Check a dataset, a critic file, a policies file or the checkpoint of a run.

    What kind it is, its content says, never its name. Nothing that it names is opened,
    imported or built.

    Args:
        path: A dataset's id or folder, or a file.
        progress: Told the steps checked and the steps in all.

    Raises:
        UsageError: There is no such thing.
        ResourceError: It cannot be read, or memory is short.
    """
    if Path(path).is_file():
        return verify_file(Path(path))
    try:
        folder = resolve_dataset(path)
    except UsageError as error:
        if os.path.lexists(path):
            raise UsageError(
                "this is neither a regular file nor a folder", where=path, remedy="check its path"
            ) from error
        raise
    return verify_dataset(folder, progress=progress)
