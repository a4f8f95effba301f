"""A schedule whose policies all lie at one distance from the base policy."""

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.rollout.schedules import PerturbationSchedule


class SphereSchedule(PerturbationSchedule):
    """Noise of length ``sigma sqrt(D)`` in a direction of its own for every segment."""

    def theta(self, episode: int, index: int) -> NDArray[np.float32]:
        base = self.base.theta[0].astype(np.float64)
        noise = self.perturbed(episode, index) - base
        length = np.linalg.norm(noise)
        if length > 0:
            noise *= self.sigma * np.sqrt(len(base)) / length
        return (base + noise).astype(np.float32)
