"""Mirrored perturbations: policies in pairs on opposite sides of the base policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.rollout.schedules import PerturbationSchedule


class MirroredSchedule(PerturbationSchedule):
    """Perturb in pairs: episode 2i acts with ``theta + epsilon``, 2i + 1 with ``theta - epsilon``.

    Segment j of both episodes has the same ``epsilon ~ N(0, sigma^2 I)``, so that over an even
    number of episodes of equal length the mean of the noise is zero, as in augmented random search.
    """

    def theta(self, episode: int, index: int) -> NDArray[np.float32]:
        """Return the base parameters (D,) plus or minus the pair's noise."""
        perturbed = self.perturbed(episode - episode % 2, index)
        if episode % 2 == 0:
            return perturbed
        base: NDArray[np.float32] = self.base.theta[0]
        return base - (perturbed - base)
