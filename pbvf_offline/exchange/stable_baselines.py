"""The actors of live Stable-Baselines3 models as policies.

What is looked at are the attributes that the library gives its policies, and what is returned
has to act as the source does. So the library is not imported here, and none of its files, which
are pickles, is ever opened.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.make import Env
from pbvf_offline.errors import DamagedError, DivergedError, IncompatibleError, UsageError
from pbvf_offline.exchange.compare import differences, how_far
from pbvf_offline.exchange.interpret import ImportSettings, interpret
from pbvf_offline.exchange.layer_names import expressible, mlp_families, sb3_layers
from pbvf_offline.exchange.weight_files import as_array
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec

_CHECK_ROWS = 32
_CHECK_TOLERANCE = 1e-4


class ClippedObservationsWarning(UserWarning):
    """The source clips normalised observations, which policies here do not."""


def from_sb3(
    model: Any, env: Env, *, stochastic: bool = False, normalizer: Any | None = None
) -> Policies:
    """Return the actor of a live Stable-Baselines3 model as one policy.

    Its layers must be linear with tanh or ReLU between them, which all have by default. What is
    returned acts as ``model.predict(obs, deterministic=True)`` does, and that is checked on
    random observations.

    Args:
        model: A model or its policy.
        env: The environment that it acts in; it gives the spaces and bounds.
        stochastic: Keep the noise of a Gaussian (PPO, A2C) or categorical policy.
        normalizer: The ``VecNormalize`` of the observations; None: the model's own, if any.

    Raises:
        UsageError: It is none of these models, or has no noise that could be kept.
        IncompatibleError: Another activation, a features extractor, other spaces, or it acts
            otherwise than its layers say.
        DivergedError: Its parameters are not finite.
    """
    policy = getattr(model, "policy", model)
    if not all(hasattr(policy, name) for name in ("predict", "action_space", "state_dict")):
        raise UsageError(
            f"{type(policy).__name__} is no Stable-Baselines3 policy with a network that acts",
            remedy="give a model of A2C, ARS, DDPG, DQN, PPO, SAC or TD3, or its policy",
        )
    spaces = spec_for_env(env, ())
    if policy.action_space != env.action_space or (
        policy.observation_space.shape != env.observation_space.shape
    ):
        raise IncompatibleError(
            f"it acts from {policy.observation_space} in {policy.action_space}, the environment "
            f"offers {env.observation_space} and {env.action_space}",
            where=type(policy).__name__,
            remedy="give the environment that it was trained in",
        )
    if normalizer is None and hasattr(model, "get_vec_normalize_env"):
        normalizer = model.get_vec_normalize_env()
    mean, std = _statistics(normalizer, spaces.obs_dim)
    policies = sb3_policies(policy, spaces, mean, std, stochastic=stochastic)
    _check(policy, policies)
    return policies


def sb3_policies(
    policy: Any,
    spaces: PolicySpec,
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    *,
    stochastic: bool = False,
) -> Policies:
    """Return a Stable-Baselines3 policy's actor, with a known normaliser.

    For policies whose construction the caller knows: nothing is compared.

    Args:
        policy: The policy of a model.
        spaces: A spec of the environment's spaces; its architecture does not matter.
        mean: (obs_dim,) of the normaliser.
        std: (obs_dim,) of the normaliser.
        stochastic: Keep the noise of a Gaussian (PPO, A2C) or categorical policy.

    Raises:
        UsageError: It has no network that acts, or no noise that could be kept.
        IncompatibleError: Another activation, a features extractor or other spaces.
        DivergedError: Its parameters or statistics are not finite.
    """
    where = type(policy).__name__
    if stochastic and (not hasattr(policy, "mlp_extractor") or getattr(policy, "use_sde", False)):
        raise UsageError(
            "its noise is neither a Gaussian whose log_std is a parameter nor a categorical choice",
            where=where,
            remedy="leave stochastic out to take its mean action",
        )
    tensors = {name: as_array(value) for name, value in policy.state_dict().items()}
    named = sb3_layers({name: array.shape for name, array in tensors.items()}, where)
    squash = named.squash
    if spaces.is_continuous and squash is None:
        squash = "tanh" if getattr(policy, "squash_output", False) else "none"
    settings = ImportSettings(
        layout="sb3",
        squash=squash if spaces.is_continuous else None,
        stochastic=stochastic,
        activation=_activation(policy, named.layers, where),
        obs_mean=mean,
        obs_std=std,
    )
    try:
        return interpret(tensors, spaces, settings, where).policies
    except DamagedError as error:
        raise DivergedError(error.what, where=where, remedy="try smaller learning rates") from error


def _activation(policy: Any, layers: Sequence[str], where: str) -> str | None:
    """Return what lies between a policy's linear layers, if anything, and refuse all else."""
    import torch

    families = mlp_families().items()
    kinds = {getattr(torch.nn, family.activation.module): name for name, family in families}
    modules = dict(policy.named_modules())
    parents = dict.fromkeys(name.rpartition(".")[0] for name in layers)
    parts = [modules[name] for name in parents if isinstance(modules[name], torch.nn.Sequential)]
    flat = [module for part in parts for module in part]
    if flat and isinstance(flat[-1], torch.nn.Tanh) and modules[layers[-1]] in flat:
        flat.pop()  # the squashing, which the spec names
    between = [module for module in flat if not isinstance(module, torch.nn.Linear)]
    odd = [m for m in between if type(m) not in kinds or type(m) is not type(between[0])]
    if odd or len(between) != len(layers) - 1:
        names = ", ".join(type(module).__name__ for module in odd or between)
        raise IncompatibleError(
            f"holds {names or 'nothing'} where linear layers with one activation between them are "
            "needed",
            where=where,
            remedy=expressible(),
        )
    return kinds[type(between[0])] if between else None


def _statistics(
    normalizer: Any | None, obs_dim: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of a ``VecNormalize``; without one, 0 and 1."""
    if normalizer is None or not normalizer.norm_obs:
        return np.zeros(obs_dim), np.ones(obs_dim)
    clip = float(normalizer.clip_obs)
    if np.isfinite(clip):
        warnings.warn(
            f"VecNormalize clips normalised observations at {clip:g}, policies here do not: "
            "actions differ beyond",
            ClippedObservationsWarning,
            stacklevel=3,
        )
    statistics = normalizer.obs_rms
    variance = np.asarray(statistics.var, np.float64)
    return np.array(statistics.mean, np.float64), np.sqrt(variance + normalizer.epsilon)


def _check(policy: Any, policies: Policies) -> None:
    """Compare with the source's own actions in random normalised observations.

    On average: with large weights float32 and float64 may part in some of them.

    Raises:
        IncompatibleError: The policy does something that its layers do not show.
    """
    shape = 1, policies.spec.obs_dim
    obs = np.random.default_rng(0).normal(0, 1.5, (_CHECK_ROWS, shape[1])).astype(np.float32)
    training = policy.training
    action, _ = policy.predict(obs, deterministic=True)
    policy.train(training)
    plain = Policies(policies.spec, policies.theta, np.zeros(shape), np.ones(shape))
    away = differences(plain, obs.astype(np.float64), np.asarray(action))
    if away.mean() > _CHECK_TOLERANCE:
        raise IncompatibleError(
            f"it acts otherwise than its layers say: {how_far(policies.spec, away)}",
            where=type(policy).__name__,
            remedy=expressible(),
        )
