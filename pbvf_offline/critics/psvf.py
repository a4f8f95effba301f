"""PSVF: the parameter-based state-value function V(s, theta), Algorithm 2."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import kinds
from pbvf_offline.critics.base import Critic, CriticConfig, TrainingSet
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, n_step_targets


class PSVF(Critic):
    """V(s, theta), fitted by temporal differences."""

    kind = kinds.PSVF

    def training_set(
        self,
        data: Trajectories,
        normaliser: Normaliser,
        held_out: NDArray[np.bool_],
        device: torch.device,
    ) -> TrainingSet:
        """Return one entry a step."""
        return td_training_set(self.config, data, normaliser, held_out, device)

    def loss(self, batch: TrainingSet, index: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the mean of ``[V(s, theta) - (r + gamma V(s', theta))]^2`` (Algorithm 2).

        With n-step targets r is the discounted sum of the segment's next rewards and s' the
        state after them. The target is held constant, as in the paper.
        """
        network = self.network
        obs, obs_row, boot_row = td_parts(batch)
        # The theta part serves both states of the transition.
        part = self.theta_part(batch.thetas(index, noise))
        value = network.head(part + network.part("obs", obs[obs_row[index]]))
        with torch.no_grad():
            ahead = network.head(part + network.part("obs", obs[boot_row[index]]))
            target = batch.bootstrap(index, ahead)
        return (value - target).square().mean()

    def values(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return V(s, theta) as (K, S)."""
        del states
        network = self.network
        return network.head(self.theta_part(theta).unsqueeze(1) + state_part)

    def paired_values(self, theta: Tensor, states: Tensor) -> Tensor:
        """Return V(s, theta) as (B,)."""
        network = self.network
        return network.head(self.theta_part(theta) + network.part("obs", states))


def td_training_set(
    config: CriticConfig,
    data: Trajectories,
    normaliser: Normaliser,
    held_out: NDArray[np.bool_],
    device: torch.device,
) -> TrainingSet:
    """Return the tensors of a TD critic: one entry a step of the policies not held out."""
    rewards = chosen_rewards(data, config.reward)
    targets = n_step_targets(data, rewards, config.gamma, config.n_step)
    theta = data.policies.in_normaliser(normaliser.mean, normaliser.std)
    return TrainingSet(
        entry=torch.from_numpy(np.flatnonzero(~held_out[data.policy])).to(device),
        theta=torch.from_numpy(theta).to(device),
        policy=torch.from_numpy(data.policy.astype(np.int64)).to(device),
        value=torch.from_numpy(targets.value.astype(np.float32)).to(device),
        obs=torch.from_numpy(normaliser.apply(data.observations).astype(np.float32)).to(device),
        obs_row=torch.from_numpy(data.obs_index).to(device),
        boot_row=torch.from_numpy(targets.boot_row).to(device),
        discount=torch.from_numpy(targets.discount.astype(np.float32)).to(device),
    )


def td_parts(batch: TrainingSet) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``obs, obs_row, boot_row`` of a TD training set.

    Raises:
        ValueError: The set was made for a Monte Carlo critic.
    """
    if batch.obs is None or batch.obs_row is None or batch.boot_row is None:
        raise ValueError("this training set has no transitions")
    return batch.obs, batch.obs_row, batch.boot_row
