"""The kinds of things that this project writes: how each is told, checked and shown.

:func:`pbvf_runs.share.kinds.kind_of` tells what a path holds. A new kind is an entry of
:data:`KINDS`, and where no tensor file's header tells it a line there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
    "bundle": Kind(f"{_HERE}.sharing:show_bundle", "pbvf_runs.share.bundles:verify_bundle"),
    "archive": Kind(f"{_HERE}.sharing:show_archive", "pbvf_runs.share.bundles:verify_archive"),
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


def show(kind: str, path: Path) -> Shown:
    """Return what ``info`` prints of something of a kind, and of what it was made from.

    Raises:
        PbvfError: It cannot be read.
    """
    from pbvf_runs.share.lineage import sources_of

    shown = KINDS[kind].show(path)
    sources = sources_of(kind, shown.payload)
    if not sources:
        return shown
    names = {source["digest"]: source["id"] for source in shown.payload.get("sources", ())}
    rows = [
        *shown.rows,
        *(
            (
                source.relation,
                f"dataset {names[source.digest]}, digest {source.digest}"
                if source.digest in names
                else source.what,
            )
            for source in sources
        ),
    ]
    made_from = [vars(source) for source in sources]
    return replace(shown, payload={**shown.payload, "made_from": made_from}, rows=rows)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found
