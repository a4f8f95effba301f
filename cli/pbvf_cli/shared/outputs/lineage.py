"""What of several things was made from which: for people and for programs."""

from __future__ import annotations

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


def lines(ties: Sequence[Tie]) -> list[tuple[str, str, str, str]]:
    """Return the lines of a table below :data:`HEADER`."""
    return [
        (
            tie.shown,
            tie.source.relation,
            tie.source.what,
            tie.found_shown
            or ("not among the given" if tie.fits else "none of the given: it does not fit"),
        )
        for tie in ties
    ]
