"""How far policies are from those that a critic was fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pbvf_offline.errors import IncompatibleError
from pbvf_report.content import Chart, Guide, Section, Series, Style, Table
from pbvf_report.sources import Source, in_data, measured

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pbvf_offline.fit.critic_file import CriticFile
    from pbvf_offline.policies.policy import Policies

_TEXT = (
    "The distance (Mahalanobis) of policies from the middle of those that a critic was fitted to. "
    "One unit holds 95 % of the latter; beyond it the critic guesses. Returns in the data are of "
    "the steps that a policy acted there; those measured are mostly of longer episodes, so they "
    "are shown apart."
)
_BLOCK = 512


def section(sources: Sequence[Source]) -> Section:
    """Return charts for each critic: its data, and the policies on the page that it can read."""
    charts: list[Chart] = []
    rows: list[tuple[str, ...]] = []
    for at, source in enumerate(sources):
        critic = source.critic
        if critic is None:
            continue
        context = critic.context
        known = _distances(critic, critic.policies(context.theta))
        series = []
        for other, grown in enumerate(sources):
            if grown.policies is None:
                continue
            try:
                found = _distances(critic, grown.policies.policies)
            except IncompatibleError:  # the critic does not read such policies
                continue
            returns = grown.of_each_policy("returns")
            if returns is not None:
                quantity = measured(grown, sources)
                series.append(_series("policies", other, found, returns, quantity, "stars"))
            else:
                rows.append((grown.name, source.name, f"{found.min():.3g}", f"{found.max():.3g}"))
        quantity = in_data(source, sources)
        charts.append(
            _chart(
                f"{source.title}: distance and return in its data",
                quantity,
                [_series("policies of its data", at, known, context.returns, quantity)],
            )
        )
        if series:
            charts.append(
                _chart(
                    f"{source.title}: distance and measured return",
                    measured(source, sources),
                    series,
                )
            )
    header = ("policies", "by", "least distance", "largest distance")
    tables = [Table("Policies without measured returns", header, rows)] if rows else []
    return Section("Trust region", _TEXT, charts, tables)


def _chart(title: str, returns: str, series: Sequence[Series]) -> Chart:
    return Chart(
        title,
        "distance (1: 95 % of the data's policies)",
        returns,
        series,
        unit="policy",
        guides=[Guide("x", "edge of the trust region", 1.0)],
    )


def _distances(critic: CriticFile, policies: Policies) -> NDArray[np.float64]:
    """Return the distance (K,) of policies.

    Raises:
        IncompatibleError: The critic does not read them.
    """
    import torch

    critic.critic_of(policies.spec)  # refuses those of other observations
    own = critic.normaliser
    theta = torch.from_numpy(policies.in_normaliser(own.mean, own.std))
    with torch.no_grad():
        blocks = [critic.distance(part, policies.spec) for part in torch.split(theta, _BLOCK)]
    return np.asarray(torch.cat(blocks))


def _series(
    name: str,
    at: int,
    distances: NDArray[np.float64],
    returns: NDArray[np.float64],
    quantity: str,
    style: Style = "points",
) -> Series:
    index = np.arange(len(distances))
    return Series(
        name, at, distances, returns, style, value=returns, quantity=quantity, index=index
    )
