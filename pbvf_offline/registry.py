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
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pbvf_offline.errors import UsageError, did_you_mean, exception_text
from pbvf_offline.foreign import failure

T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """A member of this project that is imported on first use.

    Attributes:
        target: ``module:attribute``.
        summary: One line for people, known without the import.
    """

    target: str
    summary: str


class Registry(Mapping[str, T], Generic[T]):
    """Members of one extension point by name, each imported on first use.

    Args:
        kind: What a member is, for messages, such as ``critic``.
        group: The entry point group that packages add members to.
        own: This project's members by name: a :class:`Member` or its ``module:attribute``, or
            the member itself where it costs nothing to have.
    """

    def __init__(self, kind: str, group: str, own: Mapping[str, str | Member | T]) -> None:
        self.kind = kind
        self.group = group
        self._own = own
        self._loaded: dict[str, T] = {}

    @functools.cached_property
    def _added(self) -> dict[str, importlib.metadata.EntryPoint]:
        points = _entry_points(tuple(sys.path)).select(group=self.group)
        return {p.name: p for p in sorted(points, key=lambda p: p.name) if p.name not in self._own}

    def __getitem__(self, name: str) -> T:
        """Return a member.

        Raises:
            KeyError: There is none of that name.
            UsageError: It belongs to an installed package and cannot be imported.
        """
        own = self._own.get(name)
        target = own.target if isinstance(own, Member) else own
        if target is not None and not isinstance(target, str):
            return target
        if name not in self._loaded:
            if target is None:
                self._loaded[name] = self._import_added(self._added[name])
            else:
                module, _, attribute = target.partition(":")
                self._loaded[name] = getattr(importlib.import_module(module), attribute)
        return self._loaded[name]

    def summary(self, name: str) -> str:
        """Return a line about a member, without importing it.

        That of a :class:`Member`, or of a member given as itself its ``summary``; of an installed
        package's the package.
        """
        if name in self._added:
            return f"of the package {_package(self._added[name])}"
        return str(getattr(self._own[name], "summary", ""))

    def listing(self) -> str:
        """Return all names in one line, with what :meth:`summary` says of each."""
        summaries = {name: self.summary(name) for name in self}
        return "; ".join(f"{name}: {text}" if text else name for name, text in summaries.items())

    def _import_added(self, point: importlib.metadata.EntryPoint) -> T:
        try:
            member: T = point.load()
        except Exception as error:
            package = _package(point)
            raise failure(
                error,
                f"the {self.kind} {point.name!r} of the package {package} cannot be imported: "
                f"{exception_text(error)}",
                remedy=f"mend or uninstall {package}",
            ) from error
        return member

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from self._added

    def __len__(self) -> int:
        return len(self._own) + len(self._added)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._added

    def choose(self, name: str, *, where: str | None = None) -> T:
        """Return the member that a user named.

        Raises:
            UsageError: There is none of that name, and the message lists those there are; or it
                belongs to an installed package and cannot be imported.
        """
        if name not in self:
            raise UsageError(
                f"there is no {self.kind} {name[:40]!r}",
                where=where,
                remedy=f"{did_you_mean(name, self)}choose one of {', '.join(self)}",
            )
        return self[name]


@functools.lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> Any:
    """Return those of all packages on the path; one look serves every registry.

    They have ``select``, whatever class the Python version gives them.
    """
    del path
    return importlib.metadata.entry_points()


def _package(point: importlib.metadata.EntryPoint) -> str:
    return "?" if point.dist is None else point.dist.name
