"""Which episodes a filter keeps and which part of a split each goes to; no file is touched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.write.edit_settings import FilterSettings, Ranges, SplitSettings
from pbvf_offline.errors import UsageError, counted
from pbvf_offline.seeding import Stream, generator


@dataclass(frozen=True)
class Facts:
    """What is known of each of E episodes.

    Attributes:
        steps: (E,) number of steps.
        returns: (E,) undiscounted return, of cut episodes too.
        terminated: (E,) whether the task ended.
        cut: (E,) whether a step budget ended it.
        seeds: (E,) what the environment was reset with; -1 when unknown.
        policies: The rows, in no order, of the policies that acted in each.
    """

    steps: NDArray[np.int64]
    returns: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    cut: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    policies: list[list[int]]


def select(facts: Facts, settings: FilterSettings, name: str) -> list[int]:
    """Return the episodes that pass.

    Raises:
        UsageError: None does, or there are fewer than ``--episodes`` names.
    """
    count = len(facts.steps)
    keep = np.ones(count, np.bool_)
    if settings.episodes is not None:
        last = settings.episodes[-1][1]
        if last >= count:
            raise UsageError(
                f"there is no episode {last}: {name} has 0 to {count - 1}",
                where="--episodes",
            )
        keep &= _inside(np.arange(count), settings.episodes)
    if settings.seeds is not None:
        keep &= _inside(facts.seeds, settings.seeds)
    if settings.no_cut or settings.by_return:
        keep &= ~facts.cut
    for limit, compare, values in (
        (settings.min_steps, np.greater_equal, facts.steps),
        (settings.max_steps, np.less_equal, facts.steps),
        (settings.min_return, np.greater_equal, facts.returns),
        (settings.max_return, np.less_equal, facts.returns),
        (settings.terminated, np.equal, facts.terminated),
    ):
        if limit is not None:
            keep &= compare(values, limit)
    rows: NDArray[np.int64] = np.flatnonzero(keep)
    if settings.top is not None and rows.size:
        best = rows[np.argsort(-facts.returns[rows], kind="stable")]
        # Without the last digits, a tenth of 50 would be 6.
        rows = np.sort(best[: math.ceil(round(settings.top * rows.size, 9))])
    if not rows.size:
        raise UsageError(
            f"no episode of {name} passes, of {count:,}",
            remedy="ask for less",
        )
    chosen: list[int] = rows.tolist()
    return chosen


def _inside(values: NDArray[np.int64], ranges: Ranges) -> NDArray[np.bool_]:
    inside = np.zeros(values.shape, np.bool_)
    for first, last in ranges:
        inside |= (values >= first) & (values <= last)
    return inside


def assign_parts(facts: Facts, settings: SplitSettings, name: str) -> list[list[int]]:
    """Return the episodes of each part.

    Raises:
        UsageError: A part gets none.
    """
    count = len(facts.steps)
    exact = [fraction * count for fraction in settings.fractions]
    sizes = [math.floor(round(size, 9)) for size in exact]
    for k in sorted(range(len(sizes)), key=lambda k: sizes[k] - exact[k])[: count - sum(sizes)]:
        sizes[k] += 1
    groups = _tied(facts.policies) if settings.by == "policy" else [[i] for i in range(count)]
    order = generator(settings.seed, Stream.DATASET_SPLIT).permutation(len(groups)).tolist()
    parts: list[list[int]] = [[] for _ in sizes]
    # The largest first, each to the part that lacks most: the sizes come out as near as can be.
    for k in sorted(order, key=lambda k: -len(groups[k])):
        lacking = [size - len(part) for size, part in zip(sizes, parts, strict=True)]
        parts[lacking.index(max(lacking))] += groups[k]
    for part_name, part in zip(settings.names, parts, strict=True):
        if not part:
            tied = f" in {counted(len(groups), 'group')} that share no policy"
            raise UsageError(
                f"the part {part_name} would be empty: {name} has {counted(count, 'episode')}"
                f"{tied if settings.by == 'policy' else ''}",
                where="--fractions",
            )
    return [sorted(part) for part in parts]


def _tied(policies: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return groups of episodes such that no policy acts in two groups, as many as there can be."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(policies)
    episode = np.repeat(np.arange(count), [len(rows) for rows in policies])
    node = count + np.concatenate([np.array(rows, np.int64) for rows in policies])
    size = int(node.max()) + 1
    graph = coo_array((np.ones(len(node), np.bool_), (episode, node)), shape=(size, size))
    group = connected_components(graph, directed=False)[1][:count]
    ends = np.cumsum(np.bincount(group))
    order = np.argsort(group, kind="stable")
    return [part.tolist() for part in np.split(order, ends[:-1])]
