"""Environment wrappers that a user asks for by name, and that files may name.

A new one is a row in :data:`WRAPPERS`: what wraps an environment, called with the environment and
keyword arguments that are scalars or lists of them. The wrapped spaces must be supported. A package
adds one with the entry point group ``pbvf_offline.wrappers``. A name in a file chooses among what
is installed here, and each scalar is held to the same rule as an environment's own argument.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pbvf_offline.envs.portable import is_portable
from pbvf_offline.errors import PbvfError, UsageError, exception_text, shorten
from pbvf_offline.foreign import failure, stops
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
            "pbvf_offline.envs.observations:flatten",
            "an observation of several parts, or a small image, as one vector",
        ),
        "select-observation": Member(
            "pbvf_offline.envs.observations:select",
            "the parts called keys of an observation as one vector",
        ),
        "frame-stack": Member(
            "pbvf_offline.envs.observations:stack",
            "the last stack_size observations side by side",
        ),
        "time-feature": Member(
            "pbvf_offline.envs.observations:time_feature",
            "the steps taken so far beside the observation; needs a time limit",
        ),
        "rescale-action": Member(
            "pbvf_offline.envs.actions:rescale",
            "actions from min_action to max_action in place of the environment's own range",
        ),
        "flatten-action": Member(
            "pbvf_offline.envs.actions:FlattenAction",
            "an action of several dimensions as one vector",
        ),
        "bound-action": Member(
            "pbvf_offline.envs.actions:BoundAction",
            "actions from min_action to max_action where the environment has no bounds",
        ),
        "continuous-action": Member(
            "pbvf_offline.envs.actions:ContinuousAction",
            "several whole numbers (MultiDiscrete, MultiBinary, integer Box) by numbers in [-1, 1]",
        ),
        "discrete-action": Member(
            "pbvf_offline.envs.actions:DiscreteAction",
            "several whole numbers as one choice among all of their combinations",
        ),
    },
)


@dataclass(frozen=True)
class Wrapper(Record):
    """A wrapper as data.

    Attributes:
        name: Its name in :data:`WRAPPERS`.
        kwargs: Path-free keyword arguments, scalars or lists of them.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """As a user writes it: ``NAME`` or ``NAME:JSON``."""
        arguments = json.dumps(dict(self.kwargs), sort_keys=True)
        return f"{self.name}:{arguments}" if self.kwargs else self.name

    @property
    def option(self) -> str:
        """The words of a command line that ask for it."""
        return shlex.join([OPTION, str(self)])

    @property
    def unsafe(self) -> list[str]:
        """Names of arguments that files may not hold."""
        values = [(k, v if isinstance(v, list) else [v]) for k, v in self.kwargs.items()]
        return [key for key, parts in values if not all(is_portable(key, v) for v in parts)]


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
        except BaseException as error:
            if stops(error):
                raise
            raise failure(
                error,
                f"{wrapper.name} refused {dict(wrapper.kwargs)}: {exception_text(error)}",
                where=OPTION,
                remedy="check its arguments, and that it goes with the environment",
            ) from error
    return env


def check_whole(where: str, name: str, value: object) -> None:
    """Refuse an argument that is no whole number from 1.

    Raises:
        UsageError: It is something else; booleans are.
    """
    if type(value) is not int or value < 1:
        raise UsageError(
            f"{name} is {shorten(repr(value))}",
            where=where,
            remedy="give a whole number from 1",
        )
