"""The ``pbvf`` command; each subcommand is imported when it is used.

A new subcommand is a module under ``commands`` and a line in :data:`COMMANDS`.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "collect": (
        "collect",
        "Collect a dataset: episodes whose every step is tagged with the policy that acted.",
    ),
    "fit-critic": (
        "fit_critic",
        "Fit a critic to a dataset and write it to one self-contained file.",
    ),
    "fit-model": (
        "fit_model",
        "Learn a dataset's environment: an ensemble that predicts what a step leads to.",
    ),
    "synthesize": (
        "synthesize",
        "Grow policies from random weights, by gradient ascent on a critic that stays as it is.",
    ),
    "evaluate": (
        "evaluate",
        "Run each policy for exactly so many whole episodes, from the same starts.",
    ),
    "train-online": (
        "train_online",
        "Train policy and critic together in an environment: the paper's Algorithms 1 to 4.",
    ),
    "dataset list": (
        "dataset_info:list_all",
        "List the datasets under MINARI_DATASETS_PATH (else Minari's own folder).",
    ),
    "dataset info": ("dataset_info:info", "Show what is in a dataset and where it came from."),
    "dataset verify": (
        "dataset_verify:verify_path",
        "Check that a file is whole, true to itself and safe; report all that is wrong.",
    ),
    "dataset merge": ("dataset_edit:merge", "Make one dataset of the episodes of several."),
    "dataset filter": (
        "dataset_edit:filter_",
        "Make a dataset of those episodes that pass every criterion given.",
    ),
    "dataset split": (
        "dataset_edit:split",
        "Split a dataset into several by whole episodes, drawn by the seed.",
    ),
    "dataset push": (
        "dataset_share:push",
        "Send a dataset to another place, manifest last; the same command continues.",
    ),
    "dataset pull": (
        "dataset_share:pull",
        "Fetch a dataset from another place; the same command continues.",
    ),
    "dataset pack": (
        "dataset_share:pack",
        "Put a dataset into one tar file, for mail or a USB stick; equal datasets, equal bytes.",
    ),
    "dataset unpack": (
        "dataset_share:unpack",
        "Take a dataset out of a tar file made by pack, after a check of every byte.",
    ),
    "dataset keygen": (
        "dataset_sign:keygen",
        "Make a pair of Ed25519 keys to sign datasets with; no file is ever overwritten.",
    ),
    "dataset sign": (
        "dataset_sign:sign",
        "Sign a dataset's manifest: put manifest.json.sig beside it.",
    ),
    "dataset check-signature": (
        "dataset_sign:check_signature",
        "Check that a dataset is whole and that the owner of a key signed it; 4 when not signed.",
    ),
    "policies import": (
        "policies_import:import_policies",
        "Make a policies file of weights that were trained elsewhere; collect --policies runs it.",
    ),
    "policies export": (
        "policies_export:export",
        "Write policies for programs without pbvf: raw observations in, executed actions out.",
    ),
    "policies info": (
        "policies_info:info",
        "Show what a policies file holds; nothing in it is run, and no environment is built.",
    ),
    "quickstart": (
        "quickstart",
        "Collect, fit a PSVF, synthesize and evaluate on Swimmer-v5, each stage resumable.",
    ),
    "reproduce": (
        "reproduce",
        "Run an experiment cell by cell; finished cells are read back, others continue.",
    ),
}
"""Name, with that of its group, to module and one line of help.

The function is named like the module unless it follows a colon. The line is the first of the
function's docstring.
"""

_GROUPS: Final = {
    "dataset": "Look at, check, change and share policy-tagged datasets.",
    "policies": "Policies from other programs, for other programs, and what a file of them holds.",
}


class _Lazy(TyperGroup):
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
            self.add_command(TyperCommand(first, help=_GROUPS[first] if rest else summary))

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
    only.command(name.rpartition(" ")[2], epilog=function.epilog)(function)
    return get_command(only)


_SETTINGS: Final[dict[str, Any]] = {"no_args_is_help": True, "pretty_exceptions_enable": False}

app = typer.Typer(
    cls=_Lazy,
    name="pbvf",
    help="Parameter-based value functions: collect data tagged with policy parameters, fit critics "
    "over them, grow policies offline, measure them, or train policies and critic online.",
    epilog="A round trip:\n\n"
    "pbvf collect Swimmer-v5 --dataset lab/swimmer-v0 --perturb-every 200\n\n"
    "pbvf fit-critic lab/swimmer-v0 --critic psvf --out critic.safetensors\n\n"
    "pbvf synthesize critic.safetensors --out policies.safetensors\n\n"
    "pbvf evaluate policies.safetensors",
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
