"""What several seeds of one experiment, or several policies, say together.

Statistics and intervals are those of Agarwal et al., *Deep Reinforcement Learning at the Edge of
the Statistical Precipice*, 2021, and of its library rliable, for one task: returns of different
environments have no common scale here, so that each is a stratum of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 9_999
FEWEST: Final = 5
"""Of fewer values a bootstrap interval is hardly more than their range."""
_BATCH: Final = 500  # resamples in memory at once


def interquartile_mean(values: NDArray[np.float64], axis: int = 0) -> NDArray[np.float64]:
    """Return the mean without the lowest and the highest quarter of the n values on an axis.

    ``n // 4`` values are left out at each end, so that below four it is the mean.

    >>> float(interquartile_mean(np.array([9.0, 1.0, 2.0, 3.0, 100.0])))
    4.666666666666667
    """
    from scipy.stats import trim_mean

    trimmed: NDArray[np.float64] = trim_mean(values, 0.25, axis=axis)
    return trimmed


STATISTICS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "iqm": ("interquartile mean", interquartile_mean),
    "mean": ("mean", np.mean),
    "median": ("median", np.median),
}
"""By the names of ``--statistic``: in words, and a function of values and their axis."""


def probability_of_improvement(
    first: NDArray[np.float64], second: NDArray[np.float64], axis: int = 0
) -> NDArray[np.float64]:
    """Return the share of pairs in which a value of the first is above one of the second.

    Equal values count half: this is the statistic of Mann and Whitney over the number of pairs.

    >>> float(probability_of_improvement(np.array([1.0, 3.0]), np.array([1.0, 2.0])))
    0.625
    """
    from scipy.stats import rankdata

    n, m = first.shape[axis], second.shape[axis]
    ranks = rankdata(np.concatenate([first, second], axis=axis), axis=axis)
    above = ranks.take(np.arange(n), axis=axis).sum(axis=axis) - n * (n + 1) / 2
    share: NDArray[np.float64] = above / (n * m)
    return share


@dataclass(frozen=True)
class Estimate:
    """A statistic of samples, and how sure it is; arrays where it is one of several points.

    Attributes:
        value: The statistic.
        low: Lower end of its 95 % bootstrap interval; None where a sample has fewer than five
            values.
        high: Its upper end.
    """

    value: NDArray[np.float64]
    low: NDArray[np.float64] | None
    high: NDArray[np.float64] | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            name: None if part is None else np.asarray(part).tolist()
            for name, part in vars(self).items()
        }


def estimate(statistic: Callable[..., Any], *samples: NDArray[np.float64]) -> Estimate:
    """Return a statistic of independent samples, each (n, …) and in any order.

    The interval is the percentile one: it stays within the values and is defined for equal
    ones. Its draws have a fixed seed, so equal values give equal intervals. Of samples with
    more axes it is that of each point alone.

    Args:
        statistic: A function of the samples and of ``axis``.
        samples: Finite numbers, runs or policies on the first axis.
    """
    ordered = tuple(np.sort(np.asarray(sample, np.float64), axis=0) for sample in samples)
    value = np.asarray(statistic(*ordered, axis=0))
    if min(map(len, ordered)) < FEWEST:
        return Estimate(value, None, None)
    from scipy.stats import bootstrap

    found = bootstrap(
        ordered,
        statistic,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        vectorized=True,
        axis=0,
        confidence_level=CONFIDENCE,
        method="percentile",
        random_state=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(value, np.asarray(found.low), np.asarray(found.high))


@dataclass(frozen=True)
class Interval:
    """A mean over runs and how sure it is.

    Attributes:
        values: The values, in the order given.
        mean: Mean.
        std: Sample standard deviation (divided by n - 1), an estimate of the spread over all
            seeds; the paper does not say which it prints, and over its 20 seeds they differ
            by 2.6 %. None below two runs.
        low: Lower end of the 95 % bootstrap interval of the mean; None below five runs.
        high: Its upper end.
    """

    values: tuple[float, ...]
    mean: float
    std: float | None
    low: float | None
    high: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def interval(values: Sequence[float]) -> Interval:
    """Return mean, spread and bootstrap interval of one number a run, in any order.

    >>> interval([3.0, 1.0])
    Interval(values=(3.0, 1.0), mean=2.0, std=1.4142135623730951, low=None, high=None)

    Raises:
        ValueError: There are no values, or one of them is not finite.
    """
    if not values or not all(math.isfinite(v) for v in values):
        raise ValueError(f"{list(values)} are not one or more finite numbers")
    sample = np.sort(np.array(values, np.float64))
    std = float(sample.std(ddof=1)) if len(sample) > 1 else None
    found = estimate(np.mean, sample).to_dict()
    given = tuple(float(v) for v in values)
    return Interval(given, found["value"], std, found["low"], found["high"])
