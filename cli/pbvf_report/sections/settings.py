"""What each source holds and was made with, side by side by kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pbvf_offline.errors import shorten
from pbvf_report.content import Section, Table
from pbvf_report.sources import Source, is_digest

_MOST_ROWS, _LONGEST = 200, 500  # of a file that somebody made to be large
_ARCHITECTURES = ("policy", "hidden")
_KINDS = {
    "dataset": "Datasets",
    "run": "Training runs",
    "model": "Learned environments",
    "critic": "Critics",
    "policies": "Policies",
}


def section(sources: Sequence[Source]) -> Section:
    """Return for each kind of source a table of facts and one of settings."""
    tables = []
    for kind, title in _KINDS.items():
        some = [source for source in sources if source.kind == kind]
        names = [source.name for source in some]
        facts = [{k: v for k, v in source.facts if not is_digest(v)} for source in some]
        tables.append(_beside(title, names, facts))
        settings = [_flat(source.settings) for source in some]
        tables.append(_beside(f"{title}: settings", names, settings))
    return Section("Settings", tables=[table for table in tables if table.rows])


def _beside(title: str, names: Sequence[str], columns: Sequence[Mapping[str, str]]) -> Table:
    """Return a table with a column each; rows that differ are marked."""
    labels = list(dict.fromkeys(label for column in columns for label in column))[:_MOST_ROWS]
    rows = [
        [
            shorten(cell, _LONGEST)
            for cell in (label, *(column.get(label, "-") for column in columns))
        ]
        for label in labels
    ]
    marked = frozenset(k for k, row in enumerate(rows) if len(set(row[1:])) > 1)
    return Table(title, ["what", *names], rows, marked)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings as names and texts."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name} ")
        elif name in _ARCHITECTURES and value == []:
            flat[f"{prefix}{name}"] = "linear"
        elif value not in (None, []) and name != "env_kwargs":  # a digest; arguments are a fact
            text = value if isinstance(value, str) else json.dumps(value)
            flat[f"{prefix}{name}".replace("_", "-")] = text
    return flat
