"""The help of commands: no name of an option is cut short, whatever the width."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from pbvf_cli.shared.terminal.layout import (
    LEAST_WIDTH,
    USUAL_WIDTH,
    CommandText,
    definitions,
    wrap,
)

_WIDEST: Final = 100
_TERM: Final = 30


def _width() -> int:
    columns = shutil.get_terminal_size((USUAL_WIDTH, 24)).columns
    return min(max(columns, 2 * LEAST_WIDTH), _WIDEST)


class HelpCommand(TyperCommand):
    """A command whose help is in our own form."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, what the command does, its options by their headings, and examples."""
        del formatter
        _write(self, ctx, {})


class HelpGroup(TyperGroup):
    """A group of commands whose help is in our own form."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, what the group is for, its commands and its options."""
        del formatter
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        _write(self, ctx, {n: c.help or "" for n, c in found.items() if c is not None})


def _write(command: Any, ctx: Any, commands: Mapping[str, str]) -> None:
    width = _width()
    usage = command.get_usage(ctx).split()
    lines = ["", *wrap(" ".join(usage), width), ""]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [*wrap(" ".join(paragraph.split()), width), ""]
    if commands:
        lines += ["Commands:", *definitions(list(commands.items()), width, term=_TERM), ""]
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:
            is_argument = param.param_type_name == "argument"
            name = (param.metavar or param.name.upper()) if is_argument else record[0]
            usual = "Arguments" if is_argument else "Options"
            title = getattr(param, "rich_help_panel", None) or usual
            text = " ".join(
                record[1].replace("[default: (", "[default: ").replace(")]", "]").split()
            )
            panels.setdefault(title, []).append((name, text))
    for title, rows in panels.items():
        lines += [*wrap(f"{title}:", width), *definitions(rows, width, term=_TERM), ""]
    if command.epilog:
        title, *examples = command.epilog.split("\n\n")
        lines += [title, *(line for text in examples for line in wrap(CommandText(text), width))]
    typer.echo("\n".join(lines))  # at once, as typer's own form does: then it is no error's text
