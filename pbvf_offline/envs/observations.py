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
    TimeAwareObservation,
)

from pbvf_offline.envs.declared import Declared
from pbvf_offline.envs.wrappers import OPTION, Wrapper, check_whole
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
            f"observations in {shorten(space, 200)} cannot become one vector",
            where=OPTION,
            remedy=observation_help(space),
        )
    _check_size(size, limit)
    flat: Env = FlattenObservation(Declared(env))
    dtype = np.dtype(flat.observation_space.dtype)
    if not _is_storable(dtype):
        kept: type[np.generic] = np.uint8 if dtype.kind == "b" else np.float64
        flat = DtypeObservation(flat, kept)
    return flat


def select(env: Env, keys: Sequence[str | int], limit: int = LIMIT) -> Env:
    """Return an environment whose observation is one vector of some parts, in the space's order.

    Args:
        env: An environment with ``Dict`` or ``Tuple`` observations.
        keys: Keys of the ``Dict``, or numbers of the parts of the ``Tuple`` from 0, each once.
        limit: Largest number of numbers.

    Raises:
        UsageError: The observation has no such parts; as :func:`flatten`.
    """
    space = env.observation_space
    order = {key: place for place, key in enumerate(_parts(space))}
    where = f"{OPTION} select-observation"
    if not order:
        raise UsageError(
            f"it is for Dict and Tuple observations, which {shorten(space)} is not", where=where
        )
    if not isinstance(keys, list | tuple) or not keys:
        raise UsageError(
            f"keys is {shorten(repr(keys))}", where=where, remedy="give a list of parts"
        )
    whole = int if isinstance(space, Tuple) else str
    for place, key in enumerate(keys):
        if type(key) is not whole or key not in order or key in keys[:place]:
            twice = " twice" if key in keys[:place] else ""
            raise UsageError(
                f"keys has {shorten(repr(key))}{twice}",
                where=where,
                remedy=f"give some of {shorten(list(order))}, each once",
            )
    parts: list[Any] = sorted(keys, key=lambda key: order[key])
    chosen: Env = FilterObservation(env, parts)
    if isinstance(space, Dict):  # which the wrapper sorts by key again
        chosen.observation_space = Dict([(key, space[key]) for key in parts])
    return flatten(chosen, limit)


def stack(env: Env, stack_size: int, limit: int = LIMIT) -> Env:
    """Return an environment whose observation (stack_size * obs_dim,) ends with the present one.

    At a reset the first observation stands in all places.

    Raises:
        UsageError: The number is none; as :func:`flatten`.
    """
    check_whole(f"{OPTION} frame-stack", "stack_size", stack_size)
    _check_size(stack_size * (_size(env.observation_space) or 0), limit)
    return flatten(FrameStackObservation(Declared(env), stack_size), limit)


def time_feature(env: Env, normalize_time: bool = False) -> Env:
    """Return an environment whose observation has the steps taken so far at its end.

    Args:
        env: An environment with a time limit.
        normalize_time: Whether they are divided by the limit.

    Raises:
        UsageError: There is no limit.
    """
    where = f"{OPTION} time-feature"
    if type(normalize_time) is not bool:
        raise UsageError(
            f"normalize_time is {shorten(repr(normalize_time))}",
            where=where,
            remedy="give true or false",
        )
    if env.spec is None or env.spec.max_episode_steps is None:
        raise UsageError(
            "the environment has no time limit", where=where, remedy="give --max-episode-steps"
        )
    return TimeAwareObservation(Declared(env), normalize_time=normalize_time)


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


def _check_size(size: int, limit: int) -> None:
    check_whole(OPTION, "limit", limit)
    if size > limit:
        raise UsageError(
            f"the observation would be one vector of {size:,} numbers, more than {limit:,}, and a "
            "policy has parameters for each of them",
            where=OPTION,
            remedy=f"take parts of it with select-observation; of an image, {_MODULE} {_SMALLER}; "
            f'or insist with "limit": {size}',
        )


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
