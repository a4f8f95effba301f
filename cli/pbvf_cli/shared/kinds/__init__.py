"""The kinds of things that this project writes: how each is told, checked and shown.

What a path holds is found by a look at it, never by its name. A new kind is an entry of
:data:`KINDS`, and where no tensor file's header tells it a line of :func:`kind_of`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pbvf_offline.errors import UnsafeError, UsageError

if TYPE_CHECKING:
    from pbvf_cli.shared.terminal.output import Shown
    from pbvf_datasets.inspect.findings import Verification

Progress = Callable[[int, int], None]

_HERE: Final = "pbvf_cli.shared.kinds"
_FILE: Final = "pbvf_datasets.inspect.verify_file:verify_file"


@dataclass(frozen=True)
class Kind:
    """One kind of thing, whose modules are imported when they are used.

    Attributes:
        shows: ``module:function`` that takes the path and returns what ``info`` prints.
        verifies: Likewise for ``verify``; the function may take ``progress``.
    """

    shows: str
    verifies: str

    def show(self, path: Path) -> Shown:
        """Return what ``info`` prints.

        Raises:
            PbvfError: It cannot be read.
        """
        shown: Shown = _function(self.shows)(path)
        return shown

    def verify(self, path: Path, progress: Progress) -> Verification:
        """Check it.

        Raises:
            UsageError: It cannot be checked without more.
            ResourceError: It cannot be read, or memory is short.
        """
        more = {} if self.verifies == _FILE else {"progress": progress}
        found: Verification = _function(self.verifies)(path, **more)
        return found


KINDS: Final = {
    "dataset": Kind(f"{_HERE}.dataset:show", "pbvf_datasets.inspect.verify_dataset:verify_dataset"),
    "run": Kind(f"{_HERE}.runs:show", "pbvf_runs.verify:verify_run"),
    "runs": Kind(f"{_HERE}.runs:show_several", "pbvf_runs.verify:verify_runs"),
    "archive": Kind(f"{_HERE}.sharing:show_archive", "pbvf_datasets.share.archive:verify_archive"),
    "signature": Kind(f"{_HERE}.sharing:show_signature", f"{_HERE}.sharing:verify_signature"),
    "critic": Kind(f"{_HERE}.learned:show_critic", _FILE),
    "model": Kind(f"{_HERE}.learned:show_model", _FILE),
    "policies": Kind(f"{_HERE}.policies:show", _FILE),
    "weights": Kind(f"{_HERE}.policies:show_weights", _FILE),
    "onnx": Kind(f"{_HERE}.policies:show_graph", _FILE),
    "checkpoint": Kind(f"{_HERE}.runs:show_checkpoint", _FILE),
    "file": Kind(f"{_HERE}.learned:refuse", _FILE),
}
"""By the name that ``info`` and ``verify`` print; ``file`` is one whose content tells no kind."""


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def kind_of(name: str) -> tuple[str, Path]:
    """Return the kind of what an id or a path names, and its path.

    Raises:
        UsageError: There is nothing, or it is a part of something else.
        ResourceError: It cannot be read.
    """
    if Path(name).is_file():
        return _file_kind(Path(name)), Path(name)

    from pbvf_datasets.format.schema import resolve_dataset
    from pbvf_datasets.read.untrusted import is_dataset
    from pbvf_runs.data import is_run, runs_in

    try:
        folder = resolve_dataset(name)
    except UsageError as error:
        if Path(name).exists():
            raise UsageError(
                "this is neither a regular file nor a folder", where=name, remedy="check its path"
            ) from error
        raise
    if is_dataset(folder):
        return "dataset", folder
    if is_run(folder):
        return "run", folder
    if runs_in(folder):
        return "runs", folder
    raise UsageError(
        "this folder is neither a dataset's nor a run's, and no run is directly in it",
        where=folder,
        remedy="check its path, or name a folder inside it",
    )


def _file_kind(path: Path) -> str:
    from pbvf_datasets.inspect.findings import FOUND
    from pbvf_datasets.inspect.verify_file import file_kind, is_tar, start_of
    from pbvf_datasets.read.untrusted import is_dataset
    from pbvf_datasets.share.signing import SIGNATURE_BYTES
    from pbvf_runs.data import is_run

    start = start_of(path)
    if is_tar(start):
        return "archive"
    folder = path.parent.parent if path.parent.name == "data" else path.parent
    whole = "dataset" if is_dataset(folder) else "run" if is_run(folder) else None
    if whole == "dataset" and len(start) == SIGNATURE_BYTES:
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
        return "file"  # what is wrong with it, its check says
    return kind if kind in KINDS else "file"
