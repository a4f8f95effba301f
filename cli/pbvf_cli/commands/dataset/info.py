"""``pbvf dataset list`` and ``pbvf dataset info``."""

from __future__ import annotations

from pbvf_cli.shared import options
from pbvf_cli.shared.command import command
from pbvf_cli.shared.terminal.output import Sink, number, size_text


@command("pbvf dataset list", "MINARI_DATASETS_PATH=/data/minari pbvf dataset list --json")
def list_all(*, sink: Sink) -> None:
    """List the datasets under MINARI_DATASETS_PATH (else Minari's own folder).

    Those of other programs are marked foreign, those begun and not finished unfinished. Only
    small files are read; 'pbvf dataset verify' checks a dataset.
    """
    from pbvf_datasets.format.names import datasets_root
    from pbvf_datasets.inspect.listing import list_datasets

    root = datasets_root()
    found = list_datasets(root)
    payload = {"root": root, "datasets": [one.to_dict() for one in found]}
    header = ("dataset", "state", "episodes", "cut", "steps", "policies", "env", "licence", "size")
    lines = [
        (
            one.dataset,
            one.state,
            number(one.episodes),
            number(None if one.ends is None else one.ends.cut),
            *(number(count) for count in (one.steps, one.policies)),
            one.env or "-",
            one.license or "-",
            "-" if one.size is None else size_text(one.size),
        )
        for one in found
    ]
    rows = [("datasets in", str(root)), ("found", number(len(found)))]
    rows += [(one.state, one.problem) for one in found if one.problem is not None]
    sink.result(payload, rows, table=(header, lines) if lines else None)


@command("pbvf dataset info lab/swimmer-v0", "pbvf dataset info ./downloaded-v0 --json")
def info(
    dataset: options.Dataset, *, require_manifest: options.RequireManifest = False, sink: Sink
) -> None:
    """Show what is in a dataset and where it came from.

    Digests and the form of everything are checked, values are not: see 'pbvf dataset verify'.
    """
    from pbvf_cli.shared.kinds.dataset import show

    shown = show(dataset, require_manifest=require_manifest)
    sink.result(shown.payload, shown.rows, table=shown.table)
