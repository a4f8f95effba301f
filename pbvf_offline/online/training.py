"""A training run in progress, and how one starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pbvf_offline.critics import Critic, CriticConfig, make_critic
from pbvf_offline.errors import UsageError
from pbvf_offline.fit.steps import Fit, make_optimiser
from pbvf_offline.online.replay import Replay
from pbvf_offline.online.settings import OnlineSettings, check_base
from pbvf_offline.policies.normaliser import Normaliser, RunningStatistics
from pbvf_offline.policies.policy import Policies, init_theta
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.seeding import Stream, generator


@dataclass
class Training:
    """A run in progress.

    Attributes:
        settings: What decides it.
        spec: Architecture of the policies.
        fit: The critic with its optimiser.
        theta: (1, D) the learned policy, in the present normaliser.
        actor: Adam over it.
        replay: The replay buffer.
        statistics: Statistics of the observations acted on.
        normaliser: What the present episode's policy sees with.
        steps: Environment steps taken.
        episodes: Episodes finished.
        rounds: Rounds of updates done.
        objective: The actor's last objective.
        effective: Effective sample sizes since the last finished episode.
    """

    settings: OnlineSettings
    spec: PolicySpec
    fit: Fit
    theta: torch.Tensor
    actor: torch.optim.Adam
    replay: Replay
    statistics: RunningStatistics
    normaliser: Normaliser
    steps: int = 0
    episodes: int = 0
    rounds: int = 0
    objective: float | None = None
    effective: list[float] = field(default_factory=list)

    @property
    def policy(self) -> Policies:
        """The learned policy, unperturbed, with statistics frozen now."""
        return Policies(
            self.spec,
            self.theta.detach().cpu().numpy().copy(),
            self.normaliser.mean[None].copy(),
            self.normaliser.std[None].copy(),
        )


def critic_config(spec: PolicySpec, settings: OnlineSettings) -> CriticConfig:
    """Return what decides the critic of a run, apart from its kind."""
    return CriticConfig(
        spec=spec,
        hidden=settings.hidden,
        activation=settings.activation,
        gamma=settings.gamma,
        reward=settings.reward,
    )


def fresh_critic(spec: PolicySpec, settings: OnlineSettings) -> Critic:
    """Return the critic of a run at step 0, on the CPU.

    Raises:
        IncompatibleError: The critic cannot evaluate such policies.
    """
    rng = generator(settings.seed, Stream.CRITIC_INIT)
    return make_critic(settings.kind, critic_config(spec, settings), rng)


def start_training(
    spec: PolicySpec,
    settings: OnlineSettings,
    *,
    obs_dtype: Any,
    device: torch.device,
    base: Policies | None = None,
) -> Training:
    """Return a run at step 0 with a fresh critic and a fresh policy, or a given one.

    Args:
        spec: Architecture of the policies.
        settings: What decides the run.
        obs_dtype: The observations' own dtype.
        device: Where tensors are.
        base: The one policy to start from. Parameters and normaliser are taken over as they are,
            so the first policy acts as it does, and the normaliser stays to the end: it takes
            settings with the normalization ``none``.

    Raises:
        IncompatibleError: The critic cannot evaluate such policies, or the base is of another spec.
        UsageError: The initial theta has another size than the spec, or the base does not go
            with the settings.
    """
    seed = settings.seed
    critic = fresh_critic(spec, settings).to(device)
    normaliser = Normaliser.identity(spec.obs_dim)
    if base is not None:
        check_base(base, spec, settings)
        first = base.theta[0]
        normaliser = Normaliser(base.obs_mean[0].copy(), base.obs_std[0].copy())
    elif settings.initial_theta is None:
        first = init_theta(spec, generator(seed, Stream.BASE_POLICY))
    else:
        first = np.array(settings.initial_theta, np.float32)
        if first.shape != (spec.size,):
            raise UsageError(
                f"the initial theta has {first.size} parameters, the policy has {spec.size}"
            )
    theta = torch.from_numpy(first[None].copy()).to(device).requires_grad_()
    replay = Replay(
        spec,
        capacity=settings.buffer_size,
        gamma=settings.gamma,
        monte_carlo=critic.kind.monte_carlo,
        obs_dtype=obs_dtype,
        device=device,
        as_stored=settings.normalization == "per-step",
    )
    replay.renormalise(normaliser)
    return Training(
        settings=settings,
        spec=spec,
        fit=Fit(
            settings.fit_settings(),
            critic,
            None,
            normaliser,
            make_optimiser(critic, settings.lr_critic),
        ),
        theta=theta,
        actor=torch.optim.Adam([theta], lr=settings.lr_policy, maximize=True, fused=True),
        replay=replay,
        statistics=RunningStatistics(spec.obs_dim),
        normaliser=normaliser,
    )
