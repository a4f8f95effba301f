"""How good estimates of returns are: the metrics of the DOPE benchmark.

Fu et al., *Benchmarks for Deep Off-Policy Evaluation*, 2021. Values are normalised as there: the
worst policy of the set that is evaluated has the true value 0, the best one 1. Unlike there,
estimates above 2 are not cut to 2, and numbers are of the set itself, not of bootstraps of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError

_SHORTLIST = 5


@dataclass(frozen=True)
class EstimateMetrics:
    """Estimates of the returns of K policies beside the true ones.

    Attributes:
        error: Mean absolute error, in units of reward.
        absolute_error: The same in units of the range of the true returns; None where all
            policies are equally good.
        rank_correlation: Spearman's; None where either side is constant.
        regret_at_1: How far the true return of the policy with the highest estimate is below
            that of the best one, in units of the range; None where all are equally good.
        regret_at_5: The same of the best of the five with the highest estimates.
    """

    error: float
    absolute_error: float | None
    rank_correlation: float | None
    regret_at_1: float | None
    regret_at_5: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def estimate_metrics(true: NDArray[np.float64], estimated: NDArray[np.float64]) -> EstimateMetrics:
    """Compare estimated with true returns.

    Of equal estimates the one that comes first counts as the higher one.

    Args:
        true: (K,) true returns.
        estimated: (K,) estimates of them.

    Raises:
        UsageError: There is no policy, or the two are not of the same policies.
    """
    if true.ndim != 1 or len(true) == 0 or true.shape != estimated.shape:
        raise UsageError(f"returns {true.shape} and estimates {estimated.shape} do not go together")
    error = float(np.abs(estimated - true).mean())
    span = float(np.ptp(true))
    if span == 0:
        return EstimateMetrics(error, None, None, None, None)
    order = np.argsort(-estimated, kind="stable")

    def regret(count: int) -> float:
        return float(true.max() - true[order[:count]].max()) / span

    return EstimateMetrics(
        error, error / span, _spearman(true, estimated), regret(1), regret(_SHORTLIST)
    )


def coverage(
    true: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> float | None:
    """Return the share of true returns (K,) from ``low`` to ``high`` (K,), where these are known.

    None where they are all NaN.
    """
    known = ~(np.isnan(low) | np.isnan(high))
    return float(((low <= true) & (true <= high))[known].mean()) if known.any() else None


def _spearman(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    """Return Pearson's correlation of the ranks; equal values share their mean rank."""
    from scipy.stats import rankdata

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(np.corrcoef(rankdata(one), rankdata(other))[0, 1])
