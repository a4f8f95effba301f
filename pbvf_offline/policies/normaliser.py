"""Observation statistics over raw observations: update, freeze and apply are three things."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DivergedError
from pbvf_offline.io.mapped import release

MIN_STD = 1e-6
SMALLEST_STD = float(np.finfo(np.float64).tiny)  # below it 1 / std is infinite
NOT_POSITIVE = f"not positive, or below {SMALLEST_STD:.1e}, which nothing can be divided by"
_BLOCK_ROWS = 512
BLOCK_NUMBERS = 2**20


@dataclass(frozen=True)
class Normaliser:
    """Frozen statistics: the network sees ``(obs - mean) / std``.

    Attributes:
        mean: (obs_dim,) float64, in the observation's unit.
        std: (obs_dim,) float64, at least 1e-6, in the observation's unit.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]

    @classmethod
    def identity(cls, obs_dim: int) -> Normaliser:
        """Return the normaliser that changes nothing."""
        return cls(np.zeros(obs_dim), np.ones(obs_dim))

    def apply(self, obs: NDArray[Any]) -> NDArray[np.float64]:
        """Return normalised observations (…, obs_dim)."""
        return (np.asarray(obs, np.float64) - self.mean) / self.std


def column_moments(rows: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and population variance (D,) of the columns of (n, D), in float64.

    Block by block: a float64 copy of ten thousand large policies would be as big as all else.
    """
    statistics = RunningStatistics(rows.shape[1])
    statistics.update_in_blocks(rows)
    return statistics.mean, statistics.variance


def _column_sum(
    rows: NDArray[Any], function: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the sum (D,) of a function of rows (n, D), in one order however many there are.

    A single column is added up in another order, and so at once.
    """
    at_once = len(rows) if rows.shape[1] == 1 else max(1, BLOCK_NUMBERS // rows.shape[1])
    total: NDArray[np.float64] = function(np.asarray(rows[:at_once], np.float64)).sum(axis=0)
    for at in range(at_once, len(rows), at_once):
        values = function(np.asarray(rows[at : at + at_once], np.float64))
        total = np.concatenate([total[None], values]).sum(axis=0)
        release(rows[at - at_once : at + at_once])
    return total


class RunningStatistics:
    """Mean and variance of raw observations, merged batch by batch (Chan et al., 1983).

    Args:
        obs_dim: Number of observation dimensions.

    Attributes:
        count: Number of observations seen.
        mean: (obs_dim,) of what was seen.
        squares: (obs_dim,) sum of squared distances from the mean.
    """

    def __init__(self, obs_dim: int) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(obs_dim)
        self.squares: NDArray[np.float64] = np.zeros(obs_dim)

    def update(self, obs: NDArray[Any]) -> None:
        """Take in a batch of raw observations (n, obs_dim), which may be larger than memory."""
        n = obs.shape[0]
        if n == 0:
            return
        with np.errstate(over="ignore", invalid="ignore"):  # freeze() refuses what overflowed
            mean = _column_sum(obs, lambda rows: rows) / n
            delta = mean - self.mean
            total = self.count + n
            within = _column_sum(obs, lambda rows: np.square(rows - mean))
            # New arrays: whoever has the old ones keeps what they say.
            self.squares = self.squares + (within + delta**2 * (self.count * n / total))
            self.mean = self.mean + delta * (n / total)
        self.count = total

    def update_in_blocks(self, rows: NDArray[Any]) -> None:
        """Take in 512 rows at a time, so that all may come in multiples of that."""
        for at in range(0, len(rows), _BLOCK_ROWS):
            self.update(rows[at : at + _BLOCK_ROWS])

    @property
    def variance(self) -> NDArray[np.float64]:
        """(obs_dim,) population variance of what was seen."""
        variance: NDArray[np.float64] = self.squares / max(self.count, 1)
        return variance

    def freeze(self) -> Normaliser:
        """Return the statistics as they are now: population standard deviation.

        A standard deviation under 1e-6 becomes 1, so that a constant dimension cannot
        explode; without any observation the result changes nothing.

        Raises:
            DivergedError: The observations are so large that their spread is not finite.
        """
        if self.count == 0:
            return Normaliser.identity(len(self.mean))
        std = np.sqrt(self.variance)
        if not (np.all(np.isfinite(self.mean)) and np.all(np.isfinite(std))):
            raise DivergedError(
                "observations are so large that their mean or spread is infinite",
                remedy="scale them in the environment, or use --no-normalize",
            )
        return Normaliser(self.mean, np.where(std < MIN_STD, 1.0, std))
