"""The actors of live Stable-Baselines3 models as policies.

What is looked at are the attributes that the library gives its policies, and what is returned
has to act as the source does. So the library is not imported here, and none of its files, which
are pickles, is ever opened.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.make import Env
from pbvf_offline.errors import DivergedError, IncompatibleError, UsageError
from pbvf_offline.exchange.compare import differences, how_far
from pbvf_offline.exchange.layer_names import check_chain
from pbvf_offline.exchange.layers import Layer, expressible, family_of, mlp_families, to_float32
from pbvf_offline.exchange.weight_files import as_array
from pbvf_offline.policies.policy import Policies
from pbvf_offline.policies.spaces import spec_for_env
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Squash

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
    actor = _find_actor(policy)
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
    policies = _convert(policy, actor, spaces, mean, std, stochastic=stochastic)
    _check(policy, policies)
    return policies


def sb3_policies(
    policy: Any, spaces: PolicySpec, mean: NDArray[np.float64], std: NDArray[np.float64]
) -> Policies:
    """Return a Stable-Baselines3 policy's actor, deterministic, with a known normaliser.

    For policies whose construction the caller knows: nothing is compared.

    Args:
        policy: The policy of a model.
        spaces: A spec of the environment's spaces; its architecture does not matter.
        mean: (obs_dim,) of the normaliser.
        std: (obs_dim,) of the normaliser.

    Raises:
        UsageError: It has no network that acts.
        IncompatibleError: Another activation, a features extractor or other spaces.
        DivergedError: Its parameters or statistics are not finite.
    """
    return _convert(policy, _find_actor(policy), spaces, mean, std, stochastic=False)


@dataclass(frozen=True)
class _Found:
    """An actor.

    Attributes:
        network: The modules that act, in order.
        squash: How the output becomes an action, where actions are a box.
        holder: The module that observations go through first, with its features extractor.
        draws: Whether its noise is one that a policy here can have.
        log_std: The parameter of that name, if any.
    """

    network: Sequence[Any]
    squash: Squash
    holder: Any
    draws: bool = False
    log_std: Any | None = None


def _find_actor(policy: Any) -> _Found:
    unknown = UsageError(
        f"{type(policy).__name__} is no Stable-Baselines3 policy with a network that acts",
        remedy="give a model of A2C, ARS, DDPG, DQN, PPO, SAC or TD3, or its policy",
    )
    if not all(hasattr(policy, name) for name in ("predict", "action_space", "observation_space")):
        raise unknown
    actor = getattr(policy, "actor", policy)
    if hasattr(actor, "mu"):  # DDPG, TD3; SAC
        network = [actor.latent_pi, actor.mu] if hasattr(actor, "latent_pi") else [actor.mu]
        return _Found(network, "tanh", actor)
    squash: Squash = "tanh" if getattr(policy, "squash_output", False) else "none"
    if hasattr(policy, "mlp_extractor") and hasattr(policy, "action_net"):  # A2C, PPO
        network = [policy.mlp_extractor.policy_net, policy.action_net]
        draws = not getattr(policy, "use_sde", False)
        return _Found(network, squash, policy, draws, getattr(policy, "log_std", None))
    if hasattr(policy, "action_net"):  # ARS
        return _Found([policy.action_net], squash, policy)
    holder: Any = getattr(policy, "q_net", None)
    if hasattr(holder, "q_net"):  # DQN
        return _Found([holder.q_net], squash, holder)
    raise unknown


def _convert(
    policy: Any,
    actor: _Found,
    spaces: PolicySpec,
    mean: NDArray[np.float64],
    std: NDArray[np.float64],
    *,
    stochastic: bool,
) -> Policies:
    where = type(policy).__name__
    if stochastic and not actor.draws:
        raise UsageError(
            "its noise is neither a Gaussian whose log_std is a parameter nor a categorical choice",
            where=where,
            remedy="leave stochastic out to take its mean action",
        )
    for name in ("features_extractor", "pi_features_extractor"):
        extractor = getattr(actor.holder, name, None)
        if extractor is not None and any(True for _ in extractor.parameters()):
            raise IncompatibleError(
                f"has the features extractor {type(extractor).__name__}",
                where=where,
                remedy=expressible(),
            )
    layers, activation = _layers(actor.network, where)
    spec = PolicySpec(
        spaces.obs_dim,
        tuple(len(bias) for _, bias in layers[:-1]),
        spaces.actions,
        actor.squash if spaces.is_continuous else "tanh",
        stochastic,
        family_of(activation, len(layers), where).name,
    )
    chain = {str(k): weight.shape for k, (weight, _) in enumerate(layers)}
    check_chain(chain, list(chain), spec.obs_dim, spec.actions.outputs, where)
    parts = [array for layer in layers for array in layer]
    theta, _ = to_float32([as_array(actor.log_std), *parts] if spec.log_std_size else parts)
    if not all(np.isfinite(numbers).all() for numbers in (theta, mean, std)):
        raise DivergedError(
            "its parameters or statistics hold NaN or infinite values",
            where=where,
            remedy="try smaller learning rates",
        )
    return Policies(spec, theta[None], mean[None], std[None])


def _layers(network: Sequence[Any], where: str) -> tuple[list[Layer], str | None]:
    """Return linear layers and the activation between them, if any, and refuse all else."""
    import torch

    families = mlp_families().items()
    kinds = {getattr(torch.nn, family.activation.module): name for name, family in families}
    flat = [part for module in network for part in _unfolded(module)]
    if len(flat) % 2 == 0 and flat and isinstance(flat[-1], torch.nn.Tanh):
        flat.pop()  # the squashing, which the spec names
    between = type(flat[1]) if len(flat) > 1 else None
    for k, module in enumerate(flat):
        fits = (
            type(module) is between and between in kinds
            if k % 2
            else isinstance(module, torch.nn.Linear)
        )
        if not fits or (k == len(flat) - 1 and k % 2):
            raise IncompatibleError(
                f"holds {type(module).__name__} where linear layers with one activation between "
                "them are needed",
                where=where,
                remedy=expressible(),
            )
    layers = []
    for module in flat[::2]:
        weight = as_array(module.weight)
        bias = np.zeros(len(weight)) if module.bias is None else as_array(module.bias)
        layers.append((weight, bias))
    return layers, None if between is None else kinds[between]


def _unfolded(module: Any) -> Iterator[Any]:
    """Yield the modules of nested ``Sequential`` in the order in which they act."""
    import torch

    if isinstance(module, torch.nn.Sequential):
        for child in module:
            yield from _unfolded(child)
    else:
        yield module


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
