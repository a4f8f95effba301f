"""A learned environment as a Gymnasium vector environment, for any algorithm to train in."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from pbvf_offline.errors import UsageError, shorten
from pbvf_offline.models.ensemble import Ensemble
from pbvf_offline.models.scales import action_inputs
from pbvf_offline.policies.spaces import action_space

Observations = NDArray[np.float64]


class ImaginedVectorEnv(VectorEnv[Observations, NDArray[Any], NDArray[Any]]):
    """Imagined episodes, many at once.

    Environment i is played in member ``i % M``, so what it returns has the spread of the
    ensemble. Observations are raw and stay in the box of the data, actions are the
    environment's own. Continuous ones outside the action space are clipped to its bounds, since
    the data hold none from there; all others that do not fit the space are refused. Rewards are as
    imagined, also beyond the box of the data, where an algorithm can exploit them. An environment
    that ended is reset at its next step, whose action it does not look at and whose reward is 0
    (``AutoresetMode.NEXT_STEP``).

    Args:
        ensemble: The learned environment.
        initial_observations: (E, obs_dim) raw first observations, of which a reset draws one.
        num_envs: Number of environments.
        horizon: Steps after which an episode is truncated.

    Raises:
        UsageError: There is no environment or no first observation, or the limit is below 1.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        ensemble: Ensemble,
        initial_observations: NDArray[np.float64],
        num_envs: int,
        horizon: int,
    ) -> None:
        if min(num_envs, horizon, len(initial_observations)) < 1:
            raise UsageError(
                f"{num_envs} environments of {horizon} steps from {len(initial_observations)} "
                "first observations: each is at least 1"
            )
        scales = ensemble.scales
        self.num_envs = num_envs
        self.single_observation_space = Box(scales.low, scales.high, dtype=np.float64)
        self._actions = action_space(ensemble.spec.actions)
        self.single_action_space = self._actions
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ensemble, self._horizon = ensemble, horizon
        self._initial = scales.normaliser.apply(initial_observations)
        self._obs = np.zeros((num_envs, ensemble.spec.obs_dim))  # normalised
        self._steps = np.zeros(num_envs, np.int64)
        self._ended = np.ones(num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin every episode anew; returns raw observations (num_envs, obs_dim)."""
        super().reset(seed=seed, options=options)
        self._begin(np.ones(self.num_envs, bool))
        return self._raw(), {}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[Observations, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Imagine one step of each environment.

        Args:
            actions: (num_envs, act_dim) numbers in the action space's unit, or (num_envs,)
                choices, which are integers.

        Returns:
            Raw observations (num_envs, obs_dim), rewards, terminated, truncated (num_envs,).

        Raises:
            UsageError: The actions are of another shape or type, one is NaN, or there is no such
                choice. Nothing was stepped.
        """
        fresh = self._ended.copy()
        obs, rewards, terminated = self._imagine(self._checked(actions, fresh))
        self._obs = np.where(fresh[:, None], self._obs, obs)
        self._steps += 1
        self._begin(fresh)
        terminated &= ~fresh
        truncated = ~fresh & ~terminated & (self._steps >= self._horizon)
        self._ended = terminated | truncated
        return self._raw(), np.where(fresh, 0.0, rewards), terminated, truncated, {}

    def _checked(self, actions: NDArray[Any], unread: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the actions, clipped, with any of the space where an environment reads none.

        Raises:
            UsageError: They do not fit the action space.
        """
        space = self._actions
        kinds, noun = ("iu", "integers") if isinstance(space, Discrete) else ("fiu", "numbers")
        wanted = self.action_space.shape
        remedy = f"give {noun} of shape {wanted}"
        try:
            given = np.asarray(actions)
        except (TypeError, ValueError, RuntimeError) as error:  # ragged, or a tensor on a GPU
            raise UsageError(
                f"the actions are no array: {shorten(error)}", remedy=remedy
            ) from error
        if given.shape != wanted or given.dtype.kind not in kinds:
            raise UsageError(f"the actions are {given.dtype} of shape {given.shape}", remedy=remedy)
        if isinstance(space, Discrete):
            first, last = int(space.start), int(space.start + space.n) - 1
            wrong = ~unread & ((given < first) | (given > last))
            remedy = f"choose {first} … {last}"
        else:
            wrong = ~unread & np.isnan(given).any(axis=1)
        if wrong.any():
            i = int(wrong.argmax())
            raise UsageError(f"the action of environment {i} is {shorten(given[i])}", remedy=remedy)
        if isinstance(space, Discrete):
            return np.where(unread, first, given.astype(np.int64))
        return np.clip(np.where(unread[:, None], space.low, given), space.low, space.high)

    def _imagine(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
        members = self._ensemble.members
        each = -(-self.num_envs // members)

        def shared_out(values: torch.Tensor) -> torch.Tensor:
            """Give row i to member i % M; the last rows are filled up."""
            values = values.to(self._ensemble.device)
            filled = values.new_zeros(each * members, values.shape[1])
            filled[: self.num_envs] = values
            return filled.reshape(each, members, -1).transpose(0, 1)

        def gathered(values: torch.Tensor) -> NDArray[Any]:
            rows = values.transpose(0, 1).reshape(each * members, *values.shape[2:])
            result: NDArray[Any] = rows[: self.num_envs].cpu().numpy()
            return result

        with torch.inference_mode():
            step = self._ensemble.step(
                shared_out(torch.from_numpy(self._obs.astype(np.float32))),
                shared_out(action_inputs(self._ensemble.spec, actions)),
            )
        return (
            gathered(step.obs).astype(np.float64),
            gathered(step.reward).astype(np.float64),
            gathered(step.ended),
        )

    def _begin(self, which: NDArray[np.bool_]) -> None:
        rows = self.np_random.integers(len(self._initial), size=int(which.sum()))
        self._obs[which] = self._initial[rows]
        self._steps[which] = 0
        self._ended = self._ended & ~which

    def _raw(self) -> Observations:
        scales = self._ensemble.scales
        raw = self._obs * scales.normaliser.std + scales.normaliser.mean
        return np.clip(raw, scales.low, scales.high)  # a product and a sum round
