"""Observation statistics over raw observations: update, freeze and apply are three things."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DivergedError

MIN_STD = 1e-6
_BLOCK_ROWS = 512


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
    for at in range(0, len(rows), _BLOCK_ROWS):
        statistics.update(rows[at : at + _BLOCK_ROWS])
    return statistics.mean, statistics.variance


@dataclass
class RunningStatistics:
    """Mean and variance of raw observations, merged batch by batch (Chan et al., 1983).

    Attributes:
        obs_dim: Number of observation dimensions.
        count: Number of observations seen.
    """

    obs_dim: int
    count: int = 0
    _mean: NDArray[np.float64] = field(init=False, repr=False)
    _m2: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._mean = np.zeros(self.obs_dim)
        self._m2 = np.zeros(self.obs_dim)

    def update(self, obs: NDArray[Any]) -> None:
        """Take in a batch of raw observations (n, obs_dim)."""
        batch = np.asarray(obs, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # freeze() refuses what overflowed
            self._merge(batch)

    def _merge(self, batch: NDArray[np.float64]) -> None:
        n = batch.shape[0]
        if n == 0:
            return
        mean = batch.mean(axis=0)
        delta = mean - self._mean
        total = self.count + n
        self._m2 += np.square(batch - mean).sum(axis=0) + delta**2 * (self.count * n / total)
        self._mean += delta * (n / total)
        self.count = total

    @classmethod
    def restored(
        cls, count: int, mean: NDArray[np.float64], squares: NDArray[np.float64]
    ) -> RunningStatistics:
        """Return statistics as :attr:`count`, :attr:`mean` and :attr:`squares` gave them."""
        statistics = cls(len(mean), count)
        statistics._mean, statistics._m2 = mean.copy(), squares.copy()
        return statistics

    @property
    def squares(self) -> NDArray[np.float64]:
        """(obs_dim,) sum of squared distances from the mean."""
        return self._m2.copy()

    @property
    def mean(self) -> NDArray[np.float64]:
        """(obs_dim,) mean of what was seen."""
        return self._mean.copy()

    @property
    def variance(self) -> NDArray[np.float64]:
        """(obs_dim,) population variance of what was seen."""
        variance: NDArray[np.float64] = self._m2 / max(self.count, 1)
        return variance

    def freeze(self) -> Normaliser:
        """Return the statistics as they are now: population standard deviation.

        A standard deviation under 1e-6 becomes 1, so that a constant dimension cannot
        explode; without any observation the result changes nothing.

        Raises:
            DivergedError: The observations are so large that their spread is not finite.
        """
        if self.count == 0:
            return Normaliser.identity(self.obs_dim)
        std = np.sqrt(self._m2 / self.count)
        if not (np.all(np.isfinite(self._mean)) and np.all(np.isfinite(std))):
            raise DivergedError(
                "observations are so large that their mean or spread is infinite",
                remedy="scale them in the environment, or use --no-normalize",
            )
        return Normaliser(self._mean.copy(), np.where(std < MIN_STD, 1.0, std))
