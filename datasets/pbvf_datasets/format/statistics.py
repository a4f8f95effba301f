"""Numbers about all episodes of a dataset: what a manifest's ``stats`` say."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DivergedError
from pbvf_offline.rollout.episodes import Cut


@dataclass
class Tally:
    """What the episodes added so far come to.

    Attributes:
        lengths: Steps of each episode.
        steps: Number of steps.
        returns: Undiscounted return of each whole episode, in the reward's unit.
        largest: The largest sum of absolute rewards of a whole episode, at least 1.
        terminated: Episodes whose task ended.
        cut: Episodes that a step budget cut short.
        segments: Stretches in which one policy acts.
        policies: A digest of each distinct policy.
        normalisers: A digest of each distinct normaliser.
    """

    lengths: list[int] = field(default_factory=list)
    steps: int = 0
    returns: list[float] = field(default_factory=list)
    largest: float = 1.0
    terminated: int = 0
    cut: int = 0
    segments: int = 0
    policies: set[bytes] = field(default_factory=set)
    normalisers: set[bytes] = field(default_factory=set)

    def add(
        self,
        rewards: NDArray[np.float64],
        *,
        terminated: bool,
        cut: Cut,
        normalisers: tuple[NDArray[np.float64], NDArray[np.float64]],
        theta: NDArray[np.float32] | None,
        total: float | None = None,
    ) -> None:
        """Count an episode.

        Args:
            rewards: (T,) in the reward's unit.
            terminated: Whether its task ended.
            cut: Whether a step budget ended it.
            normalisers: (S, obs_dim) mean and standard deviation of each of its policies.
            theta: (S, D) their parameters; None: policies are not counted.
            total: Its exact return; the sum of rewards in floating point when None.
        """
        self.lengths.append(len(rewards))
        self.steps += len(rewards)
        self.segments += len(normalisers[0])
        self.normalisers.update(row_keys(*normalisers))
        if theta is not None:
            self.policies.update(row_keys(theta, *normalisers))
        self.terminated += bool(terminated)
        if cut != "none":
            self.cut += 1
            return
        with np.errstate(over="ignore"):
            self.returns.append(float(rewards.sum()) if total is None else total)
            self.largest = max(self.largest, float(np.abs(rewards).sum()))

    def stats(self) -> dict[str, Any]:
        """Return the numbers as a manifest holds them."""
        lengths = self.lengths
        return {
            "episodes": len(lengths),
            "steps": self.steps,
            "policies": len(self.policies),
            "normalisers": len(self.normalisers),
            "cut": self.cut,
            "terminated": self.terminated,
            "length": {
                "mean": self.steps / len(lengths),
                "min": min(lengths),
                "max": max(lengths),
            },
            "return": return_stats(self.returns),
        }


def return_stats(returns: Sequence[float]) -> dict[str, float] | None:
    """Return mean, min and max of whole episodes' returns, or None without any."""
    if not returns:
        return None
    mean = math.nan
    if all(map(math.isfinite, returns)):
        # fsum does not depend on the order; halves keep a sum of huge returns finite.
        mean = math.fsum(r / 2 / len(returns) for r in returns) * 2
    return {"mean": mean, "min": min(returns), "max": max(returns)}


def total_reward(rewards: NDArray[np.float64]) -> float:
    """Return the exact sum of rewards (T,): it does not depend on how they lie in memory.

    Raises:
        DivergedError: It is infinite.
    """
    try:
        total = math.fsum(rewards.tolist())
    except OverflowError:
        total = math.inf
    if not math.isfinite(total):
        raise DivergedError("the rewards of an episode add up to infinity")
    return total


def row_keys(*arrays: NDArray[Any]) -> Iterator[bytes]:
    """Yield a digest of each row of several arrays (S, n) side by side."""
    for parts in zip(*arrays, strict=True):
        digest = hashlib.sha256()  # which most machines have instructions for
        for part in parts:
            digest.update(part)
        yield digest.digest()
