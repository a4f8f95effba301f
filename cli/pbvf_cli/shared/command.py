"""What makes a function a command: the options of records, and those of every command."""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin

import typer

from pbvf_cli.shared import options
from pbvf_cli.shared.errors import Stopped, signals
from pbvf_cli.shared.terminal.output import Sink
from pbvf_offline.errors import ResourceError, UsageError
from pbvf_offline.records import Field, Record, fields

R = TypeVar("R", bound=Record)

_WIDEST_METAVAR = 10
_PLACES = ("out", "run", "log_dir")
_METAVARS = {int: "N", float: "X", str: "NAME"}


@dataclass(frozen=True)
class Given(Generic[R]):
    """What the user gave of the settings of a record.

    A parameter of a command with this annotation becomes one option for each setting that the
    record declares.

    Attributes:
        record: The record.
        values: A field's name to its value; a setting that was not given is missing.
        names: The fields that could be given; all settings of the record when empty.
    """

    record: type[R]
    values: Mapping[str, Any]
    names: tuple[str, ...] = ()

    @property
    def settings(self) -> list[Field]:
        """The settings that could be given, in the order of the record."""
        return [
            field
            for field in fields(self.record)
            if field.about is not None and (not self.names or field.name in self.names)
        ]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a setting, or ``default`` where it was not given."""
        return self.values.get(name, default)

    def options(self, *names: str) -> list[str]:
        """Return the options that were given; with names, of these settings alone."""
        return [
            field.option
            for field in self.settings
            if field.name in self.values and (not names or field.name in names)
        ]


def command(
    *examples: str, continues: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of typer, with the examples below its help.

    A parameter ``Given[Record]`` becomes the options of that record;
    ``Annotated[Given[Record], "name", …]`` those of the fields named. A parameter ``Sink``
    becomes ``--json``, ``--quiet`` and ``--debug``.

    Args:
        examples: Command lines.
        continues: Whether the same command goes on where an interrupted one stopped.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters.values()
        anew = any(p.annotation == options.Overwrite for p in own)
        groups = {p.name: _expand(p) for p in own}

        @functools.wraps(function)
        def run(**values: Any) -> None:
            signals.continues, signals.starts_anew = continues, anew and values["overwrite"]
            _check_current_folder()
            _check_places(values)
            try:
                function(**{p.name: _collect(p, values) for p in own})
            except KeyboardInterrupt as error:  # an environment's own; typer would say nothing
                raise Stopped(signal.SIGINT) from error

        signature = inspect.Signature([p for group in groups.values() for p in group])
        del run.__wrapped__  # typer would read its signature
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        run.epilog = "\n\n".join(  # type: ignore[attr-defined]
            ["Examples:" if len(examples) > 1 else "Example:", *examples]
        )
        return run

    return decorate


def _check_places(values: Mapping[str, Any]) -> None:
    """Check that no option, such as ``--help``, was taken for the name of an output.

    Raises:
        UsageError: One was.
    """
    for name in _PLACES:
        if str(values.get(name) or "").startswith("-"):
            raise UsageError(
                f"{values[name]} looks like an option",
                where=f"--{name.replace('_', '-')}",
                remedy=f"give the name of a file or folder, such as ./{values[name]}",
            )


def _check_current_folder() -> None:
    """Check that there is one: torch ends the process without, and relative paths mean nothing.

    Raises:
        ResourceError: It was deleted.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise ResourceError(
            "the current folder is not there any more", remedy="change to one that exists"
        ) from error


def _expand(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Return the options that a parameter of a command stands for."""
    if (asked := _asked(parameter)) is not None:
        return [_option(f"{parameter.name}_{field.name}", field) for field in asked.settings]
    if parameter.annotation is Sink:
        common = {"json_only": options.Json, "quiet": options.Quiet, "debug": options.Debug}
        return [_keyword(name, annotation, False) for name, annotation in common.items()]
    return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]


def _collect(parameter: inspect.Parameter, values: Mapping[str, Any]) -> Any:
    """Return the argument of a command's own function from the values of the options."""
    if (asked := _asked(parameter)) is not None:
        given = {}
        for field in asked.settings:
            value = values[f"{parameter.name}_{field.name}"]
            if value is not None:
                given[field.name] = value if isinstance(value, bool) else field.parse(value)
        return replace(asked, values=given)
    if parameter.annotation is Sink:
        return Sink(json_only=values["json_only"], quiet=values["quiet"])
    return values[parameter.name]


def _asked(parameter: inspect.Parameter) -> Given[Any] | None:
    """Return the settings that a parameter stands for, before any is given; None: for none."""
    annotation: Any = parameter.annotation
    names: Sequence[str] = ()
    if get_origin(annotation) is Annotated:
        annotation, *names = get_args(annotation)
    if get_origin(annotation) is not Given:
        return None
    return Given(get_args(annotation)[0], {}, tuple(names))


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )


def _short(names: tuple[str, ...]) -> str:
    """Return names as a metavar, where they leave room for the options' names."""
    text = "|".join(names)
    return text if len(text) <= _WIDEST_METAVAR else "NAME"


def _option(name: str, field: Field) -> inspect.Parameter:
    """Return the option of a declared setting."""
    about, kind = field.about, field.base
    assert about is not None  # only settings get here
    names = tuple(about.choices or ()) or (get_args(kind) if get_origin(kind) is Literal else ())
    text = about.help
    if about.symbol is not None:
        text = f"{text.removesuffix('.')} ({about.symbol})."
    if about.choices is not None:
        text += f" {about.choices.listing()}."
    is_flag = field.is_switch
    more: dict[str, Any] = {}

    def check(value: str | None) -> str | None:
        if value is not None:
            field.parse(value)
        return value  # unparsed: a value may mean None, which is not given here

    if names:
        more["autocompletion"] = lambda: list(names)
    if not is_flag:
        more["callback"] = check
        more["metavar"] = about.metavar or _short(names) or _METAVARS.get(kind, "VALUE")
    info = typer.Option(
        about.option or field.option,
        help=text,
        show_default=about.default or False,
        rich_help_panel=about.panel,
        **more,
    )
    annotation = Annotated[(bool if is_flag else str) | None, info]  # type: ignore[valid-type]
    return _keyword(name, annotation, None)
