"""PSVF: the parameter-based state-value function V(s, theta), Algorithm 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pbvf_offline.critics import kinds
from pbvf_offline.critics.base import Critic, TrainingSet
from pbvf_offline.io.columns import Column, StoredColumn, kept_entries
from pbvf_offline.io.mapped import taken
from pbvf_offline.policies.actions import DiscreteActions
from pbvf_offline.policies.batch import to_unit
from pbvf_offline.policies.normaliser import Normaliser
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.rollout.episodes import Trajectories
from pbvf_offline.rollout.targets import chosen_rewards, n_step_targets

_CPU: Final = torch.device("cpu")


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
        """Return one entry a step, with the executed action where the network sees it.

        Observations, actions and policies are not copied; only targets are in memory.
        """
        config = self.config
        rewards = chosen_rewards(data, config.reward)
        targets = n_step_targets(data, rewards, config.gamma, config.n_step)
        held = np.empty(len(data), bool)
        for first, part in data.parts():
            held[first : first + len(part)] = held_out[part.policy]

        def column(make: Callable[[NDArray[np.int64]], NDArray[Any]], length: int) -> Column:
            return StoredColumn(length, make, device)

        def observations(rows: NDArray[np.int64]) -> NDArray[np.float32]:
            with np.errstate(over="ignore"):  # a loss that is no number is noticed and says more
                return normaliser.apply(taken(data.observations, rows)).astype(np.float32)

        def actions(steps: NDArray[np.int64]) -> NDArray[np.float32]:
            return action_input(config.spec, taken(data.actions, steps), _CPU).numpy()

        def boot_row(steps: NDArray[np.int64]) -> NDArray[np.int64]:
            return data.obs_row_of(steps) + targets.ahead(steps)

        steps = len(data)
        return TrainingSet(
            entry=kept_entries(held, device),
            theta=torch.from_numpy(data.policies.in_normaliser(normaliser.mean, normaliser.std)).to(
                device
            ),
            policy=column(lambda rows: taken(data.policy, rows).astype(np.int64), steps),
            value=column(lambda rows: targets.value[rows], steps),
            obs=column(observations, len(data.observations)),
            obs_row=column(data.obs_row_of, steps),
            boot_row=column(boot_row, steps),
            discount=column(targets.discount, steps),
            action=column(actions, steps) if "action" in self.kind.inputs else None,
        )

    def loss(self, batch: TrainingSet, index: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the mean of ``[V(s, theta) - (r + gamma V(s', theta))]^2`` (Algorithm 2).

        With n-step targets r is the discounted sum of the segment's next rewards, all earned by
        theta itself, and s' the state after them. The target is held constant, as is
        usual for temporal differences.
        """
        return self.td_loss(batch, index, batch.thetas(index, noise))

    def td_loss(
        self, batch: TrainingSet, index: Tensor, theta: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return the loss of entries (B,) for given parameters theta (B, D).

        Args:
            batch: The training set.
            index: (B,) int64.
            theta: (B, D).
            noise: For :meth:`paired_from`.
        """
        network = self.network
        part = self.entries_part(batch, index, theta)  # it serves both states of the transition
        first = part + network.part("obs", batch.states(index))
        if "action" in self.kind.inputs:
            if batch.action is None:
                raise ValueError("this training set has no actions")
            first = first + network.part("action", batch.action[index])
        value = network.head(first)
        with torch.no_grad():
            states = batch.next_states(index)
            ahead = self.paired_from(part + network.part("obs", states), theta, states, noise)
            target = batch.bootstrap(index, ahead)
        return (value - target).square().mean(dim=-1)

    def values(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return V(s, theta) as (K, S)."""
        del states
        return self.network.head(self.theta_part(theta).unsqueeze(1) + state_part)

    def paired_values(self, theta: Tensor, states: Tensor) -> Tensor:
        """Return V(s, theta) as (B,)."""
        first = self.theta_part(theta) + self.network.part("obs", states)
        return self.paired_from(first, theta, states)

    def paired_from(
        self, first: Tensor, theta: Tensor, states: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return :meth:`paired_values` from what theta and states add to the first layer.

        Args:
            first: (B, hidden[0]), the sum of both parts.
            theta: (B, D).
            states: (B, obs_dim) normalised.
            noise: Decides the actions where they are drawn, see :meth:`noise_shape`.
        """
        del theta, states, noise
        return self.network.head(first)


def action_input(spec: PolicySpec, actions: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return executed actions (N, act_dim) or (N,) as the network sees them, (N, inputs)."""
    if isinstance(spec.actions, DiscreteActions):
        choice = torch.from_numpy(actions.astype(np.int64) - spec.actions.start)
        return torch.nn.functional.one_hot(choice, spec.actions.n).float().to(device)
    return to_unit(spec, torch.from_numpy(actions.astype(np.float64))).float().to(device)
