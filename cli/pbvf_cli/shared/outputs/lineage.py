"""What of several things was made from which: for people and for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pbvf_runs.share.lineage import Tie

HEADER = ("what", "how", "made from", "which is")


def payload(ties: Sequence[Tie]) -> list[dict[str, Any]]:
    """Return what ``--json`` prints of ties."""
    return [
        {
            "name": tie.name,
            "kind": tie.kind,
            "relation": tie.source.relation,
            "digest": tie.source.digest,
            "kinds": tie.source.kinds,
            "found": tie.found,
            "fits": tie.fits,
        }
        for tie in ties
    ]


def short_digests(text: str) -> str:
    """Return a text with the first 12 digits of each digest: a table has no room for 64."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", text)


def lines(ties: Sequence[Tie]) -> list[tuple[str, str, str, str]]:
    """Return the lines of a table below :data:`HEADER`."""
    return [
        (
            tie.shown,
            tie.source.relation,
            short_digests(tie.source.what),
            tie.found_shown
            or ("not among the given" if tie.fits else "none of the given: it does not fit"),
        )
        for tie in ties
    ]
