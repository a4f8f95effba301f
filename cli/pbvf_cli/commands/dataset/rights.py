"""``pbvf dataset set``: licence and authors of a dataset that is there."""

from __future__ import annotations

from pbvf_cli.shared import options
from pbvf_cli.shared.command import command
from pbvf_cli.shared.terminal.output import Sink, as_payload


@command(
    "pbvf dataset set lab/swimmer-v0 --license CC-BY-4.0",
    "pbvf dataset set lab/swimmer-v0 --author 'Ada Lovelace' --author 'Alan Turing'",
    continues=True,
)
def set_(
    dataset: options.Dataset,
    *,
    license_id: options.License = None,
    author: options.Authors = None,
    sink: Sink,
) -> None:
    """Set a dataset's licence and authors, and leave its data as they are.

    Authors take the place of those before. Critics and models that were fitted to the data go on
    with them. A signature is of the old manifest, so it is removed.
    """
    from pbvf_datasets.write.rights import set_rights

    rights = set_rights(dataset, license=license_id, authors=author)
    if rights.signature_removed:
        sink.note("note: its signature was of the old manifest and is removed; sign it again")
    if rights.card_kept:
        sink.note("note: README.md had been edited, so its text is yours to change")
    rows = [
        ("dataset", rights.dataset),
        ("path", str(rights.path)),
        ("licence", rights.license or "none"),
        ("authors", ", ".join(rights.authors) or "none given"),
        ("digest", rights.digest),
        ("known as", rights.known_as),
    ]
    sink.result(as_payload(rights), rows, place=rights.path)
