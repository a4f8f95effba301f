"""Options that commands share: their names, help texts and ranges."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from pbvf_cli.shared import values
from pbvf_offline.setting_types import MOST

_COMMON = "Every command"
MOST_WORKERS = 10_000


class DeviceName(StrEnum):
    """Where tensors live."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


def counting(name: str, text: str, *, least: int = 1, most: int | None = MOST, **more: Any) -> Any:
    """Return an option that counts; a range in its help would crowd out the names.

    Args:
        name: With its dashes.
        text: Its help.
        least: The least that it takes.
        most: The most that it takes, if there is such a limit.
        more: For ``typer.Option``.
    """

    def check(value: int | None) -> int | None:
        return values.count(value, name, least=least, most=most)

    return typer.Option(name, callback=check, help=text, **{"metavar": "N", **more})


def licence(param: typer.CallbackParam, value: str | None) -> str | None:
    """Check an option that names a licence."""
    return values.licence(value, param.opts[0])


# ------------------------------------------------------------------ what is worked on

Environment = Annotated[
    str, typer.Argument(metavar="ENV", help="A Gymnasium id, or module:Name-v0.")
]
EnvKwargs = Annotated[
    str | None,
    typer.Option(
        "--env-kwargs", metavar="JSON", help="Arguments of the environment, a JSON object."
    ),
]
MaxEpisodeSteps = Annotated[
    int | None, counting("--max-episode-steps", "Time limit in place of the environment's own.")
]
Dataset = Annotated[
    str, typer.Argument(metavar="DATASET", help="A dataset's id, or the path of its folder.")
]
RequireManifest = Annotated[
    bool,
    typer.Option(
        "--require-manifest", help="Refuse a dataset folder that no manifest vouches for."
    ),
]

# -------------------------------------------------------------------------- what is made

DatasetId = Annotated[
    str,
    typer.Option("--dataset", metavar="ID", help="Where to: an id such as lab/swimmer-v0."),
]
License = Annotated[
    str | None,
    typer.Option(
        "--license",
        callback=licence,
        metavar="ID",
        help="Licence of the dataset, such as CC-BY-4.0.",
    ),
]
Authors = Annotated[
    list[str] | None,
    typer.Option("--author", metavar="NAME", help="An author of the dataset; may be repeated."),
]
Replace = Annotated[
    bool, typer.Option("--overwrite", help="Replace what stands at the output, if that differs.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the output, also one of other settings.")
]

# ----------------------------------------------------------------------- how it is done

Workers = Annotated[
    int | None,
    counting(
        "--workers",
        "Processes that run episodes; results do not change.",
        most=MOST_WORKERS,
        show_default="1",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Seed of every random number, 0 to 4294967295. Drawn, stored and printed when absent.",
        show_default=False,
    ),
]
Device = Annotated[
    DeviceName,
    typer.Option(
        "--device",
        help="Where tensors live; auto takes CUDA if it is there.",
        rich_help_panel=_COMMON,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=_COMMON),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No settings, notes or progress.", rich_help_panel=_COMMON),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show tracebacks with errors.", rich_help_panel=_COMMON),
]
