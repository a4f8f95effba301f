"""PAVF: the parameter-based action-value function Q(s, a, theta), Algorithm 4."""

from __future__ import annotations

import torch
from torch import Tensor

from pbvf_offline.critics import kinds
from pbvf_offline.critics.base import ActorStep, TrainingSet
from pbvf_offline.critics.psvf import PSVF
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.policies.batch import network_output, squashed
from pbvf_offline.policies.spec import PolicySpec


class PAVF(PSVF):
    """Q(s, a, theta) of deterministic policies, fitted by temporal differences.

    Its loss is the PSVF's with Q(s, a, theta) of the executed action in the place of V(s, theta)
    and Q(s', pi_theta(s'), theta) in the place of V(s', theta). Actions are seen in the policy's
    own unit: [-1, 1] for squashed policies.
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

    def values(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return Q(s, pi_theta(s), theta) as (K, S).

        Its gradient in theta has both terms of the deterministic policy gradient theorem:
        ``grad_theta pi_theta(s) grad_a Q + grad_theta Q``.
        """
        out = network_output(self.config.spec, theta, states)
        first = self.theta_part(theta).unsqueeze(1) + state_part
        return self.of_outputs(first, theta.unsqueeze(1), out)

    def paired_from(
        self, first: Tensor, theta: Tensor, states: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return Q(s, pi_theta(s), theta) as (B,)."""
        out = network_output(self.config.spec, theta, states.unsqueeze(-2)).squeeze(-2)
        return self.of_outputs(first, theta, out, noise)

    def of_outputs(
        self, first: Tensor, theta: Tensor, out: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return the value (…) of what policies do.

        Args:
            first: (…, hidden[0]), what theta and states add to the first layer.
            theta: (…, D).
            out: (…, outputs), what the policies' networks say in the states.
            noise: As in :meth:`paired_from`.
        """
        del theta, noise
        action = squashed(self.config.spec, out)
        return self.network.head(first + self.network.part("action", action))

    def actor_step(
        self, theta: Tensor, batch: TrainingSet, index: Tensor, *, biased: bool = False
    ) -> ActorStep:
        """Return the mean of Q(s, pi_theta(s), theta) over replayed states and its gradient.

        Algorithm 4: ``grad_theta pi_theta(s) grad_a Q + grad_theta Q``; biased: the first
        term alone, which is the gradient that DDPG follows.
        """
        if not biased:
            return super().actor_step(theta, batch, index)
        gradient = torch.zeros_like(theta)
        objective = self._sum_over_states(
            theta, batch.states(index), gradient, self._values_of_actions
        )
        return ActorStep(objective, gradient)

    def _values_of_actions(self, theta: Tensor, states: Tensor, state_part: Tensor) -> Tensor:
        """Return :meth:`values`, differentiable in theta through the action alone."""
        out = network_output(self.config.spec, theta, states)
        first = self.theta_part(theta.detach()).unsqueeze(1) + state_part
        return self.of_outputs(first, theta, out)
