"""Members of an extension point by name: this project's own, and those of installed packages.

A package adds a member with an entry point, and nothing of this project changes:

.. code-block:: toml

    [project.entry-points."pbvf_offline.critics"]
    my-critic = "my_package.critic:MyCritic"

Members are imported when they are asked for, never because a file names them alone: a name in a
file chooses among what the user has installed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from pbvf_offline.errors import UsageError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Members of one extension point by name, each imported on first use.

    Args:
        kind: What a member is, for messages, such as ``critic``.
        group: The entry point group that packages add members to.
        own: This project's members: name to ``module:attribute``.
    """

    def __init__(self, kind: str, group: str, own: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = group
        self._own = dict(own)
        self._loaded: dict[str, T] = {}

    @functools.cached_property
    def _targets(self) -> dict[str, str]:
        added = importlib.metadata.entry_points(group=self.group)
        others = {point.name: point.value for point in sorted(added, key=lambda p: p.name)}
        return {**self._own, **{k: v for k, v in others.items() if k not in self._own}}

    def __getitem__(self, name: str) -> T:
        """Return a member.

        Raises:
            KeyError: There is none of that name.
        """
        if name not in self._loaded:
            module, _, attribute = self._targets[name].partition(":")
            self._loaded[name] = getattr(importlib.import_module(module), attribute)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)

    def __contains__(self, name: object) -> bool:
        return name in self._targets

    def choose(self, name: str, *, where: str | None = None) -> T:
        """Return the member that a user named.

        Raises:
            UsageError: There is none of that name; the message lists those there are.
        """
        if name not in self:
            raise UsageError(
                f"there is no {self.kind} {name[:40]!r}",
                where=where,
                remedy=f"choose one of {', '.join(self)}",
            )
        return self[name]
