"""Environment wrappers that a user asks for by name, and that files may name.

A new one is a row in :data:`WRAPPERS`: what wraps an environment, called with the environment and
scalar keyword arguments. The wrapped spaces must be supported. A package adds one with the entry
point group ``pbvf_offline.wrappers``. A name in a file chooses among what is installed here, and
its arguments are held to the same rule as an environment's own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pbvf_offline.envs.portable import is_portable
from pbvf_offline.errors import PbvfError, exception_text
from pbvf_offline.foreign import failure
from pbvf_offline.records import Record
from pbvf_offline.registry import Member, Registry

if TYPE_CHECKING:
    import gymnasium as gym

    Env = gym.Env[Any, Any]

OPTION = "--wrapper"
WRAPPERS: Registry[Callable[..., Env]] = Registry(
    "wrapper",
    "pbvf_offline.wrappers",
    {
        "flatten-observation": Member(
            "gymnasium.wrappers:FlattenObservation",
            "an observation of several parts as one vector",
        ),
        "frame-stack": Member(
            "pbvf_offline.envs.wrappers:stack_frames",
            "the last stack_size observations side by side",
        ),
        "time-feature": Member(
            "gymnasium.wrappers:TimeAwareObservation",
            "the steps taken so far beside the observation; needs a time limit",
        ),
        "rescale-action": Member(
            "gymnasium.wrappers:RescaleAction",
            "actions from min_action to max_action in place of the environment's own range",
        ),
    },
)


@dataclass(frozen=True)
class Wrapper(Record):
    """A wrapper as data.

    Attributes:
        name: Its name in :data:`WRAPPERS`.
        kwargs: Scalar, path-free keyword arguments.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """As a user writes it: ``NAME`` or ``NAME:JSON``."""
        arguments = json.dumps(dict(self.kwargs), sort_keys=True)
        return f"{self.name}:{arguments}" if self.kwargs else self.name

    @property
    def unsafe(self) -> list[str]:
        """Names of arguments that files may not hold."""
        return [key for key, value in self.kwargs.items() if not is_portable(key, value)]


def wrap(env: Env, wrappers: Iterable[Wrapper]) -> Env:
    """Return an environment in wrappers, the first of them innermost.

    Raises:
        UsageError: There is no such wrapper, or it refuses the environment or its arguments.
    """
    for wrapper in wrappers:
        make = WRAPPERS.choose(wrapper.name, where=OPTION)
        try:
            env = make(env, **wrapper.kwargs)
        except PbvfError:
            raise
        except (Exception, SystemExit) as error:
            raise failure(
                error,
                f"{wrapper.name} refused {dict(wrapper.kwargs)}: {exception_text(error)}",
                where=OPTION,
                remedy="check its arguments, and that it goes with the environment",
            ) from error
    return env


def stack_frames(env: Env, stack_size: int) -> Env:
    """Return an environment whose observation (stack_size * obs_dim,) ends with the present one.

    At a reset the first observation stands in all places.
    """
    from gymnasium.wrappers import FlattenObservation, FrameStackObservation

    stacked: Env = FlattenObservation(FrameStackObservation(env, stack_size))
    return stacked
