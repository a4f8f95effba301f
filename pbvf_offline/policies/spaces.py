"""The policies that an environment's spaces allow."""

from __future__ import annotations

import contextlib
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np

from pbvf_offline.envs.make import Env, env_name
from pbvf_offline.errors import IncompatibleError, UsageError
from pbvf_offline.policies.actions import BoxActions, DiscreteActions
from pbvf_offline.policies.families import DEFAULT_FAMILY
from pbvf_offline.policies.spec import PolicySpec
from pbvf_offline.setting_types import Squash

SUPPORTED = "1-D Box observations with 1-D finite floating-point Box or Discrete actions"
_IN_A_MODULE = "register it in a module of yours, named here as module:Name-v0, wrapped in"
_MANY_NUMBERS = 1_000  # of an observation; parameters grow with them


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
    if not _is_vector(obs):
        raise UsageError(
            f"observation space {obs} is not supported",
            where=name,
            remedy=f"supported are {SUPPORTED}; {_observation_advice(obs)}",
        )
    actions: BoxActions | DiscreteActions
    if isinstance(action, gym.spaces.Discrete):
        actions = DiscreteActions(int(action.n), int(action.start))
    elif (
        isinstance(action, gym.spaces.Box)
        and len(action.shape) == 1
        and action.shape[0] >= 1
        and action.dtype.kind == "f"
        and bool(np.all(np.isfinite(action.low)) and np.all(np.isfinite(action.high)))
        and bool(np.all(action.low < action.high))
    ):
        actions = BoxActions(
            tuple(float(v) for v in action.low),
            tuple(float(v) for v in action.high),
            str(action.dtype),
        )
    else:
        raise UsageError(
            f"action space {action} is not supported",
            where=name,
            remedy=f"supported are {SUPPORTED}; {_IN_A_MODULE} {_action_wrapper(action)}",
        )
    return PolicySpec(obs.shape[0], hidden, actions, squash, stochastic, family)


def _is_vector(space: gym.Space[Any]) -> TypeGuard[gym.spaces.Box]:
    return (
        isinstance(space, gym.spaces.Box)
        and len(space.shape) == 1
        and space.shape[0] >= 1
        and space.dtype.kind in "fiub"
    )


def _observation_advice(space: gym.Space[Any]) -> str:
    """Return what makes one vector of observations that are none."""
    with contextlib.suppress(Exception):  # a space of somebody's own
        flat = gym.spaces.flatten_space(space)
        if _is_vector(flat):
            size = flat.shape[0]
            advice = f"add --wrapper flatten-observation for one vector of {size:,} numbers"
            if not isinstance(space, gym.spaces.Box) or size <= _MANY_NUMBERS:
                return advice
            return (
                f"{advice}; for fewer of an image, {_IN_A_MODULE} "
                "gymnasium.wrappers.GrayscaleObservation and ResizeObservation"
            )
    return f"{_IN_A_MODULE} gymnasium.wrappers.TransformObservation, with a 1-D Box"


def _action_wrapper(space: gym.Space[Any]) -> str:
    """Return the wrapper, as Python, that gives an environment actions that are supported."""
    function, box = "", ""
    if isinstance(space, gym.spaces.MultiBinary):
        function = "(a > 0).reshape(s.shape).astype(s.dtype)"
        box = f"Box(-1, 1, ({int(np.prod(space.shape))},))"
    elif isinstance(space, gym.spaces.MultiDiscrete) and space.nvec.ndim == 1:
        function = "np.minimum(a * s.nvec, s.nvec - 1).astype(s.dtype) + s.start"
        box = f"Box(0, 1, ({len(space.nvec)},))"
    elif isinstance(space, gym.spaces.Box) and not bool(
        np.all(np.isfinite([*space.low.flat, *space.high.flat]))
    ):
        function = "a.reshape(s.shape)"
        box = f"Box(-1, 1, ({int(np.prod(space.shape))},))"
    elif isinstance(space, gym.spaces.Box) and bool(np.all(space.low < space.high)):
        function, cast, dtype = "a.reshape(s.shape)", "", "s.dtype"
        if space.dtype.kind in "iu":
            function = "np.rint(a).reshape(s.shape).astype(s.dtype)"
            cast, dtype = ".astype(float)", "float"
        box = f"Box(s.low.ravel(){cast}, s.high.ravel(){cast}, dtype={dtype})"
    if not function:
        return "gymnasium.wrappers.TransformAction, with a 1-D Box that has finite bounds"
    call = f"TransformAction(env, lambda a: {function}, {box})"
    return f"gymnasium.wrappers.{call}, s = env.action_space"


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
            f"the policies observe {spec.obs_dim} numbers and act in {spec.actions}, the "
            f"environment offers {offered.obs_dim} and {offered.actions}",
            where=name,
            remedy="name the environment they were made for",
        )
