"""PSSVF: the parameter-based start-state-value function V(theta), Algorithm 1."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import kinds
from pbvf_offline.critics.base import Critic, TrainingSet
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, monte_carlo_returns


class PSSVF(Critic):
    """V(theta), fitted to Monte Carlo returns of whole episodes."""

    kind = kinds.PSSVF

    def training_set(
        self,
        data: Trajectories,
        normaliser: Normaliser,
        held_out: NDArray[np.bool_],
        device: torch.device,
    ) -> TrainingSet:
        """Return one entry a whole episode: its policy and its return."""
        rewards = chosen_rewards(data, self.config.reward)
        policy, returns = monte_carlo_returns(data, rewards, self.config.gamma)
        theta = data.policies.in_normaliser(normaliser.mean, normaliser.std)
        with np.errstate(over="ignore"):  # an infinite loss is noticed and says more
            value = returns.astype(np.float32)
        return TrainingSet(
            entry=torch.from_numpy(np.flatnonzero(~held_out[policy])).to(device),
            theta=torch.from_numpy(theta).to(device),
            policy=torch.from_numpy(policy.astype(np.int64)).to(device),
            value=torch.from_numpy(value).to(device),
        )

    def loss(self, batch: TrainingSet, index: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the mean of ``[r - V(theta)]^2`` (Algorithm 1)."""
        network = self.network
        value = network.head(self.entries_part(batch, index, batch.thetas(index, noise)))
        return (batch.value[index] - value).square().mean(dim=-1)

    def state_part(self, states: Tensor) -> Tensor:
        """States add nothing."""
        return states.new_zeros(states.shape[0], 1)

    def values(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return V(theta) as (K, 1)."""
        del states, state_part
        return self.network.head(self.theta_part(theta)).unsqueeze(1)

    def paired_values(self, theta: Tensor, states: Tensor) -> Tensor:
        """Return V(theta) as (B,)."""
        del states
        return self.network.head(self.theta_part(theta))
