"""Wrappers that give an environment actions which policies have, and which of them helps.

Policies act in a vector of bounded floating-point numbers or choose one of n. Each wrapper is a
function from such an action to one of the environment's own. Datasets hold what the policy did,
as for every wrapper: the environment's own action follows from it by the equation below.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import RescaleAction, TransformAction
from numpy.typing import NDArray

from pbvf_offline.envs.wrappers import OPTION, Wrapper, check_whole
from pbvf_offline.errors import UsageError, shorten

Env = gym.Env[Any, Any]
LIMIT = 1_000
"""Choices of one discrete action that need no ``limit``; a policy has an output for each."""
_EXACT = 2**53  # whole numbers that float64 has all of
_MODULE = "register it in a module of yours, named here as module:Name-v0, wrapped in"


class FlattenAction(TransformAction[Any, Any, Any], RecordConstructorArgs):
    """A floating-point Box of any shape as a vector, row by row, with the same bounds and dtype."""

    def __init__(self, env: Env) -> None:
        RecordConstructorArgs.__init__(self)
        box = _floats(env, "flatten-action")
        flat = Box(box.low.ravel(), box.high.ravel(), dtype=box.dtype.type)
        super().__init__(env, lambda action: action.reshape(box.shape), flat)


class BoundAction(TransformAction[Any, Any, Any], RecordConstructorArgs):
    """Actions of a floating-point Box within bounds, or within its own where they are narrower.

    An action is passed on as it is.

    Args:
        env: The environment.
        min_action: Lower bound of every number.
        max_action: Upper bound of every number.
    """

    def __init__(self, env: Env, min_action: float, max_action: float) -> None:
        RecordConstructorArgs.__init__(self, min_action=min_action, max_action=max_action)
        box = _floats(env, "bound-action")
        _check_range("bound-action", box, min_action, max_action)
        low, high = np.maximum(box.low, min_action), np.minimum(box.high, max_action)
        if not np.all(low < high):
            raise UsageError(
                f"nothing of {shorten(box)} is between min_action {min_action} and max_action "
                f"{max_action}",
                where=f"{OPTION} bound-action",
                remedy="give wider bounds",
            )
        super().__init__(env, lambda action: action, Box(low, high, dtype=box.dtype.type))


def rescale(env: Env, min_action: float, max_action: float) -> Env:
    """Return an environment whose actions have another range, mapped to its own linearly.

    Args:
        env: An environment with bounded floating-point Box actions.
        min_action: Lower bound of every number.
        max_action: Upper bound of every number.

    Raises:
        UsageError: These are no bounds, or the environment has none.
    """
    box = _floats(env, "rescale-action")
    _check_range("rescale-action", box, min_action, max_action)
    if not box.is_bounded():
        raise UsageError(
            f"it is for bounded actions, which {shorten(box)} has not",
            where=f"{OPTION} rescale-action",
            remedy="use --wrapper bound-action",
        )
    make: Any = RescaleAction  # its annotations leave out Python's own numbers
    return cast("Env", make(env, min_action, max_action))


class ContinuousAction(TransformAction[Any, Any, Any], RecordConstructorArgs):
    """Several whole numbers by a vector in [-1, 1], whose range is shared out evenly among values.

    A number with the values ``start, …, start + n - 1`` is ``start + min(floor((a + 1) / 2 * n),
    n - 1)``: for ``MultiBinary`` (n = 2) 1 where ``a >= 0``.
    """

    def __init__(self, env: Env) -> None:
        RecordConstructorArgs.__init__(self)
        grid = _grid(env, "continuous-action")
        start, most = np.asarray(grid.start), np.asarray(grid.counts) - 1
        shape, dtype = env.action_space.shape, env.action_space.dtype

        def to_own(action: NDArray[np.float32]) -> NDArray[Any]:
            share = (np.asarray(action, np.float64) + 1) / 2 * (most + 1)
            steps = np.clip(np.floor(share), 0, most).astype(np.int64)
            own: NDArray[Any] = (start + steps).astype(dtype).reshape(shape)
            return own

        super().__init__(env, to_own, Box(-1, 1, (len(grid.start),), np.float32))


class DiscreteAction(TransformAction[Any, Any, Any], RecordConstructorArgs):
    """Several whole numbers as one choice among all of their combinations.

    With n_i values of number i, choice k is the k-th combination in mixed radix, the last number
    counting fastest: ``k = (…(i_1 n_2 + i_2) n_3 + …)``, as ``numpy.unravel_index`` has it.

    Args:
        env: The environment.
        limit: Largest number of combinations.
    """

    def __init__(self, env: Env, limit: int = LIMIT) -> None:
        RecordConstructorArgs.__init__(self, limit=limit)
        check_whole(f"{OPTION} discrete-action", "limit", limit)
        grid = _grid(env, "discrete-action")
        total = math.prod(grid.counts)
        if total > limit:
            raise UsageError(
                f"{shorten(env.action_space)} has more than {limit:,} combinations, and a policy "
                "has an output for each of them",
                where=f"{OPTION} discrete-action",
                remedy="use --wrapper continuous-action",
            )
        start, shape = np.asarray(grid.start), env.action_space.shape or ()
        rows = np.stack(np.unravel_index(np.arange(total), grid.counts), axis=1) + start
        own = rows.astype(env.action_space.dtype).reshape((total, *shape))
        super().__init__(env, lambda choice: own[choice].copy(), Discrete(total))


def action_help(space: gym.Space[Any]) -> str:
    """Return what to add for actions that policies have, in a space that has others."""
    grid = _grid_of(space)
    if grid is not None:
        total = math.prod(grid.counts)
        text = f"add --wrapper continuous-action for {len(grid.counts)} numbers in [-1, 1]"
        if total > LIMIT:
            return text
        return f"{text}, or --wrapper discrete-action for one of {total:,} choices"
    if isinstance(space, Box) and space.dtype.kind == "f" and 0 not in space.shape:
        options = [Wrapper("flatten-action").option] if len(space.shape) != 1 else []
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            options.append(Wrapper("bound-action", {"min_action": -1, "max_action": 1}).option)
        if options and np.all(space.low < space.high):
            return f"add {' '.join(options)}"
    return f"{_MODULE} gymnasium.wrappers.TransformAction, with a 1-D Box that has finite bounds"


class _Grid(NamedTuple):
    """The least value and the number of values of each whole number, row by row."""

    start: list[int]
    counts: list[int]


def _grid_of(space: gym.Space[Any]) -> _Grid | None:
    if isinstance(space, MultiBinary):
        size = math.prod(space.shape)
        grid = _Grid([0] * size, [2] * size)
    elif isinstance(space, MultiDiscrete):
        grid = _Grid(space.start.ravel().tolist(), space.nvec.ravel().tolist())
    elif isinstance(space, Box) and space.dtype.kind in "iub":
        low, high = (list(map(int, end.ravel())) for end in (space.low, space.high))
        grid = _Grid(low, [b - a + 1 for a, b in zip(low, high, strict=True)])
    else:
        return None
    ends = [a + n for a, n in zip(*grid, strict=True)]
    exact = all(-_EXACT <= value <= _EXACT for value in [*grid.start, *grid.counts, *ends])
    return grid if exact and grid.counts and min(grid.counts) >= 1 else None


def _grid(env: Env, name: str) -> _Grid:
    grid = _grid_of(env.action_space)
    if grid is None:
        raise UsageError(
            "it is for MultiDiscrete, MultiBinary and integer Box actions (of at most 2**53 "
            f"values), which {shorten(env.action_space)} is not",
            where=f"{OPTION} {name}",
        )
    return grid


def _floats(env: Env, name: str) -> Box:
    space = env.action_space
    if not (isinstance(space, Box) and space.dtype.kind == "f"):
        raise UsageError(
            f"it is for floating-point Box actions, which {shorten(space)} is not",
            where=f"{OPTION} {name}",
        )
    return space


def _check_range(name: str, box: Box, low: object, high: object) -> None:
    """Refuse bounds that are no numbers of a box's dtype, the lower one first."""
    most = float(np.finfo(str(box.dtype)).max)
    for argument, value in (("min_action", low), ("max_action", high)):
        if type(value) not in (int, float) or not abs(value) <= most:  # type: ignore[arg-type]
            raise UsageError(
                f"{argument} is {shorten(repr(value))}",
                where=f"{OPTION} {name}",
                remedy=f"give a number of {box.dtype}, {most:.3g} at most",
            )
    ends = np.array([low, high], box.dtype)
    if not ends[0] < ends[1]:
        raise UsageError(
            f"min_action {low} is not below max_action {high} in {box.dtype}",
            where=f"{OPTION} {name}",
            remedy="give wider bounds",
        )
