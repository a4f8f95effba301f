"""What a well-formed dataset is, beyond its episodes: counts that agree with what is there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pbvf_datasets.format.episode_rules import Problem
from pbvf_datasets.format.schema import METADATA_FILE
from pbvf_offline.errors import DamagedError, shorten


def episodes_counted(numbers: Sequence[int], claimed: int) -> Iterator[Problem]:
    """The file holds episode 0, 1, … as many as the metadata say, and at least one.

    Args:
        numbers: Of the episodes that are there, ascending.
        claimed: ``total_episodes`` of the metadata.
    """
    says = f"there are {len(numbers)}, but {METADATA_FILE} says total_episodes {claimed}"
    counted = sum(number < claimed for number in numbers)
    if counted < claimed:
        gap = next((i for i, number in enumerate(numbers) if i != number), len(numbers))
        yield Problem(DamagedError, f"episode_{gap}", f"the episode is missing: {says}")
    if counted < len(numbers):
        yield Problem(
            DamagedError, f"episode_{numbers[counted]}", f"the episode is not counted: {says}"
        )
    if not numbers and claimed == 0:
        yield Problem(DamagedError, "", "it holds no episode")


def steps_counted(steps: int, claimed: int) -> Iterator[Problem]:
    """The episodes have as many steps in all as the metadata say."""
    if steps != claimed:
        yield Problem(
            DamagedError,
            "",
            f"its total_steps is {claimed:,}, but the episodes have {steps:,} steps",
        )


@dataclass(frozen=True)
class Counted:
    """What a manifest's ``stats`` must agree with.

    Attributes:
        numbers: Integers by their names in ``stats``.
        lengths: Steps of each episode.
        returns: Returns of the whole episodes, in the reward's unit.
        largest: The largest sum of absolute rewards: the scale of rounding errors of a return.
    """

    numbers: Mapping[str, int]
    lengths: Sequence[int]
    returns: Sequence[float]
    largest: float


def stats_true(stats: Mapping[str, Any], counted: Counted) -> Iterator[Problem]:
    """Numbers in a manifest are those of the data; ones that it does not give are not asked for."""
    extremes = {"min": min(counted.lengths), "max": max(counted.lengths)}
    for name, there in counted.numbers.items():
        if name in stats and stats[name] != there:
            yield _untrue(name, repr(stats[name]), f"{there:,}")
    says = stats.get("length")
    if says is not None and not (
        isinstance(says, dict) and all(says.get(key) == there for key, there in extremes.items())
    ):
        yield _untrue("length", shorten(says, 80), str(extremes))
    says, returns = stats["return"], _return_stats(counted.returns)
    # Sums of rewards differ in their last digits with the order of summation.
    if (says is None) != (returns is None) or (
        says is not None
        and returns is not None
        and any(abs(says[key] - returns[key]) > 1e-9 * counted.largest for key in returns)
    ):
        yield _untrue("return", str(says), str(returns))


def _untrue(name: str, says: str, there: str) -> Problem:
    return Problem(DamagedError, "", f"its stats say {name} {says}; the data have {there}")


def _return_stats(returns: Sequence[float]) -> dict[str, float] | None:
    if not returns:
        return None
    mean = math.fsum(r / len(returns) for r in returns) if all(map(math.isfinite, returns)) else 0.0
    return {"mean": mean, "min": min(returns), "max": max(returns)}
