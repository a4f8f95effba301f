"""What each source was made from, by digest."""

from __future__ import annotations

from collections.abc import Sequence

from pbvf_report.content import Section, Table
from pbvf_report.sources import Source, is_digest

_MOST = 200  # rows of one source, whose file somebody may have made to be large


def section(sources: Sequence[Source]) -> Section:
    """Return the table of what was made from what."""
    names = {digest: source.name for source in sources for digest in source.digests}
    rows = [
        [
            source.name,
            source.kind,
            role or "nothing that it names",
            names.get(digest, "not on this page") if digest else "",
            digest,
        ]
        for source in sources
        for role, digest in source.made_from[:_MOST] or [("", "")]
    ]
    own = [
        [source.name, source.kind, label, digest]
        for source in sources
        for label, digest in source.facts
        if is_digest(digest)
    ]
    return Section(
        "Lineage",
        "Files name what they were made from by SHA-256. Where a digest is that of something on "
        "this page, its name is given.",
        tables=[
            Table("Made from", ["name", "kind", "made from", "which is", "digest"], rows),
            Table("Own digests", ["name", "kind", "of", "digest"], own),
        ],
    )
