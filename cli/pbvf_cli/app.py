"""The ``pbvf`` command and its subcommands, one module each."""

from __future__ import annotations

from typing import Annotated

import typer

from pbvf_cli.commands import (
    collect,
    dataset,
    evaluate,
    fit_model,
    policies,
    quickstart,
    reproduce,
    synthesize,
    train_online,
)
from pbvf_cli.commands import fit_critic as fit

app = typer.Typer(
    name="pbvf",
    help="Parameter-based value functions: collect data tagged with policy parameters, fit critics "
    "over them, grow policies offline, measure them, or train policies and critic online.",
    epilog="A round trip:\n\n"
    "pbvf collect Swimmer-v5 --dataset lab/swimmer-v0 --perturb-every 200\n\n"
    "pbvf fit-critic lab/swimmer-v0 --critic psvf --out critic.safetensors\n\n"
    "pbvf synthesize critic.safetensors --out policies.safetensors\n\n"
    "pbvf evaluate policies.safetensors",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from pbvf_offline import __version__

        typer.echo(f"pbvf {__version__}")
        raise typer.Exit


@app.callback()
def pbvf(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take the options that come before a subcommand."""
    del version


collect.register(app)
fit.register(app)
fit_model.register(app)
synthesize.register(app)
evaluate.register(app)
train_online.register(app)
dataset.register(app)
policies.register(app)
quickstart.register(app)
reproduce.register(app)
