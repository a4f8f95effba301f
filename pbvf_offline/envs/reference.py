"""References to environments: what a user names, and what a file may carry of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pbvf_offline.envs.portable import is_portable
from pbvf_offline.envs.wrappers import Wrapper
from pbvf_offline.errors import UsageError
from pbvf_offline.records import Record, since
from pbvf_offline.setting_types import MOST


@dataclass(frozen=True)
class EnvConfig:
    """An environment as a user names it on the command line.

    Attributes:
        name: A Gymnasium id, or ``module:Name-v0``, which imports ``module`` first.
        kwargs: Keyword arguments for the environment.
        max_episode_steps: A time limit in place of the registered one.
        wrappers: What it is wrapped in, the innermost first.

    Raises:
        UsageError: A time limit, also one among ``kwargs``, is no number of steps.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    wrappers: tuple[Wrapper, ...] = ()

    def __post_init__(self) -> None:
        if not is_time_limit(self.limit):
            raise UsageError(
                f"max_episode_steps is {self.limit!r}, which is no number of steps",
                where=self.name,
                remedy="give a whole number from 1",
            )

    @property
    def limit(self) -> int | None:
        """The time limit that it sets, in steps; None leaves the registered one."""
        if self.max_episode_steps is not None:
            return self.max_episode_steps
        limit: int | None = self.kwargs.get("max_episode_steps")
        return limit

    def reference(self) -> EnvReference:
        """Return what a file may carry of this environment: nothing that names a path."""
        module, _, env_id = self.name.rpartition(":")
        kept = {k: v for k, v in sorted(self.kwargs.items()) if is_portable(k, v)}
        if self.max_episode_steps is not None:
            kept["max_episode_steps"] = self.max_episode_steps
        withheld = tuple(sorted(set(self.kwargs) - set(kept)))
        return EnvReference(env_id, module or None, kept, withheld, self.wrappers)


def is_time_limit(value: object) -> bool:
    """Whether a value can be a time limit in steps; None stands for the registered one."""
    return value is None or (type(value) is int and 1 <= value <= MOST)


@dataclass(frozen=True)
class EnvReference(Record):
    """An environment as a file names it: data, never a reason to import anything.

    Its contents are judged only when an environment is built.

    Attributes:
        id: The Gymnasium id without its module.
        module: The module that registered it, for people to read; never imported.
        kwargs: Scalar, path-free keyword arguments.
        withheld: Names of arguments that were not fit for sharing.
        wrappers: What it is wrapped in, the innermost first.
    """

    id: str
    module: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    wrappers: Annotated[tuple[Wrapper, ...], since(2)] = ()

    @property
    def name(self) -> str:
        """The environment as a user would type it."""
        return self.id if self.module is None else f"{self.module}:{self.id}"

    @property
    def arguments(self) -> str:
        """All that is set beside its id, as people read it; values that were withheld as ``…``."""
        words = [f"{name}={json.dumps(value)}" for name, value in sorted(self.kwargs.items())]
        words += [f"{name}=…" for name in self.withheld]
        return ", ".join([*words, *(f"wrapper {wrapper}" for wrapper in self.wrappers)])
