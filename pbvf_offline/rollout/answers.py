"""What an environment answers, held to what it declared; nothing is cast that loses something.

The loop looks at the types of an answer, which costs a tenth of a microsecond, and asks here about
all that is not exactly as declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from pbvf_offline.envs.declared import MEND, UnfitError, fitted
from pbvf_offline.envs.make import Env, env_name
from pbvf_offline.errors import UsageError, shorten
from pbvf_offline.policies.spaces import actions_of

NUMBERS: Final = frozenset({float, np.float64})
"""Types of rewards that need no further look."""
FLAGS: Final = frozenset({bool, np.bool_})
"""Types of ``terminated`` and ``truncated`` that need no further look."""


class Answers:
    """Checks the answers of an environment in one episode.

    Args:
        env: The environment.
        obs_dim: Number of observations.
        episode: Number of the episode, for messages.

    Attributes:
        dtype: The dtype of the observation space.
        shape: ``(obs_dim,)``.
    """

    def __init__(self, env: Env, obs_dim: int, episode: int) -> None:
        self.dtype = np.dtype(env.observation_space.dtype)
        self.shape = (obs_dim,)
        self._floats = self.dtype.kind == "f"
        most = float(np.finfo(self.dtype).max) if self._floats else 0.0
        self._small = most * most
        self._env, self._episode = env, episode
        self._actions = actions_of(env.action_space)  # spaces can be changed in place

    def observation(self, obs: Any, step: int) -> NDArray[Any]:
        """Return an observation (obs_dim,) in the dtype of its space, as :func:`fitted` does.

        Raises:
            UsageError: It has another shape, is not made of numbers, or does not fit the space.
        """
        if self._floats and type(obs) is np.ndarray and obs.dtype.kind == "f":
            # Many environments return float64 in a space of float32. A sum of squares that small
            # says that no number is too large for the cast, at a tenth of the work below.
            with np.errstate(all="ignore"):
                if obs.shape == self.shape and float(obs.dot(obs)) <= self._small:
                    return obs.astype(self.dtype)
        try:
            return fitted(obs, self.dtype, self.shape)
        except UnfitError as error:
            raise self.unfit(error, step) from error

    def unfit(self, error: UnfitError, step: int) -> UsageError:
        """Return an error about an observation that says in which step it was."""
        return UsageError(
            f"{error.what}, in step {step} of episode {self._episode}",
            where=env_name(self._env),
            remedy=error.remedy,
        )

    def scalars(self, step: int, reward: Any, terminated: Any, truncated: Any) -> None:
        """Check the rest of what a step answers.

        Raises:
            UsageError: The reward is not a number, or a flag not true or false.
        """
        self.number("reward", reward, step)
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not _is_scalar(value, "biu"):
                self._refuse(name, step, f"is {_told(value)}, not true or false")

    def number(self, name: str, value: Any, step: int) -> None:
        """Check a reward, or what is part of one.

        Raises:
            UsageError: It is not a number.
        """
        if not _is_scalar(value, "fiub"):
            self._refuse(name, step, f"is {_told(value)}, not a number that float64 holds")

    def info(self, info: Any, step: int) -> None:
        """Check that an info is a mapping.

        Raises:
            UsageError: It is something else.
        """
        if not isinstance(info, Mapping):
            self._refuse("info", step, f"is {_told(info)}, not a dictionary")

    def actions(self, step: int) -> None:
        """Check that the action space is the one that the environment had before the episode.

        Raises:
            UsageError: It is another one, in which the actions stored mean something else.
        """
        space = self._env.action_space
        if actions_of(space) != self._actions:
            self._refuse("action space", step, f"has become {shorten(space)}")

    def _refuse(self, name: str, step: int, what: str) -> NoReturn:
        raise self.unfit(UnfitError(f"its {name} {what}", remedy=MEND), step)


def _is_scalar(value: Any, kinds: str) -> bool:
    if isinstance(value, np.ma.MaskedArray):
        return False
    try:
        array = np.asarray(value)
    except Exception:
        return False
    return array.ndim == 0 and array.dtype.kind in kinds


def _told(value: object) -> str:
    try:
        return f"{shorten(repr(value))} ({type(value).__name__})"
    except Exception:
        return f"of type {type(value).__name__}"
