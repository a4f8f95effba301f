"""Numbers about all episodes of a dataset: what a manifest's ``stats`` say."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.errors import DivergedError
from pbvf_offline.rollout.episodes import Cut, Trajectories


@dataclass(frozen=True)
class Ends:
    """How many episodes there are, and how they ended, in the one wording for people.

    Attributes:
        episodes: All of them.
        terminated: Those whose task ended; None where nobody counted them.
        cut: Those that a step budget ended early. The others are whole.
    """

    episodes: int
    terminated: int | None
    cut: int

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> Ends:
        """Return what a manifest's ``stats`` say; older ones do not count what terminated."""
        terminated = stats.get("terminated")
        known = terminated if type(terminated) is int else None
        return cls(stats["episodes"], known, stats["cut"])

    @classmethod
    def of_data(cls, data: Trajectories) -> Ends:
        """Count the episodes of data."""
        terminated = data.terminated[data.start[1:] - 1]
        return cls(data.episodes, int(terminated.sum()), int(data.cut.sum()))

    @property
    def truncated(self) -> int | None:
        """Those that a time limit or the writer ended."""
        return None if self.terminated is None else self.episodes - self.terminated - self.cut

    def to_dict(self) -> dict[str, int | None]:
        """Return the JSON form."""
        return {"terminated": self.terminated, "truncated": self.truncated, "cut": self.cut}

    def __str__(self) -> str:
        """Return for example ``3: 2 whole (1 terminated, 1 truncated), 1 cut by the step budget``.

        >>> print(Ends(3, None, 1))
        3: 2 whole, 1 cut by the step budget
        """
        whole = f"{self.episodes - self.cut:,} whole"
        if self.terminated is not None:
            whole += f" ({self.terminated:,} terminated, {self.truncated:,} truncated)"
        return f"{self.episodes:,}: {whole}, {self.cut:,} cut by the step budget"


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

    @property
    def ends(self) -> Ends:
        """How the episodes ended."""
        return Ends(len(self.lengths), self.terminated, self.cut)

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
