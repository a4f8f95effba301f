"""Wrappers that make one vector of an observation of several parts, and which of them helps.

The order of the numbers is that of ``gymnasium.spaces.utils.flatten``: the parts of a ``Dict`` as
they stand in the space (sorted by key, unless it was built otherwise, say of an ``OrderedDict``),
those of a ``Tuple`` as they stand, arrays row by row. A choice among n (``Discrete``, each
component of ``MultiDiscrete``) is n numbers of which one is 1, a ``Text`` the numbers of its
characters. The dtype is the one that numpy promotes the dtypes of all parts to, or where datasets
cannot hold that, uint8 (for bool) or float64. It is stored with a dataset's observation space.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Tuple
from gymnasium.wrappers import (
    DtypeObservation,
    FilterObservation,
    FlattenObservation,
    FrameStackObservation,
)

from pbvf_offline.envs.wrappers import OPTION, Wrapper
from pbvf_offline.errors import UsageError, shorten

Env = gym.Env[Any, Any]
LIMIT = 10_000
"""Numbers of an observation that need no ``limit``; parameters of a policy grow with them."""
_MODULE = "register it in a module of yours, named here as module:Name-v0, wrapped in"
_SMALLER = "gymnasium.wrappers.GrayscaleObservation and ResizeObservation"


def is_vector(space: gym.Space[Any]) -> TypeGuard[Box]:
    """Whether observations of a space are vectors (n,) of numbers that datasets can hold."""
    return (
        isinstance(space, Box)
        and len(space.shape) == 1
        and space.shape[0] >= 1
        and _is_storable(space.dtype)
    )


def flatten(env: Env, limit: int = LIMIT) -> Env:
    """Return an environment whose observation is one vector; see the module for order and dtype.

    Args:
        env: The environment.
        limit: Largest number of numbers.

    Raises:
        UsageError: The observation has parts that make no vector, or too many numbers.
    """
    space = env.observation_space
    size = _size(space)
    if not size:
        raise UsageError(
            f"observations in {shorten(space, 200)} make no vector",
            where=OPTION,
            remedy=observation_help(space),
        )
    if size > limit:
        raise UsageError(
            f"the observation would be one vector of {size:,} numbers, more than {limit:,}, and a "
            "policy has parameters for each of them",
            where=OPTION,
            remedy=f"take parts of it with select-observation; of an image, {_MODULE} {_SMALLER}; "
            f'or insist with "limit": {size}',
        )
    flat: Env = FlattenObservation(env)
    dtype = np.dtype(flat.observation_space.dtype)
    if not _is_storable(dtype):
        kept: type[np.generic] = np.uint8 if dtype.kind == "b" else np.float64
        flat = DtypeObservation(flat, kept)
    return flat


def select(env: Env, keys: Sequence[str | int], limit: int = LIMIT) -> Env:
    """Return an environment whose observation is one vector of some parts, in the space's order.

    Args:
        env: An environment with ``Dict`` or ``Tuple`` observations.
        keys: Keys of the ``Dict``, or numbers of the parts of the ``Tuple``.
        limit: Largest number of numbers.
    """
    space = env.observation_space
    order = {key: place for place, key in enumerate(_parts(space))}
    parts: list[Any] = sorted(keys, key=lambda key: order.get(key, -1))
    chosen: Env = FilterObservation(env, parts)
    if isinstance(space, Dict):  # which the wrapper sorts by key again
        chosen.observation_space = Dict([(key, space[key]) for key in parts])
    return flatten(chosen, limit)


def stack(env: Env, stack_size: int) -> Env:
    """Return an environment whose observation (stack_size * obs_dim,) ends with the present one.

    At a reset the first observation stands in all places.
    """
    return flatten(FrameStackObservation(env, stack_size))


def observation_help(space: gym.Space[Any]) -> str:
    """Return what to add to make one vector of observations in a space that are none."""
    size = _size(space)
    if size:
        wrapper = Wrapper("flatten-observation", {"limit": size} if size > LIMIT else {})
        advice = f"add {wrapper.option} for one vector of {size:,} numbers"
        is_large_image = isinstance(space, Box) and size > LIMIT
        return (
            f"{advice}; for fewer of an image, {_MODULE} {_SMALLER}" if is_large_image else advice
        )
    parts = _parts(space)
    sizes = {key: _size(part) for key, part in parts.items()}
    keys = [key for key, part in sizes.items() if part]
    total = sum(part or 0 for part in sizes.values())
    if keys and total <= LIMIT:
        left_out = ", ".join(str(key) for key in sizes if key not in keys)
        option = Wrapper("select-observation", {"keys": keys}).option
        return f"add {option} for one vector of {total:,} numbers, without {left_out}"
    return f"{_MODULE} gymnasium.wrappers.TransformObservation, with a 1-D Box"


def _size(space: gym.Space[Any]) -> int | None:
    """Return how many numbers an observation is as one vector; None where it cannot be one."""
    with contextlib.suppress(Exception):  # a space of somebody's own does as it likes
        if space.is_np_flattenable:
            return math.prod(space.shape) if isinstance(space, Box) else gym.spaces.flatdim(space)
    return None


def _parts(space: gym.Space[Any]) -> dict[Any, gym.Space[Any]]:
    if isinstance(space, Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, Tuple) else {}


def _is_storable(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "fiu" and dtype.itemsize <= 8
