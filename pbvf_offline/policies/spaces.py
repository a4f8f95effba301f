"""The policies that an environment's spaces allow."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from pbvf_offline.envs.actions import action_help
from pbvf_offline.envs.make import Env, env_name
from pbvf_offline.envs.observations import is_vector, observation_help
from pbvf_offline.errors import IncompatibleError, UsageError, shorten
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Squash

SUPPORTED = "1-D Box observations with 1-D finite floating-point Box or Discrete actions"


def spec_for_env(
    env: Env,
    hidden: tuple[int, ...],
    *,
    squash: Squash = "tanh",
    stochastic: bool = False,
    family: str = DEFAULT_FAMILY,
) -> PolicySpec:
    """Return the policy spec for an environment's spaces.

    Args:
        env: The environment.
        hidden: Sizes of the network, such as ``(64, 64)``.
        squash: How outputs become continuous actions; discrete ones have no choice.
        stochastic: Whether actions are drawn.
        family: Name of the policy family.

    Raises:
        UsageError: The spaces are not supported; the message names what is, and what to wrap the
            environment in.
    """
    name = env_name(env)
    obs, action = env.observation_space, env.action_space
    if not is_vector(obs):
        raise UsageError(
            f"observation space {shorten(obs, 200)} is not supported",
            where=name,
            remedy=f"supported are {SUPPORTED}; {observation_help(obs)}",
        )
    actions = actions_of(action)
    if actions is None:
        raise UsageError(
            f"action space {shorten(action, 200)} is not supported",
            where=name,
            remedy=f"supported are {SUPPORTED}; {action_help(action)}",
        )
    return PolicySpec(obs.shape[0], hidden, actions, squash, stochastic, family)


def actions_of(space: gym.Space[Any]) -> BoxActions | DiscreteActions | None:
    """Return the actions of policies that act in all of a space; None where none can."""
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteActions(int(space.n), int(space.start))
    if (
        isinstance(space, gym.spaces.Box)
        and len(space.shape) == 1
        and space.shape[0] >= 1
        and space.dtype.kind == "f"
        and bool(np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high)))
        and bool(np.all(space.low < space.high))
    ):
        return BoxActions(
            tuple(float(v) for v in space.low),
            tuple(float(v) for v in space.high),
            str(space.dtype),
        )
    return None


def action_space(actions: BoxActions | DiscreteActions) -> gym.spaces.Box | gym.spaces.Discrete:
    """Return the action space of policies as Gymnasium has it."""
    if isinstance(actions, DiscreteActions):
        return gym.spaces.Discrete(actions.n, start=actions.start)
    dtype = np.dtype(actions.dtype)
    return gym.spaces.Box(
        np.array(actions.low, dtype), np.array(actions.high, dtype), dtype=dtype.type
    )


def check_spaces_fit(spec: PolicySpec, offered: PolicySpec, name: str) -> None:
    """Check that policies of a spec can act where ``offered`` is the spec of fresh ones.

    Raises:
        IncompatibleError: Observations or actions differ.
    """
    if spec.obs_dim != offered.obs_dim or spec.actions != offered.actions:
        raise IncompatibleError(
            f"the policies observe {spec.obs_dim} numbers and their actions are {spec.actions}; "
            f"of the environment these are {offered.obs_dim} and {offered.actions}",
            where=name,
            remedy="name the environment they were made for",
        )
