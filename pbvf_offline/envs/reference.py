"""References to environments: what a user names, and what a file may carry of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pbvf_offline.envs.portable import is_portable
from pbvf_offline.envs.wrappers import Wrapper
from pbvf_offline.records import Record, since


@dataclass(frozen=True)
class EnvConfig:
    """An environment as a user names it on the command line.

    Attributes:
        name: A Gymnasium id, or ``module:Name-v0``, which imports ``module`` first.
        kwargs: Keyword arguments for the environment.
        max_episode_steps: A time limit in place of the registered one.
        wrappers: What it is wrapped in, the innermost first.
    """

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    wrappers: tuple[Wrapper, ...] = ()

    def reference(self) -> EnvReference:
        """Return what a file may carry of this environment: nothing that names a path."""
        module, _, env_id = self.name.rpartition(":")
        kept = {k: v for k, v in sorted(self.kwargs.items()) if is_portable(k, v)}
        if self.max_episode_steps is not None:
            kept["max_episode_steps"] = self.max_episode_steps
        withheld = tuple(sorted(set(self.kwargs) - set(kept)))
        return EnvReference(env_id, module or None, kept, withheld, self.wrappers)


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
