"""Returns: of the episodes of datasets and runs, and of the policies of policies files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from pbvf_report.content import Chart, Section, Series
from pbvf_report.sources import Source, measured, place_of

_MEASURED = {
    "returns": "measured",
    "cautious": "cautious, imagined",
    "closest": "nearest of the data",
}


def section(sources: Sequence[Source]) -> Section:
    """Return the charts of returns: returns of different environments have no common scale."""
    charts = []
    for place in dict.fromkeys(place_of(source, sources) for source in sources):
        some = [k for k, source in enumerate(sources) if place_of(source, sources) == place]
        charts += [*_of_episodes(place, some, sources), *_of_policies(place, some, sources)]
    return Section(
        "Returns",
        "Returns are undiscounted. Episodes that a step budget cut short have none and are left "
        "out. Returns of policies are those that their files hold; the axis says whether they "
        "were measured in the environment or imagined in a learned one.",
        charts,
    )


def _of_episodes(place: str, some: Sequence[int], sources: Sequence[Source]) -> list[Chart]:
    axis = f"return of an episode{place} (sum of rewards)"
    episodes = []
    for at in some:
        data = sources[at].data
        if data is not None and not data.cut.all():
            whole = ~data.cut
            rows, returns = np.flatnonzero(whole), data.returns()[whole]
            steps = {"steps": data.lengths[whole]}
            episodes.append(Series("episodes", at, rows, returns, value=returns, quantity=axis,
                                   index=rows, more=steps))  # fmt: skip
    if not episodes:
        return []
    counted = [dataclasses.replace(s, x=s.y, style="histogram") for s in episodes]
    lengths = [dataclasses.replace(s, y=s.more["steps"], more={}) for s in episodes]
    charts = [
        Chart(f"Episodes{place} in the order of collection", "episode (number)", axis, episodes,
              unit="episode"),
        Chart(f"How many episodes{place} have which return", axis, "episodes (count)", counted,
              unit="episode"),
    ]  # fmt: skip
    if len({int(length) for s in lengths for length in s.y}) > 1:
        title = f"Lengths of episodes{place}"
        charts.append(Chart(title, "episode (number)", "length (steps)", lengths, unit="episode"))
    return charts


def _of_policies(place: str, some: Sequence[int], sources: Sequence[Source]) -> list[Chart]:
    policies = []
    for at in some:
        quantities = {
            "returns": measured(sources[at], sources),
            "cautious": f"cautious imagined return{place} (sum of rewards)",
            "closest": f"measured mean return{place} of the nearest policy of the data "
            "(sum of rewards)",
        }
        for name, words in _MEASURED.items():
            values = sources[at].of_each_policy(name)
            if values is not None:
                rows = np.arange(len(values))
                policies.append(Series(words, at, rows, values, value=values,
                                       quantity=quantities[name], index=rows))  # fmt: skip
    if not policies:
        return []
    names = ", ".join(dict.fromkeys(series.name for series in policies))
    return [
        Chart(f"Policies{place}", "policy (row in its file)", f"mean return: {names}", policies,
              unit="policy")
    ]  # fmt: skip
