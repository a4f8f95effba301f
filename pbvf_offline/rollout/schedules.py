"""Schedules: which policy acts in which step of which episode, and with which random numbers.

A schedule is a pure function of its settings, the episode's index and the segment's index, so
that episodes can be made in any order, in any process, and again.

Users choose among the subclasses of :class:`PerturbationSchedule` by name; see
:mod:`pbvf_offline.rollout.schedule_kinds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.policies.policy import Policies, perturb
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.seeding import Stream, generator, reset_seed


@dataclass(frozen=True)
class Segment:
    """The policy in force during one segment: theta (D,), obs_mean and obs_std (obs_dim,)."""

    theta: NDArray[np.float32]
    obs_mean: NDArray[np.float64]
    obs_std: NDArray[np.float64]


class Schedule(Protocol):
    """Which policies act in which episode, and with which random numbers."""

    @property
    def spec(self) -> PolicySpec:
        """Architecture of every policy of the schedule."""

    @property
    def perturb_every(self) -> int | None:
        """Steps a segment lasts (the counter restarts at each reset); None: the episode."""

    def segment(self, episode: int, index: int) -> Segment:
        """Return the policy of one segment, from the seed and the two indices alone."""

    def reset_seed(self, episode: int) -> int:
        """Return the seed for ``env.reset``."""

    def action_rng(self, episode: int) -> np.random.Generator:
        """Return the generator of a stochastic policy's action noise."""


@dataclass(frozen=True)
class PerturbationSchedule:
    """Perturb one base policy afresh for every segment: ``theta + N(0, sigma^2 I)``.

    Attributes:
        base: One policy; its normaliser is used by every perturbed policy.
        sigma: Standard deviation of the parameter noise.
        perturb_every: Steps a segment lasts; None for whole episodes.
        seed: The run's seed.
        warmup: Draw from the warm-up streams, apart from those of stored episodes.
    """

    base: Policies
    sigma: float
    perturb_every: int | None
    seed: int
    warmup: bool = False

    @property
    def spec(self) -> PolicySpec:
        """Architecture of the base policy."""
        return self.base.spec

    def theta(self, episode: int, index: int) -> NDArray[np.float32]:
        """Return the parameters (D,) of one segment; what other schedules replace."""
        return self.perturbed(episode, index)

    def perturbed(self, episode: int, index: int) -> NDArray[np.float32]:
        """Return the base parameters (D,) plus the noise that belongs to (episode, index)."""
        stream = Stream.WARMUP_PERTURBATION if self.warmup else Stream.PERTURBATION
        theta: NDArray[np.float32] = self.base.theta[0]
        if self.sigma > 0:
            theta = perturb(theta, self.sigma, generator(self.seed, stream, episode, index))
        return theta

    def segment(self, episode: int, index: int) -> Segment:
        """Return the policy of one segment, in the base policy's normaliser."""
        return Segment(self.theta(episode, index), self.base.obs_mean[0], self.base.obs_std[0])

    def reset_seed(self, episode: int) -> int:
        """Return the environment's seed for an episode."""
        stream = Stream.WARMUP_RESET if self.warmup else Stream.RESET
        return reset_seed(self.seed, stream, episode)

    def action_rng(self, episode: int) -> np.random.Generator:
        """Return the action noise of an episode."""
        stream = Stream.WARMUP_ACTION if self.warmup else Stream.ACTION
        return generator(self.seed, stream, episode)


@dataclass(frozen=True)
class GivenSchedule:
    """Roll given policies out unperturbed, one an episode, in turn.

    Attributes:
        policies: The K policies; episode i runs policy ``i % K``, or ``i // repeat``
            when ``repeat`` is set.
        seed: The run's seed.
        repeat: Episodes of each policy, one block after another, the e-th episode of
            every block starting from the same reset seed (common random numbers).
    """

    policies: Policies
    seed: int
    repeat: int | None = None

    @property
    def spec(self) -> PolicySpec:
        """Architecture of the policies."""
        return self.policies.spec

    @property
    def perturb_every(self) -> int | None:
        """Each policy acts for a whole episode."""
        return None

    def segment(self, episode: int, index: int) -> Segment:  # noqa: ARG002
        """Return the policy whose turn it is."""
        row = episode % len(self.policies) if self.repeat is None else episode // self.repeat
        return Segment(
            self.policies.theta[row], self.policies.obs_mean[row], self.policies.obs_std[row]
        )

    def reset_seed(self, episode: int) -> int:
        """Return the environment's seed for an episode."""
        if self.repeat is None:
            return reset_seed(self.seed, Stream.RESET, episode)
        return reset_seed(self.seed, Stream.EVALUATION_RESET, episode % self.repeat)

    def action_rng(self, episode: int) -> np.random.Generator:
        """Return the action noise of an episode."""
        stream = Stream.ACTION if self.repeat is None else Stream.EVALUATION_ACTION
        return generator(self.seed, stream, episode)
