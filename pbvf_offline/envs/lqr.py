"""The paper's one-dimensional linear quadratic regulator (section 4.1 and appendix).

``s' = clip(s + a, -2, 2)``, reward ``-s^2 - a^2`` on the action asked for, start at
``s = 1``, 50 steps and then truncated.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

BOUND = 2.0
START = 1.0
MAX_ACTION = 100.0


class LQREnv(gym.Env[NDArray[np.float64], NDArray[np.float64]]):
    """One state, one action, quadratic cost; its time limit comes from the registration."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-BOUND, BOUND, (1,), np.float64)
        self.action_space = gym.spaces.Box(-MAX_ACTION, MAX_ACTION, (1,), np.float64)
        self._state = START

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Return to the start, which is the same for every seed."""
        super().reset(seed=seed, options=options)
        self._state = START
        return np.array([self._state]), {}

    def step(
        self, action: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        """Move by the action; the cost counts the action asked for, not the clipped move."""
        asked = float(action[0])
        reward = -(self._state**2) - asked**2
        self._state = min(max(self._state + asked, -BOUND), BOUND)
        return np.array([self._state]), reward, False, False, {}
