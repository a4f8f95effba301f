"""The paper's one-dimensional linear quadratic regulator (section 4.1 and appendix).

``s' = clip(s + a, -2, 2)``, reward ``-s^2 - a^2`` on the action asked for, start at
``s = 1``, 50 steps and then truncated. For a linear policy ``a = w s + b`` that stays
inside the bounds the return has a closed form, :func:`lqr_return`.
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


def lqr_return(
    weight: NDArray[np.float64], bias: NDArray[np.float64], steps: int, gamma: float = 1.0
) -> NDArray[np.float64]:
    """Return the discounted return of ``a = w s + b`` from ``s = 1``, without the bounds.

    With ``m = 1 + w``, the fixed point ``f = -b / w`` and ``d = 1 - f``:
    ``s_t = f + d m^t`` and ``a_t = w d m^t``, so the return is minus
    ``f^2 G(gamma) + 2 f d G(gamma m) + d^2 (1 + w^2) G(gamma m^2)`` with the geometric
    sum ``G(x) = 1 + x + … + x^(steps-1)``. Exact only while no state leaves [-2, 2].

    Args:
        weight: (…,) policy weights, none zero.
        bias: (…,) policy biases.
        steps: Number of steps T.
        gamma: Discount factor.

    Returns:
        (…,) returns, in units of reward.
    """
    m = 1.0 + weight
    fixed = -bias / weight
    d = START - fixed

    def geometric(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = np.asarray(x, np.float64)
        near_one = np.isclose(x, 1.0, rtol=0, atol=1e-12)
        safe = np.where(near_one, 0.5, x)
        return np.where(near_one, float(steps), (1 - safe**steps) / (1 - safe))

    return -(
        fixed**2 * geometric(np.full_like(m, gamma))
        + 2 * fixed * d * geometric(gamma * m)
        + d**2 * (1 + weight**2) * geometric(gamma * m**2)
    )
