"""Learning curves in groups with equal settings, and these in panels of one environment each.

Runs with equal settings but for the seed are one group, and one line of a figure. Each environment
has a panel of its own, since returns of different environments have no common scale.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import IncompatibleError, UsageError, shorten
from pbvf_offline.io.strict_json import canonical_json
from pbvf_runs.compare.learning_curves import Curve
from pbvf_runs.compare.statistics import STATISTICS, Estimate, estimate

_POINTS: Final = 100  # of a line through the returns of single episodes


@dataclass(frozen=True)
class Group:
    """Curves that differ in nothing but the seed, over the steps that all of them have.

    Attributes:
        label: What tells it from the other groups of its panel; "" where there is no other.
        differs: All settings in which these differ, with its values.
        settings: All settings.
        curves: By their seeds; n of them.
        steps: (P,) steps.
        values: (n, P) values of each curve there.
        estimate: The statistic over the curves at each step.
    """

    label: str
    differs: Mapping[str, Any]
    settings: Mapping[str, Any]
    curves: tuple[Curve, ...]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    estimate: Estimate


@dataclass(frozen=True)
class Panel:
    """The groups of one environment, or of one command that fits."""

    title: str
    groups: tuple[Group, ...]


def panels(curves: Sequence[Curve], metric: str, statistic: str) -> list[Panel]:
    """Put curves that have points into groups, and these into panels, as they first appear.

    Args:
        curves: Curves of one metric.
        metric: A name of :data:`pbvf_runs.compare.learning_curves.METRICS`.
        statistic: A name of :data:`pbvf_runs.compare.statistics.STATISTICS`.

    Raises:
        UsageError: The same seed is in a group twice, which would make it look surer than it is.
        IncompatibleError: Curves of one group have no step in common.
    """
    places: dict[str, dict[bytes, list[Curve]]] = {}
    for curve in curves:
        groups = places.setdefault(curve.place, {})
        groups.setdefault(_key(curve.settings, sorted(curve.settings)), []).append(curve)
    return [
        Panel(place, _groups(list(groups.values()), metric, statistic))
        for place, groups in places.items()
    ]


def _groups(groups: Sequence[list[Curve]], metric: str, statistic: str) -> tuple[Group, ...]:
    settings = [curves[0].settings for curves in groups]
    differing = [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if len({_key(each, [name]) for each in settings}) > 1
    ]
    chosen = _telling(settings, differing)
    function = STATISTICS[statistic][1]
    found = []
    for each, curves in zip(settings, groups, strict=True):
        ordered = tuple(sorted(curves, key=lambda curve: curve.seed))
        _refuse_twins(ordered)
        steps, values = _common(ordered, metric)
        found.append(
            Group(
                ", ".join(_words(name, each.get(name)) for name in chosen),
                {name: each.get(name) for name in differing},
                each,
                ordered,
                steps,
                values,
                estimate(function, values),
            )
        )
    return tuple(found)


def _telling(settings: Sequence[Mapping[str, Any]], differing: Sequence[str]) -> list[str]:
    """Return the first few settings that tell all groups apart."""
    chosen: list[str] = []
    told = 1
    for name in differing:
        with_it = len({_key(each, [*chosen, name]) for each in settings})
        if with_it > told:
            chosen, told = [*chosen, name], with_it
    return chosen


def _key(settings: Mapping[str, Any], names: Sequence[str]) -> bytes:
    """Return what is equal where settings are; a missing one is one that is None."""
    return canonical_json({n: settings[n] for n in names if settings.get(n) is not None})


def _words(name: str, value: Any) -> str:
    """Return a setting for a label; a critic's name says itself what it is."""
    if isinstance(value, bool):
        return name if value else f"not {name}"
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if value is None:
        return "fresh policies" if name == "base" else f"no {name}"
    text = shorten(value, 30)
    return text if name == "critic" else f"{name} {text}"


def _refuse_twins(curves: Sequence[Curve]) -> None:
    for one, other in itertools.pairwise(curves):
        if one.seed == other.seed:
            raise UsageError(
                f"is the run of {one.folder} again: settings and seed {one.seed} are the same",
                where=other.folder,
                remedy="leave one of them out",
            )


def _common(curves: Sequence[Curve], metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the steps (P,) that all curves of a group have, and their values (n, P) there."""
    if metric == "perturbed-return":  # episodes end at other steps in each
        until = min(curve.reached for curve in curves)
        begin = max(int(curve.steps[0]) for curve in curves)
        steps = np.unique(until * np.arange(1, _POINTS + 1) // _POINTS)
        steps = steps[steps >= begin]
    else:
        all_steps: Callable[[Any, Any], Any] = np.intersect1d
        steps = functools.reduce(all_steps, (curve.steps for curve in curves))
    if not len(steps):
        raise IncompatibleError(
            f"has no step in common with {curves[0].folder}, where both were measured",
            where=curves[-1].folder,
            remedy="draw them apart",
        )
    rows = [c.values[np.searchsorted(c.steps, steps, side="right") - 1] for c in curves]
    return steps, np.stack(rows)
