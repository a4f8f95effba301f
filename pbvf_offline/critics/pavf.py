"""PAVF: the parameter-based action-value function Q(s, a, theta), Algorithm 4."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import kinds
from pbvf_offline.critics.base import ActorStep, Critic, TrainingSet
from pbvf_offline.critics.psvf import td_parts, td_training_set
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.policies.batch import to_unit, unit_action
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories


class PAVF(Critic):
    """Q(s, a, theta) of deterministic policies, fitted by temporal differences.

    Actions are seen in the policy's own unit: [-1, 1] for squashed policies.
    """

    kind = kinds.PAVF

    @classmethod
    def check(cls, spec: PolicySpec) -> None:
        """Refuse discrete actions and stochastic policies.

        Raises:
            IncompatibleError: The policies are not deterministic with continuous actions.
        """
        if not spec.is_continuous:
            raise IncompatibleError(
                "the PAVF needs continuous actions, and these policies choose discrete ones",
                remedy="use --critic psvf or pssvf",
            )
        if spec.stochastic:
            raise IncompatibleError(
                "the deterministic PAVF cannot be fitted to stochastic policies",
                remedy="use --critic psvf or pssvf",
            )

    def training_set(
        self,
        data: Trajectories,
        normaliser: Normaliser,
        held_out: NDArray[np.bool_],
        device: torch.device,
    ) -> TrainingSet:
        """Return one entry a step, with the executed action."""
        base = td_training_set(self.config, data, normaliser, held_out, device)
        action = torch.from_numpy(data.actions.astype(np.float64))
        unit = to_unit(self.config.spec, action).float().to(device)
        return dataclasses.replace(base, action=unit)

    def loss(self, batch: TrainingSet, index: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the mean of ``[Q(s, a, theta) - (r + gamma Q(s', pi_theta(s'), theta))]^2``.

        Algorithm 4; the target is held constant. With n-step targets r is the discounted
        sum of the segment's next rewards, all earned by theta itself after a.
        """
        network, spec = self.network, self.config.spec
        obs, obs_row, boot_row = td_parts(batch)
        if batch.action is None:
            raise ValueError("this training set has no actions")
        theta = batch.thetas(index, noise)
        part = self.theta_part(theta)
        value = network.head(
            part
            + network.part("obs", obs[obs_row[index]])
            + network.part("action", batch.action[index])
        )
        with torch.no_grad():
            ahead = obs[boot_row[index]]
            action = unit_action(spec, theta, ahead.unsqueeze(1)).squeeze(1)
            next_value = network.head(
                part + network.part("obs", ahead) + network.part("action", action)
            )
            target = batch.bootstrap(index, next_value)
        return (value - target).square().mean()

    def values(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return Q(s, pi_theta(s), theta) as (K, S).

        Its gradient in theta has both terms of the deterministic policy gradient theorem:
        ``grad_theta pi_theta(s) grad_a Q + grad_theta Q``.
        """
        network = self.network
        action = unit_action(self.config.spec, theta, states)
        first = self.theta_part(theta).unsqueeze(1) + state_part
        return network.head(first + network.part("action", action))

    def actor_step(
        self, theta: Tensor, batch: TrainingSet, index: Tensor, *, biased: bool = False
    ) -> ActorStep:
        """Return the mean of Q(s, pi_theta(s), theta) over replayed states and its gradient.

        Algorithm 4: ``grad_theta pi_theta(s) grad_a Q + grad_theta Q``; biased: the first
        term alone, which is the gradient that DDPG follows.
        """
        if not biased:
            return super().actor_step(theta, batch, index)
        obs, obs_row, _ = td_parts(batch)
        gradient = torch.zeros_like(theta)
        objective = self._sum_over_states(
            theta, obs[obs_row[index]], gradient, self._values_of_actions
        )
        return ActorStep(objective, gradient)

    def _values_of_actions(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return :meth:`values`, differentiable in theta through the action alone."""
        network = self.network
        action = unit_action(self.config.spec, theta, states)
        first = self.theta_part(theta.detach()).unsqueeze(1) + state_part
        return network.head(first + network.part("action", action))

    def paired_values(self, theta: Tensor, states: Tensor) -> Tensor:
        """Return Q(s, pi_theta(s), theta) as (B,)."""
        network = self.network
        action = unit_action(self.config.spec, theta, states.unsqueeze(1)).squeeze(1)
        return network.head(
            self.theta_part(theta) + network.part("obs", states) + network.part("action", action)
        )
