"""Films of the best policies, where the command was asked to make some."""

from __future__ import annotations

from collections.abc import Sequence

from pbvf_report.content import Film, Section
from pbvf_report.sources import Source


def section(sources: Sequence[Source]) -> Section:
    """Return the films of the sources."""
    films = [
        Film(f"{source.name}: {source.film[0]}, first episode of an evaluation", source.film[1])
        for source in sources
        if source.film is not None
    ]
    return Section(
        "Films",
        "Of each policies file the best policy, by what was measured, else by what was predicted; "
        "of each run the policy that it learned.",
        films=films,
        notes=[f"{source.name}: {source.no_film}." for source in sources if source.no_film],
    )
