"""Two sets of policies side by side: played from the same starts, with statistics of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.reference import EnvConfig
from pbvf_offline.policies.policy import Policies
from pbvf_offline.rollout.evaluation import evaluate_policies
from pbvf_runs.compare.statistics import (
    Estimate,
    estimate,
    interquartile_mean,
    probability_of_improvement,
)


@dataclass(frozen=True)
class Side:
    """One set of policies.

    Attributes:
        returns: (K, E) undiscounted returns of E whole episodes of each policy.
        mean: Mean over policies of their mean returns.
        iqm: Interquartile mean of these.
    """

    returns: NDArray[np.float64]
    mean: Estimate
    iqm: Estimate

    @property
    def means(self) -> NDArray[np.float64]:
        """(K,) mean return of each policy."""
        return np.asarray(self.returns.mean(axis=1))


@dataclass(frozen=True)
class Comparison:
    """Two sets of policies. Intervals are over policies, given the starts.

    Attributes:
        first: One of them.
        second: The other.
        difference: Mean of the first less that of the second.
        improvement: Probability that a policy of the first has a higher mean return than one of
            the second, equal ones counting half.
    """

    first: Side
    second: Side
    difference: Estimate
    improvement: Estimate


def compare_policies(
    config: EnvConfig,
    first: Policies,
    second: Policies,
    *,
    episodes: int,
    seed: int,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Play two sets of policies, the e-th episode of each policy from the same reset seed.

    Architectures may differ.

    Args:
        config: The environment.
        first: One set.
        second: The other.
        episodes: Whole episodes of each policy.
        seed: Seed of resets and action noise.
        workers: Number of processes.
        progress: Called with episodes done and wanted.

    Raises:
        UsageError: The environment has no time limit.
    """
    total, found = (len(first) + len(second)) * episodes, []
    for policies, before in ((first, 0), (second, len(first) * episodes)):

        def advance(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        returns, _ = evaluate_policies(
            config,
            policies,
            episodes=episodes,
            seed=seed,
            workers=workers,
            progress=advance,
            check=before == 0,
        )
        found.append(returns)
    return compare_returns(*found)


def compare_returns(first: NDArray[np.float64], second: NDArray[np.float64]) -> Comparison:
    """Compare returns (K, E) of two sets of policies."""

    def less(one: NDArray[Any], other: NDArray[Any], axis: int) -> Any:
        return one.mean(axis=axis) - other.mean(axis=axis)

    one, other = first.mean(axis=1), second.mean(axis=1)
    return Comparison(
        _side(first),
        _side(second),
        estimate(less, one, other),
        estimate(probability_of_improvement, one, other),
    )


def _side(returns: NDArray[np.float64]) -> Side:
    means = returns.mean(axis=1)
    return Side(returns, estimate(np.mean, means), estimate(interquartile_mean, means))
