"""The ``pbvf`` command; each subcommand is imported when it is used.

A new subcommand is a module under ``commands`` and a line in :data:`COMMANDS`.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer
from typer.main import get_command, get_group

from pbvf_cli.shared.terminal.help import HelpCommand, HelpGroup

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "collect": ("collect", "Collect a dataset, every step tagged with the policy that acted."),
    "fit-critic": ("fit_critic", "Fit a critic to a dataset and write it to one file."),
    "fit-model": ("fit_model", "Learn a dataset's environment, and check how far to rely on it."),
    "synthesize": ("synthesize", "Grow policies from random weights by climbing a critic."),
    "evaluate": ("evaluate", "Run policies for whole episodes, and compare with a critic."),
    "compare": ("compare", "Play two sets of policies from the same starts, with statistics."),
    "predict": ("predict", "Say what a critic makes of policies, without an environment."),
    "train-online": ("train_online", "Train policy and critic together in an environment."),
    "plot": ("plot", "Draw learning curves of training runs and fits, with intervals."),
    "info": ("info", "Show what a dataset, critic, model, run, … holds and is made from."),
    "report": ("report", "Write one HTML page about a dataset, critic, model, policies or run."),
    "verify": ("verify", "Check that a dataset, critic, model, run, … is whole and safe."),
    "push": ("share:push", "Send a dataset, critic, model, policies, run, … to another place."),
    "pull": ("share:pull", "Fetch what was pushed to another place."),
    "pack": ("share:pack", "Put a dataset, critic, model, policies, run, … into one tar file."),
    "unpack": ("share:unpack", "Take out of a tar file what pack put there."),
    "dataset list": ("dataset.info:list_all", "List the datasets in the datasets' folder."),
    "dataset info": ("dataset.info:info", "Show what is in a dataset and where it came from."),
    "dataset verify": ("verify", "The same as pbvf verify."),
    "dataset merge": ("dataset.edit:merge", "Make one dataset of the episodes of several."),
    "dataset filter": ("dataset.edit:filter_", "Make a dataset of the episodes that pass."),
    "dataset split": ("dataset.edit:split", "Split a dataset into several by whole episodes."),
    "dataset tag": ("dataset.edit:tag", "Tag another program's dataset with its policies."),
    "dataset set": ("dataset.rights:set_", "Set a dataset's licence and authors; data stay."),
    "dataset delete": ("dataset.delete:delete", "Delete datasets, or what was begun of them."),
    "dataset push": ("dataset.share:push", "Send a dataset to another place."),
    "dataset pull": ("dataset.share:pull", "Fetch a dataset from another place."),
    "dataset pack": ("dataset.share:pack", "Put a dataset into one tar file."),
    "dataset unpack": ("dataset.share:unpack", "Take a dataset out of a tar file made by pack."),
    "dataset keygen": ("dataset.sign:keygen", "Make a pair of keys to sign datasets with."),
    "dataset sign": ("dataset.sign:sign", "Sign a dataset's manifest."),
    "dataset check-signature": ("dataset.sign:check_signature", "Check who signed a dataset."),
    "policies import": ("policies.imports:import_policies", "Import weights trained elsewhere."),
    "policies export": ("policies.exports:export", "Write policies for programs without pbvf."),
    "policies info": ("policies.info:info", "Show what a policies file holds."),
    "sweep": ("sweep", "Run a command once for each combination of settings, and compare."),
    "quickstart": ("quickstart", "Collect, fit, synthesize and evaluate on Swimmer-v5."),
    "reproduce": ("reproduce", "Run the paper's experiments, or show their results."),
}
"""Name, with that of its group, to module and one line for the list of commands.

The function is named like the module unless it follows a colon.
"""

_GROUPS: Final = {
    "dataset": "Look at, check, change and share policy-tagged datasets.",
    "policies": "Policies from other programs, for other programs, and what a file of them holds.",
}


class _Lazy(HelpGroup):
    """A group whose commands are imported when they are used.

    Attributes:
        prefix: What its commands' names in :data:`COMMANDS` begin with.
    """

    prefix = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, summary) in COMMANDS.items():
            if not name.startswith(self.prefix):
                continue
            first, _, rest = name.removeprefix(self.prefix).partition(" ")
            # A name and a line are all that a list of commands needs.
            self.add_command(HelpCommand(first, help=_GROUPS[first] if rest else summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return a command's name, the command itself, and the arguments after it."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, known if name is None else _load(f"{self.prefix}{name}"), rest


def _load(name: str) -> Any:
    """Return a command, imported, or a group of them."""
    if name in _GROUPS:
        group = type("_Group", (_Lazy,), {"prefix": f"{name} "})
        return get_group(typer.Typer(cls=group, name=name, help=_GROUPS[name], **_SETTINGS))
    module, _, attribute = COMMANDS[name][0].partition(":")
    function = getattr(importlib.import_module(f"pbvf_cli.commands.{module}"), attribute or module)
    only = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    only.command(name.rpartition(" ")[2], cls=HelpCommand, epilog=function.epilog)(function)
    return get_command(only)


_SETTINGS: Final[dict[str, Any]] = {"no_args_is_help": True, "pretty_exceptions_enable": False}

app = typer.Typer(
    cls=_Lazy,
    name="pbvf",
    help="Parameter-based value functions: collect data tagged with policy parameters, fit critics "
    "over them, grow policies offline, measure them, or train policies and critic online.",
    epilog="A round trip:\n\n"
    "pbvf collect Swimmer-v5 --dataset lab/swimmer-v0 --perturb-every 200\n\n"
    "pbvf fit-model lab/swimmer-v0 --out model.safetensors\n\n"
    "pbvf fit-critic lab/swimmer-v0 --model model.safetensors --critic pssvf "
    "--out critic.safetensors\n\n"
    "pbvf synthesize critic.safetensors --model model.safetensors --out policies.safetensors\n\n"
    "pbvf evaluate policies.safetensors --critic critic.safetensors",
    context_settings={"help_option_names": ["--help", "-h"]},
    **_SETTINGS,
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
