"""The settings of a command as they are filled in, each with where it came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvConfig

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """One setting in force.

    Attributes:
        name: As the option is called, without dashes.
        value: What it is.
        source: Where it is from: ``given``, ``default``, ``paper default for …``.
    """

    name: str
    value: Any
    source: str

    @property
    def shown(self) -> str:
        """The value as people read it."""
        if self.value is None:
            return "-"
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if isinstance(self.value, tuple | list):
            return ",".join(str(v) for v in self.value) or "-"
        if isinstance(self.value, dict):
            return json.dumps(self.value)
        return str(self.value)


class Form:
    """The settings of one command as they are filled in."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def choose(
        self, name: str, given: T | None, default: Callable[[], T] | T, source: str = "default"
    ) -> T:
        """Return what was given, else the default, and remember which.

        Args:
            name: The option without dashes.
            given: What the user gave, or None.
            default: The default, or a function that finds it.
            source: What to call the default's origin.
        """
        if given is not None:
            value, source = given, "given"
        else:
            value = default() if callable(default) else default
        self.settings.append(Setting(name, value, source))
        return value

    def show(self, name: str, value: Any, source: str = "given") -> None:
        """Remember a setting that is not a choice."""
        self.settings.append(Setting(name, value, source))

    def option(self, name: str, value: Any, default: Any, source: str = "default") -> None:
        """Remember an option whose default stands in the command's signature.

        Args:
            name: The option without dashes.
            value: What it is.
            default: What it is when not given.
            source: What to call the default's origin.
        """
        self.show(name, value, source if value == default else "given")

    def environment(self, config: EnvConfig) -> None:
        """Remember an environment that the user named."""
        self.show("environment", config.name)
        if config.kwargs:
            self.show("env-kwargs", config.kwargs)
        if config.max_episode_steps is not None:
            self.show("max-episode-steps", config.max_episode_steps)

    def rights(self, license_id: str | None, authors: Sequence[str]) -> None:
        """Remember whose data a dataset is."""
        self.option("license", license_id, None)
        if authors:
            self.show("author", authors)

    def seed(self, given: int | None, stored: Callable[[], int | None] | None = None) -> int:
        """Return the seed: given, else that of an output begun earlier, else a fresh one.

        Raises:
            UsageError: It is out of range.
        """
        from pbvf_offline.seeding import check_seed, draw_seed

        if given is not None:
            value, source = check_seed(given), "given"
        else:
            found = None if stored is None else stored()
            value = draw_seed() if found is None else found
            source = "drawn" if found is None else "stored in the output"
        self.settings.append(Setting("seed", value, source))
        return value


def paper_source(env_id: str | None) -> str:
    """Return the origin of a default of :mod:`pbvf_offline.presets.offline`."""
    from pbvf_offline.presets.offline import ENVIRONMENTS, env_preset

    known = any(env_preset(env_id) is preset for preset in ENVIRONMENTS.values())
    return f"paper default for {env_id}" if known else "paper default"
