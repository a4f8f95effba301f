"""PAVF of stochastic policies: Q(s, a, theta) with importance weights, Algorithm 3."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from pbvf_offline.critics.base import ActorStep, CriticConfig, TrainingSet
from pbvf_offline.critics.pavf import PAVF
from pbvf_offline.errors import IncompatibleError
from pbvf_offline.policies.batch import log_prob, squashed
from pbvf_offline.policies.spec import PolicySpec

_PAIRS: Final = 8  # of draws, at least; as many as an action has dimensions where those are more


def _fixed_draws(dim: int) -> Tensor:
    """Return float32 (N, dim) draws with mean 0 and covariance 1, as the standard normal has.

    Mirrored pairs of quantiles of the normal distribution, in random order and with random signs
    in each dimension (Latin hypercube), made orthogonal by the nearest matrix that is. Plain draws
    would be off by the same amount in every value: of 16 the mean square is easily 0.4.
    """
    pairs = max(_PAIRS, dim)
    rng = np.random.default_rng(0)
    chance = 0.5 + (np.arange(pairs) + 0.5) / (2 * pairs)
    quantiles = torch.special.ndtri(torch.from_numpy(chance)).numpy()
    columns = [rng.permutation(quantiles) * rng.choice([-1.0, 1.0], pairs) for _ in range(dim)]
    left, _, right = np.linalg.svd(np.stack(columns, axis=1), full_matrices=False)
    half = np.round(np.sqrt(pairs) * (left @ right), 6)  # the last digits depend on the machine
    return torch.from_numpy(np.concatenate([half, -half]).astype(np.float32))


class StochasticPAVF(PAVF):
    """Q(s, a, theta) of stochastic policies, fitted by temporal differences.

    Continuous actions are seen in the policy's own unit, discrete ones one-hot.
    """

    def __init__(self, config: CriticConfig, rng: np.random.Generator) -> None:
        super().__init__(config, rng)
        # Always the same draws: a value must not change from call to call.
        self._draws: Tensor
        self.register_buffer("_draws", _fixed_draws(config.spec.actions.dim), persistent=False)

    @classmethod
    def check(cls, spec: PolicySpec) -> None:
        """Refuse deterministic policies.

        Raises:
            IncompatibleError: The policies are not stochastic.
        """
        if not spec.stochastic:
            raise IncompatibleError("the stochastic PAVF needs stochastic policies")

    def noise_shape(self, batch: TrainingSet) -> tuple[int, ...] | None:
        """The target draws the next action: one number an action dimension, or a choice."""
        del batch
        return (self.inputs(self.config)["action"],)

    def loss(self, batch: TrainingSet, index: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the mean of ``[Q(s, a, theta) - (r + gamma Q(s', a', theta))]^2``.

        Algorithm 3, with ``a'`` drawn from pi_theta(s'); the target is held constant.
        """
        if noise is None:
            raise ValueError("the draws are missing")
        return self.td_loss(batch, index, batch.thetas(index, None), noise)

    def actor_step(
        self, theta: Tensor, batch: TrainingSet, index: Tensor, *, biased: bool = False
    ) -> ActorStep:
        """Return the importance-weighted objective over replayed steps and its gradient.

        With ``w = pi_theta(a|s) / pi_b(a|s)`` and b the policy that acted, the gradient of the
        mean of ``w Q(s, a, theta)`` is Algorithm 3's mean of
        ``w (Q grad log pi_theta(a|s) + grad_theta Q)``; biased: its first term alone, as
        Off-PAC has it.
        """
        network, spec = self.network, self.config.spec
        if batch.action is None or batch.sample is None:
            raise ValueError("this training set has no samples of stochastic policies")
        states, sample = batch.states(index), batch.sample[index]
        leaf = theta.detach().requires_grad_()
        with torch.no_grad():
            acted = batch.thetas(index, None)
            behaviour = log_prob(spec, acted, states.unsqueeze(1), sample.unsqueeze(1)).squeeze(1)
            part = network.part("obs", states) + network.part("action", batch.action[index])
        target = log_prob(spec, leaf, states.unsqueeze(0), sample.unsqueeze(0)).squeeze(0)
        weight = torch.exp(target - behaviour)
        seen = leaf.detach() if biased else leaf
        objective = (weight * network.head(self.theta_part(seen) + part)).mean()
        (gradient,) = torch.autograd.grad(objective, leaf)
        with torch.no_grad():
            # In units of the largest, whose square is a number however small all weights are.
            relative = torch.exp((target - behaviour) - (target - behaviour).max())
            kish = relative.sum().square() / relative.square().sum() / len(index)
        return ActorStep(objective.detach().cpu().double().reshape(1), gradient, float(kish))

    def of_outputs(
        self, first: Tensor, theta: Tensor, out: Tensor, noise: Tensor | None = None
    ) -> Tensor:
        """Return Q(s, a, theta) (…) of drawn actions a; without noise its mean over all of them.

        The mean is exact for discrete actions. For continuous ones it is over 16 fixed draws (or
        two an action dimension, if more), exact where Q is a cubic in the unsquashed action. It is
        differentiable in theta through the action too.
        """
        network, spec = self.network, self.config.spec

        def of_draw(draw: Tensor) -> Tensor:
            return network.head(first + network.part("action", _drawn(spec, theta, out, draw)))

        if noise is not None:
            return of_draw(noise)
        if not spec.is_continuous:
            # A one-hot action picks a column of the first layer's action part.
            eye = torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)
            each = network.part("action", eye)
            values = network.head(first.unsqueeze(-2) + each)
            return (torch.softmax(out, dim=-1) * values).sum(dim=-1)
        total = torch.zeros_like(first[..., 0])
        for draw in self._draws:
            total = total + of_draw(draw)
        return total / len(self._draws)


def _drawn(spec: PolicySpec, theta: Tensor, out: Tensor, noise: Tensor) -> Tensor:
    """Return actions as the network sees them, from policy outputs and standard normal numbers."""
    if not spec.is_continuous:
        # The argmax of logits plus Gumbel noise is a categorical sample.
        uniform = torch.special.ndtr(noise).clamp(1e-7, 1.0 - 1e-7)
        choice = (out - torch.log(-torch.log(uniform))).argmax(dim=-1)
        return torch.nn.functional.one_hot(choice, out.shape[-1]).to(out.dtype)
    return squashed(spec, out + torch.exp(theta[..., : spec.log_std_size]) * noise)
