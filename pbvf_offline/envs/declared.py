"""Observations held to the space that an environment declares; no cast loses anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, OneOf, Text, Tuple
from numpy.typing import DTypeLike, NDArray

from pbvf_offline.errors import UsageError, shorten

Env = gym.Env[Any, Any]
MEND = "mend the environment"


class UnfitError(UsageError):
    """An observation does not fit its space; whoever knows step and episode adds them."""


def fitted(
    obs: Any, dtype: DTypeLike, shape: tuple[int, ...], name: str = "observation"
) -> NDArray[Any]:
    """Return numbers as an array of a shape and dtype.

    Numbers become floats with the precision of a floating-point dtype. One of integers takes what
    is an integer in its range, of whatever type.

    Args:
        obs: The numbers.
        dtype: The dtype of the space.
        shape: Its shape.
        name: What to call them.

    Raises:
        UnfitError: They have another shape, are no numbers, or are lost in that dtype.
    """
    dtype = np.dtype(dtype)
    try:
        array = np.asarray(obs)
    except Exception as error:
        raise UnfitError(
            f"its {name} is no array: {type(error).__name__}: {error}", remedy=MEND
        ) from error
    if array.shape != shape:
        raise UnfitError(f"its {name} has shape {array.shape}, its space says {shape}", remedy=MEND)
    if np.ma.is_masked(obs):
        raise UnfitError(f"its {name} is a masked array that lacks values", remedy=MEND)
    if array.dtype == dtype:
        return array
    remedy = f"let the environment return {dtype}, or declare a space of what it returns"
    dtypes = f"its {name} has dtype {array.dtype}, its space says {dtype}"
    if array.dtype.kind not in "biuf":
        raise UnfitError(dtypes, remedy=remedy)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if dtype.kind == "f":
            fits = np.isfinite(cast) | ~np.isfinite(array)
        else:
            fits = (cast == array) & (cast.astype(array.dtype) == array)
    if not fits.all():
        raise UnfitError(f"{dtypes}, which cannot hold {array[~fits][0]}", remedy=remedy)
    return cast


class Declared(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations have the form that its space declares, in every part.

    Wrappers that take an observation apart or put something beside it cast it, whatever is lost;
    so this one stands below them. It is in no spec, since it changes no observation that fits.
    """

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """The environment's own."""
        return self.env.spec

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """As of the environment.

        Raises:
            UnfitError: The observation does not fit.
        """
        obs, info = self.env.reset(**kwargs)
        return _declared(obs, self.env.observation_space, "observation"), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As of the environment.

        Raises:
            UnfitError: The observation does not fit.
        """
        obs, reward, terminated, truncated, info = self.env.step(action)
        held = _declared(obs, self.env.observation_space, "observation")
        return held, reward, terminated, truncated, info


def _declared(obs: Any, space: gym.Space[Any], name: str) -> Any:
    """Return what fits a space in the form that it declares; of other spaces, what is given."""
    for kinds, hold in _HOLD:
        if isinstance(space, kinds):
            return hold(obs, space, name)
    return obs


def _numbers(obs: Any, space: gym.Space[Any], name: str) -> Any:
    dtype = np.int64 if space.dtype is None else space.dtype
    array = fitted(obs, dtype, space.shape or (), name)
    if not isinstance(space, Box) and not space.contains(array[()]):
        raise _outside(obs, space, name)
    return array[()] if isinstance(space, Discrete) else array


def _text(obs: Any, space: Text, name: str) -> Any:
    fits = isinstance(obs, str) and len(obs) <= space.max_length
    if not fits or not set(obs) <= space.character_set:
        raise _outside(obs, space, name)
    return obs


def _dict(obs: Any, space: Dict, name: str) -> Any:
    if not isinstance(obs, Mapping) or not set(space.spaces) <= set(obs):
        raise _outside(obs, space, name)
    return {
        key: _declared(obs[key], part, f"{name}[{key!r}]") for key, part in space.spaces.items()
    }


def _tuple(obs: Any, space: Tuple[Any], name: str) -> Any:
    if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
        raise _outside(obs, space, name)
    pairs = zip(obs, space.spaces, strict=True)
    return tuple(_declared(one, part, f"{name}[{k}]") for k, (one, part) in enumerate(pairs))


def _one_of(obs: Any, space: OneOf[Any], name: str) -> Any:
    if not isinstance(obs, tuple) or len(obs) != 2 or obs[0] not in range(len(space.spaces)):
        raise _outside(obs, space, name)
    return obs[0], _declared(obs[1], space.spaces[obs[0]], f"{name}[1]")


_HOLD: Final[tuple[tuple[Any, Callable[..., Any]], ...]] = (
    ((Box, Discrete, MultiDiscrete, MultiBinary), _numbers),
    (Text, _text),
    (Dict, _dict),
    (Tuple, _tuple),
    (OneOf, _one_of),
)


def _outside(obs: Any, space: gym.Space[Any], name: str) -> UnfitError:
    return UnfitError(f"its {name} is {shorten(repr(obs))}, outside {shorten(space)}", remedy=MEND)
