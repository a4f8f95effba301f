"""Options that commands share: their names, help texts and ranges."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import typer

from pbvf_cli.shared import completion, values
from pbvf_offline.errors import UsageError
from pbvf_offline.setting_types import MOST

_COMMON = "Every command"
MOST_WORKERS = 10_000
USUAL_WORKERS = "as many as there are cores, where the steps are worth it"
MOST_THREADS = 1_024


class DeviceName(str):
    """Where tensors live: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises:
        UsageError: It is something else.
    """

    __slots__ = ()
    AUTO: ClassVar[DeviceName]
    CPU: ClassVar[DeviceName]

    def __new__(cls, text: str) -> DeviceName:
        """Check the name."""
        if _DEVICE.fullmatch(text) is None:
            raise UsageError(
                f"{text!r} is none of auto, cpu, cuda, cuda:N (from 0) and mps", where="--device"
            )
        return super().__new__(cls, text)


_DEVICE: Final = re.compile(r"auto|cpu|cuda(:(0|[1-9][0-9]{0,3}))?|mps")
DeviceName.AUTO = DeviceName("auto")
DeviceName.CPU = DeviceName("cpu")


class BackendName(StrEnum):
    """What plays episodes."""

    AUTO = "auto"
    GYMNASIUM = "gymnasium"
    NATIVE = "native"


def argument(metavar: str, text: str) -> Any:
    """Return an argument with its metavar and its help."""
    return typer.Argument(
        metavar=metavar,
        help=text,
        autocompletion=completion.BY_METAVAR.get(metavar),
        readable=False,  # its reader says more, with the exit code that fits
    )


def option(
    name: str,
    text: str,
    metavar: str | None = None,
    *,
    default: str | bool = True,
    panel: str | None = None,
    callback: Callable[..., Any] | None = None,
) -> Any:
    """Return an option; ``default`` says it in words where the signature does not."""
    complete = completion.BY_METAVAR.get(metavar or "")
    if metavar == "FILE":
        complete = completion.BY_OPTION.get(name)
    return typer.Option(
        name,
        metavar=metavar,
        help=text,
        show_default=default,
        rich_help_panel=panel,
        callback=callback,
        autocompletion=complete,
        readable=False,
    )


def counting(name: str, text: str, *, least: int = 1, most: int | None = MOST, **more: Any) -> Any:
    """Return an option that counts from ``least``; ``more`` is for ``typer.Option``.

    A range in its help would crowd out the names.
    """

    def check(value: int | None) -> int | None:
        return values.count(value, name, least=least, most=most)

    return typer.Option(name, callback=check, help=text, **{"metavar": "N", **more})


def licence(param: typer.CallbackParam, value: str | None) -> str | None:
    """Check an option that names a licence."""
    return values.licence(value, param.opts[0])


def authors(param: typer.CallbackParam, value: list[str] | None) -> list[str] | None:
    """Check an option that names authors."""
    return values.authors(value, param.opts[0])


def dataset_id(value: str | None) -> str | None:
    """Check an option that names a dataset to make, where given.

    Raises:
        UsageError: It is no id.
    """
    from pbvf_datasets.format.names import check_dataset_id

    if value is not None:
        check_dataset_id(value)
    return value


# ------------------------------------------------------------------ what is worked on

Environment = Annotated[str, argument("ENV", "A Gymnasium id, or module:Name-v0.")]
EnvKwargs = Annotated[
    str | None, option("--env-kwargs", "Arguments of the environment, a JSON object.", "JSON")
]
MaxEpisodeSteps = Annotated[
    int | None, counting("--max-episode-steps", "Time limit in place of the environment's own.")
]
Dataset = Annotated[str, argument("DATASET", "A dataset's id, or the path of its folder.")]
DatasetsOrRuns = Annotated[
    list[str],
    argument(
        "DATASET|RUN",
        "A dataset, or the folder of a run for the episodes on its disk; several are one "
        "training set, in their order.",
    ),
]
RequireManifest = Annotated[
    bool, option("--require-manifest", "Refuse a dataset folder without a manifest.")
]

# -------------------------------------------------------------------------- what is made

DatasetId = Annotated[
    str,
    option("--dataset", "Where to: an id such as lab/swimmer-v0.", "ID", callback=dataset_id),
]
License = Annotated[
    str | None,
    option("--license", "Licence of the dataset, such as CC-BY-4.0.", "ID", callback=licence),
]
Authors = Annotated[
    list[str] | None,
    option("--author", "An author of the dataset; may be repeated.", "NAME", callback=authors),
]
Replace = Annotated[bool, option("--overwrite", "Replace the output, if it differs.")]
Overwrite = Annotated[
    bool, option("--overwrite", "Replace the output, also one of other settings.")
]


def _log_dir(text: str) -> Path:
    """Read --log-dir; as a ``Path``, the empty text would be the current folder."""
    if not text:
        raise UsageError("is empty", where="--log-dir", remedy="name a folder")
    return Path(text)


LogDir = Annotated[
    Path | None,
    typer.Option(
        "--log-dir",
        metavar="DIR",
        help="Where metrics.jsonl and TensorBoard events of the curve are written.",
        parser=_log_dir,
    ),
]

# ----------------------------------------------------------------------- how it is done

Workers = Annotated[
    int | None,
    counting(
        "--workers",
        "Processes that run episodes; results do not change.",
        most=MOST_WORKERS,
        show_default=USUAL_WORKERS,
    ),
]
Ray = Annotated[
    str | None,
    option(
        "--ray",
        "Give the work to Ray, --workers at once: local, or a cluster's address, auto or "
        "HOST:PORT; results do not change.",
        "ADDRESS",
        default=False,
    ),
]
Threads = Annotated[
    int | None,
    counting(
        "--threads",
        "Threads that compute. More may be faster where cores are idle, and change last digits.",
        most=MOST_THREADS,
        show_default="1",
    ),
]
Seed = Annotated[
    int | None,
    option(
        "--seed",
        "Seed of every random number, 0 to 4294967295. Drawn, stored and printed when absent.",
        default=False,
    ),
]
Backend = Annotated[
    BackendName | None,
    option("--backend", "What plays the episodes; results do not change.", default="auto"),
]
Device = Annotated[
    DeviceName,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Where tensors live: auto (CUDA if it is there), cpu, cuda, cuda:N or mps.",
        parser=DeviceName,
        autocompletion=lambda: ["auto", "cpu", "cuda", "mps"],
        rich_help_panel=_COMMON,
    ),
]
Json = Annotated[bool, option("--json", "Print one JSON object on stdout.", panel=_COMMON)]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No settings, notes or progress.", rich_help_panel=_COMMON),
]
Debug = Annotated[bool, option("--debug", "Show tracebacks with errors.", panel=_COMMON)]
