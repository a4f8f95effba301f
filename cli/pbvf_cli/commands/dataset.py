"""``pbvf dataset``: look at, check, change and share datasets; one module a group of commands."""

from __future__ import annotations

import typer

from pbvf_cli.commands import dataset_edit, dataset_info, dataset_share, dataset_verify

sub = typer.Typer(
    name="dataset",
    help="Look at, check, change and share policy-tagged datasets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

dataset_info.register(sub)
dataset_verify.register(sub)
dataset_edit.register(sub)
dataset_share.register(sub)


def register(app: typer.Typer) -> None:
    """Add the group of commands to the program."""
    app.add_typer(sub)
