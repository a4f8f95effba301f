"""Where policies lie in parameter space: its two main directions, and ascents through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import IncompatibleError
from pbvf_offline.io.formats import each_digest
from pbvf_offline.rollout.targets import policy_returns
from pbvf_report.content import Chart, Section, Series, Style, spread
from pbvf_report.sources import Source, in_data, measured, place_of

if TYPE_CHECKING:
    from pbvf_offline.policies.policy import Policies
    from pbvf_offline.policies.spec import PolicySpec

_MOST_FITTED = 1_000  # policies that the directions are computed of
_NUMBERS = 2**24  # of all their parameters: 128 MB
_TEXT = (
    "Parameters of policies of one architecture, all expressed in one normaliser, along the two "
    "directions in which those of the data differ most (principal components). A colour is the "
    "return that the scale names; that in the data is over the steps that a policy acted there. "
    "Returns of another kind have no colour, and are said beside a point. A line is the "
    "way that a policy climbed."
)
_STARS = " Stars are policies of a policies file."


@dataclass(frozen=True)
class _Cloud:
    """Policies of a source.

    Attributes:
        name: What they are.
        source: Number of the source.
        policies: The policies.
        value: (K,) their returns, as far as they are known.
        quantity: What those are, with their unit.
        of_data: Whether they acted in data; the others were made.
        steps: Gradient steps of each, where they are the way of one policy.
        policy: Which one that is.
    """

    name: str
    source: int
    policies: Policies
    value: NDArray[np.float64] | None
    quantity: str
    of_data: bool = True
    steps: NDArray[np.int64] | None = None
    policy: int = 0


def section(sources: Sequence[Source]) -> Section:
    """Return a chart for each architecture and environment."""
    alike: dict[tuple[PolicySpec, str], list[_Cloud]] = {}
    for cloud in _clouds(sources):
        place = place_of(sources[cloud.source], sources)
        alike.setdefault((cloud.policies.spec, place), []).append(cloud)
    charts, notes = [], [f"{s.name}: {s.no_ascent}." for s in sources if s.no_ascent]
    for (spec, place), clouds in alike.items():
        title = f"{_words(spec)} policies{place} of {spec.size:,} parameters"
        try:
            chart = _chart(title, clouds)
        except IncompatibleError as error:
            notes.append(f"{title}: {error.what}")
            continue
        if chart is not None:
            charts.append(chart)
    stars = any(series.style == "stars" for chart in charts for series in chart.series)
    return Section("Parameters", _TEXT + (_STARS if stars else ""), charts, notes=notes)


def _clouds(sources: Sequence[Source]) -> list[_Cloud]:
    shown = {digest for s in sources if s.data is not None for digest in s.digests}
    clouds = []
    for at, source in enumerate(sources):
        if (data := source.data) is not None:
            if data.tagged:
                returns = policy_returns(data, data.rewards)
                quantity = in_data(source, sources)
                clouds.append(_Cloud("policies of the data", at, data.policies, returns, quantity))
        elif (critic := source.critic) is not None and not shown.intersection(
            each_digest(critic.context.dataset)
        ):
            context = critic.context
            known = critic.policies(context.theta)
            quantity = in_data(source, sources)
            clouds.append(_Cloud("policies of its data", at, known, context.returns, quantity))
        elif source.policies is not None:
            found, quantity = source.of_each_policy("returns"), measured(source, sources)
            held = source.policies.policies
            clouds.append(_Cloud("policies", at, held, found, quantity, of_data=False))
            clouds += _ways(at, source)
    return clouds


def _ways(at: int, source: Source) -> list[_Cloud]:
    """Return the way of each policy through the steps of its ascent."""
    from pbvf_offline.policies.files import concatenate

    steps = np.array(sorted(source.ascent), np.int64)
    if not steps.size:
        return []
    points = [source.ascent[step] for step in steps.tolist()]
    return [
        _Cloud("ways of policies", at, concatenate([p.select([k]) for p in points]), None, "",
               of_data=False, steps=steps, policy=k)
        for k in range(len(points[0]))
    ]  # fmt: skip


def _chart(title: str, clouds: Sequence[_Cloud]) -> Chart | None:
    """Return the chart of one architecture; None where there is nothing to tell apart.

    Raises:
        IncompatibleError: Policies cannot be expressed in one normaliser.
    """
    first = clouds[0].policies
    mean, std = first.obs_mean[0], first.obs_std[0]
    thetas = [cloud.policies.in_normaliser(mean, std) for cloud in clouds]
    basis = [t for t, cloud in zip(thetas, clouds, strict=True) if cloud.of_data] or thetas
    found = _directions(np.concatenate(basis))
    if found is None:
        return None
    center, axes, shares = found
    with_returns = [cloud for cloud in clouds if cloud.value is not None]
    coloured = [cloud for cloud in with_returns if cloud.of_data] or with_returns
    # Raw returns before those without the survival bonus, whose name is longer.
    scale = min((cloud.quantity for cloud in coloured), key=len, default=None)
    of_made: Style = "stars" if any(cloud.of_data for cloud in coloured) else "points"
    return Chart(
        title,
        f"first principal component ({shares[0]:.0%} of the variance)",
        f"second principal component ({shares[1]:.0%} of the variance)",
        [_series(c, (t - center) @ axes, of_made) for c, t in zip(clouds, thetas, strict=True)],
        colour=scale,
        unit="policy",
    )


def _words(spec: PolicySpec) -> str:
    return f"{'Stochastic' if spec.stochastic else 'Deterministic'} {spec.arch}"


def _series(cloud: _Cloud, places: NDArray[np.float64], of_made: Style) -> Series:
    """Return the points of a cloud; those whose returns are what the scale names have a colour."""
    x, y = places.T
    if cloud.steps is not None:
        index, more = np.full(len(x), cloud.policy), {"gradient step": cloud.steps}
        return Series(cloud.name, cloud.source, x, y, "line", index=index, more=more)
    index = np.arange(len(x))
    style: Style = "points" if cloud.of_data else of_made
    quantity = None if cloud.value is None else cloud.quantity
    return Series(
        cloud.name, cloud.source, x, y, style, value=cloud.value, quantity=quantity, index=index
    )


def _directions(
    theta: NDArray[np.float32],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]] | None:
    """Return center (D,), the two main directions (D, 2) and their shares of the variance (2,).

    None where fewer than three policies differ, or in fewer than two directions.
    """
    norms = np.linalg.norm(theta.astype(np.float64), axis=1)
    most = max(3, min(_MOST_FITTED, _NUMBERS // theta.shape[1]))
    some = theta[spread(norms, most)].astype(np.float64)
    center = some.mean(axis=0)
    _, sizes, rows = np.linalg.svd(some - center, full_matrices=False)
    if len(sizes) < 2 or sizes[1] <= 1e-12 * max(1.0, float(np.abs(some).max())):
        return None
    axes = rows[:2].T
    # The sign of a direction is arbitrary: its largest entry is positive.
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    return center, axes, np.square(sizes[:2]) / np.square(sizes).sum()
