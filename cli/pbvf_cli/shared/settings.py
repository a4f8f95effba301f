"""The settings of a command, each with where it came from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pbvf_cli.shared.values import ENV_OPTIONS
from pbvf_offline.records import Defaults, Record

if TYPE_CHECKING:
    from pbvf_cli.shared.command import Given
    from pbvf_cli.shared.values import EnvOptions
    from pbvf_offline.envs.reference import EnvConfig

T = TypeVar("T")
R = TypeVar("R", bound=Record)


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


class SettingsTable:
    """The settings of one command in the order in which they are shown."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def show(self, name: str, value: Any, source: str = "given") -> None:
        """Add a setting, which is called as its option without dashes."""
        self.settings.append(Setting(name, value, source))

    def flag(self, name: str, value: bool) -> None:
        """Add a flag, which is given or not."""
        self.show(name, value, "given" if value else "default")

    def choose(
        self, name: str, given: T | None, default: Callable[[], T] | T, source: str = "default"
    ) -> T:
        """Return what was given, else the default, and add it to the table."""
        if given is not None:
            value, source = given, "given"
        else:
            value = default() if callable(default) else default
        self.show(name, value, source)
        return value

    def fill(
        self,
        given: Given[R],
        defaults: Defaults[R],
        *,
        stored_seed: Callable[[R], int | None] | None = None,
        hidden: Collection[str] = (),
    ) -> R:
        """Return the record of what was given, else the defaults, and add it to the table.

        Args:
            given: What the user gave.
            defaults: The other settings, and where they come from.
            stored_seed: Returns the seed of an output begun earlier, for a record with a seed;
                called with the record as it is but for that.
            hidden: Fields that decide nothing here; they are not shown.

        Raises:
            UsageError: The settings contradict each other.
        """
        values = dict(given.values)
        asked = dataclasses.replace(defaults.settings, **values)
        for field in given.settings:
            if field.name in hidden:
                continue
            if field.name == "seed":
                stored = None if stored_seed is None else partial(stored_seed, asked)
                values["seed"] = self.seed(values.get("seed"), stored)
                continue
            known = field.name in values
            value = values[field.name] if known else getattr(defaults.settings, field.name)
            text = field.text(value)
            self.show(
                field.option.lstrip("-"),
                value if str(value) == text else text or None,  # a number stays one
                "given" if known else defaults.source_of(field.name),
            )
        return dataclasses.replace(defaults.settings, **values)

    def environment(
        self, config: EnvConfig, options: EnvOptions, name: str = "environment"
    ) -> EnvConfig:
        """Add an environment with all that decides what it is, and return it.

        Args:
            config: The environment.
            options: What the user gave of it; the rest is from a file, or left to the environment.
            name: What it is called in the table.
        """
        wrappers = tuple(map(str, config.wrappers))
        values = (config.name, dict(config.kwargs), config.max_episode_steps, wrappers)
        for option, value in zip(ENV_OPTIONS, values, strict=True):
            none = "default" if option == "--wrapper" else "the environment's own"
            source = "stored in the file" if value else none
            shown = option.lstrip("-") if value is not config.name else name
            self.show(shown, value or None, "given" if option in options.given else source)
        return config

    def rights(self, license_id: str | None, authors: Sequence[str]) -> None:
        """Add licence and authors of a dataset."""
        self.show("license", license_id, "default" if license_id is None else "given")
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
        self.show("seed", value, source)
        return value
