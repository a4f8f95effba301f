"""What a well-formed dataset is, beyond its episodes: counts that agree with what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pbvf_datasets.format.episode_rules import Problem
from pbvf_datasets.format.schema import METADATA_FILE
from pbvf_datasets.format.statistics import Tally
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


def stats_true(stats: Mapping[str, Any], tally: Tally) -> Iterator[Problem]:
    """Numbers in a manifest are those of the data; ones that it does not give are not asked for."""
    for name, there in tally.stats().items():
        says = stats.get(name, there)
        # Sums of rewards differ in their last digits with the order of summation.
        tolerance = 1e-9 * tally.largest if name == "return" else 0.0
        if not _agree(says, there, tolerance):
            text = f"{there:,}" if type(there) is int else str(there)
            yield Problem(
                DamagedError,
                "",
                f"its stats say {name} {shorten(says, 80)}; the data have {text}",
            )


def _agree(says: Any, there: Any, tolerance: float) -> bool:
    if isinstance(there, dict):
        return isinstance(says, dict) and all(
            _agree(says.get(key), value, tolerance) for key, value in there.items()
        )
    if type(says) not in (int, float) or there is None:
        return says is there
    return bool(says == there or abs(says - there) <= tolerance)
