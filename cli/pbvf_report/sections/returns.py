"""Returns: of the episodes of datasets, and of the policies of policies files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pbvf_report.content import Chart, Section, Series
from pbvf_report.sources import Source

_MEASURED = {
    "returns": "measured",
    "cautious": "cautious, imagined",
    "closest": "nearest of the data",
}


def section(sources: Sequence[Source]) -> Section:
    """Return the charts of returns."""
    episodes, policies = [], []
    for at, source in enumerate(sources):
        if source.data is not None:
            whole = ~source.data.cut
            returns = source.data.returns()[whole]
            steps = {"steps": source.data.lengths[whole]}
            rows = np.flatnonzero(whole)
            episodes.append(
                Series("episodes", at, rows, returns, value=returns, index=rows, more=steps)
            )
        for name, words in _MEASURED.items():
            values = source.of_each_policy(name)
            if values is not None:
                rows = np.arange(len(values))
                policies.append(Series(words, at, rows, values, value=values, index=rows))
    charts = []
    if any(len(series.x) for series in episodes):
        axis = "return of the episode (sum of rewards)"
        counted = [dataclasses.replace(s, x=s.y, style="histogram") for s in episodes]
        charts += [
            Chart(
                "Episodes in the order of collection",
                "episode (number)",
                axis,
                episodes,
                unit="episode",
            ),
            Chart(
                "How many episodes have which return", axis, "episodes (count)", counted,
                unit="episode",
            ),
        ]  # fmt: skip
    if policies:
        charts.append(
            Chart(
                "Policies",
                "policy (row in its file)",
                f"mean return: {', '.join(dict.fromkeys(series.name for series in policies))}",
                policies,
                unit="policy",
            )
        )
    return Section(
        "Returns",
        "Returns are undiscounted. Episodes that a step budget cut short have none and are left "
        "out. What was measured of policies is as their file says.",
        charts,
    )
