"""The authors' rule of normalising: statistics that move on with every observation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.rollout.schedules import PerturbationSchedule, Segment


class PerStepSchedule(PerturbationSchedule):
    """One perturbed policy whose normaliser takes in every observation, the authors' rule."""

    def __init__(
        self, usual: PerturbationSchedule, episode: int, statistics: RunningStatistics
    ) -> None:
        super().__init__(usual.base, usual.sigma, 1, usual.seed)
        self._statistics = statistics
        self._acting = usual.theta(episode, 0)
        self.seen: list[Normaliser] = []

    def observe(self, obs: NDArray[Any]) -> None:
        """Take in one raw observation (obs_dim,)."""
        self._statistics.update(obs[None])
        self.seen.append(self._statistics.freeze())

    def segment(self, episode: int, index: int) -> Segment:
        """Return the policy as it sees observation ``index``."""
        del episode
        return Segment(self._acting, self.seen[index].mean, self.seen[index].std)

    def shown(self, start: int, stop: int, observations: NDArray[Any]) -> NDArray[np.float64]:
        """Return observations ``start`` … ``stop`` - 1 as they were seen when they came."""
        seen = self.seen[start:stop]
        raw = observations[start:stop].astype(np.float64)
        shown: NDArray[np.float64] = (raw - np.stack([n.mean for n in seen])) / np.stack(
            [n.std for n in seen]
        )
        return shown
