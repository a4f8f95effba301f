"""Which episodes a filter keeps and which part of a split each goes to; no file is touched."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from pbvf_datasets.format.schema import check_dataset_id
from pbvf_offline.errors import UsageError, shorten
from pbvf_offline.seeding import Stream, check_seed, generator

Ranges = tuple[tuple[int, int], ...]
"""Whole numbers from 0 as pairs ``(first, last)``, both included."""
SplitBy = Literal["episode", "policy"]

_PART_NAMES: Final = {2: ("train", "test"), 3: ("train", "validation", "test")}
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class FilterSettings:
    """Which episodes to keep: those that pass every criterion given.

    The return is undiscounted and raw. Episodes that a step budget cut short have none, so
    every criterion on returns leaves them out.

    Attributes:
        min_return: Least return.
        max_return: Greatest return.
        top: Of the episodes that pass all else, this fraction with the highest returns: their
            number is rounded up, of equal returns the earlier go first.
        min_steps: Least number of steps.
        max_steps: Greatest number of steps.
        terminated: True: the task ended. False: a limit or a budget ended the episode.
        no_cut: Leave out episodes that a step budget cut short.
        episodes: Numbers of episodes, from 0.
        seeds: What the environment was reset with.

    Raises:
        UsageError: A value is out of range, or there is no criterion.
    """

    min_return: float | None = None
    max_return: float | None = None
    top: float | None = None
    min_steps: int | None = None
    max_steps: int | None = None
    terminated: bool | None = None
    no_cut: bool = False
    episodes: Ranges | None = None
    seeds: Ranges | None = None

    def __post_init__(self) -> None:
        for name in ("min_return", "max_return"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise UsageError(f"{value} is not a finite number", where=_option(name))
        if self.top is not None and not 0 < self.top <= 1:
            raise UsageError(f"{self.top} is not above 0 and at most 1", where="--top")
        for name in ("min_steps", "max_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{value} is not at least 1", where=_option(name))
        if all(getattr(self, field.name) == field.default for field in fields(self)):
            raise UsageError("there is nothing to filter by", remedy="give --min-return, --top, …")

    @property
    def by_return(self) -> bool:
        """Whether a criterion asks for returns."""
        return not (self.min_return is None and self.max_return is None and self.top is None)

    def to_dict(self) -> dict[str, Any]:
        """Return the criteria in JSON form."""
        return {
            field.name: ranges_text(value) if isinstance(value, tuple) else value
            for field in fields(self)
            for value in (getattr(self, field.name),)
        }


@dataclass(frozen=True)
class SplitSettings:
    """How to split: whole episodes, drawn by a seed.

    Attributes:
        fractions: Share of each part; they add up to 1.
        names: Name of each part, which becomes part of its id; empty: ``train`` and ``test``,
            ``train``, ``validation`` and ``test``, or ``part-1``, ``part-2``, …
        by: ``policy``: episodes that share a policy stay together, so no policy is in two parts.
        seed: Seed of the draw.

    Raises:
        UsageError: Fractions or names are not as they should be.
    """

    fractions: tuple[float, ...]
    names: tuple[str, ...] = ()
    by: SplitBy = "episode"
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        where = "--fractions"
        if len(self.fractions) < 2 or not all(0 < f < 1 for f in self.fractions):
            raise UsageError(
                f"{list(self.fractions)} are not two or more numbers between 0 and 1",
                where=where,
                remedy="give fractions such as 0.8,0.2",
            )
        if not math.isclose(math.fsum(self.fractions), 1, abs_tol=1e-9):
            raise UsageError(f"they add up to {math.fsum(self.fractions):.12g}, not 1", where=where)
        if not self.names:
            count = len(self.fractions)
            default = _PART_NAMES.get(count, tuple(f"part-{k + 1}" for k in range(count)))
            object.__setattr__(self, "names", default)
        if len(self.names) != len(self.fractions) or len(set(self.names)) != len(self.names):
            raise UsageError(
                f"{len(self.fractions)} different names are needed, not {list(self.names)}",
                where="--names",
            )

    def dataset_ids(self, dataset_id: str) -> tuple[str, ...]:
        """Return the id of each part: ``lab/x-v0`` becomes ``lab/x-train-v0``.

        Raises:
            UsageError: The id is malformed, or a name does not fit into one.
        """
        namespace, name, version = check_dataset_id(dataset_id)
        ids = tuple(
            f"{namespace}/{name}-{part}-v{version}".removeprefix("/") for part in self.names
        )
        for part in ids:
            check_dataset_id(part)
        return ids


def parse_ranges(text: str, where: str) -> Ranges:
    """Read numbers and ranges such as ``0-99,200``; sorted, and joined where they meet.

    >>> parse_ranges("7,0-2,3", "--episodes")
    ((0, 3), (7, 7))

    Raises:
        UsageError: It is something else.
    """
    pairs = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if _NUMBER.fullmatch(first) is None or _NUMBER.fullmatch(last) is None:
            raise UsageError(f"{shorten(text)!r} is not such as 0-99,200", where=where)
        if int(last) < int(first):
            raise UsageError(f"the range {part.strip()} ends before it begins", where=where)
        pairs.append((int(first), int(last)))
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(pairs):
        if joined and begin <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return tuple(joined)


def ranges_text(ranges: Ranges) -> str:
    """Return ranges in the form that :func:`parse_ranges` reads."""
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def filter_words(settings: FilterSettings) -> list[str]:
    """Return the options that ask for these criteria."""
    words: list[str] = []
    for name, value in settings.to_dict().items():
        if name == "terminated" and value is not None:
            words.append("--terminated" if value else "--truncated")
        elif value is True:
            words.append(_option(name))
        elif value is not None and value is not False:
            words += [_option(name), value if isinstance(value, str) else repr(value)]
    return words


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
            f"none of the {count:,} episodes of {name} passes",
            remedy="loosen what is asked for",
        )
    chosen: list[int] = rows.tolist()
    return chosen


def _inside(values: NDArray[np.int64], ranges: Ranges) -> NDArray[np.bool_]:
    inside = np.zeros(values.shape, np.bool_)
    for first, last in ranges:
        inside |= (values >= first) & (values <= last)
    return inside


def deal(facts: Facts, settings: SplitSettings, name: str) -> list[list[int]]:
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
            tied = f" in {len(groups):,} groups that share no policy"
            raise UsageError(
                f"the part {part_name} would be empty: {name} has {count:,} episodes"
                f"{tied if settings.by == 'policy' else ''}",
                where="--fractions",
            )
    return [sorted(part) for part in parts]


def _tied(policies: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return groups of episodes such that no policy acts in two groups, as many as there can be."""
    parent = list(range(len(policies)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first: dict[int, int] = {}
    for i, rows in enumerate(policies):
        for row in rows:
            a, b = root(first.setdefault(row, i)), root(i)
            parent[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for i in range(len(policies)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())
