"""The sections of a page, one module each.

A new one is a module with a function ``section`` that takes the sources, and its name in
:data:`SECTIONS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

from pbvf_report.content import Section
from pbvf_report.sources import Source

SECTIONS: Final = (
    "returns",
    "theta",
    "films",
    "predictions",
    "distances",
    "checks",
    "curves",
    "settings",
    "lineage",
)
"""Names of modules, in the order of the page."""


def sections(sources: Sequence[Source]) -> list[Section]:
    """Return the sections that have something to show of the sources."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in SECTIONS]
    return [found for module in modules if (found := module.section(sources))]
