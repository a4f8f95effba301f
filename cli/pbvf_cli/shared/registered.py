"""Options whose values and help are the members of a registry."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pbvf_cli.shared.values import NO_WRAPPER
from pbvf_offline.critics import CRITICS
from pbvf_offline.envs.wrappers import OPTION, WRAPPERS
from pbvf_offline.registry import Registry
from pbvf_runs.loggers import DEFAULT, LOGGERS


def registered(
    option: str, registry: Registry[Any], text: str, *, default: str | None = None
) -> Any:
    """Return an option that takes the name of a member, or several names.

    The members follow ``text`` in its help; none of them is imported for it.
    """

    def check(value: str | list[str] | None) -> str | list[str] | None:
        for name in [value] if isinstance(value, str) else value or ():
            registry.choose(name, where=option)
        return value

    return typer.Option(
        option,
        metavar="NAME",
        callback=check,
        autocompletion=lambda: list(registry),
        help=f"{text} {registry.listing()}.",
        show_default=default if default is not None else True,
    )


Critic = Annotated[str, registered("--critic", CRITICS, "What is fitted.")]
Wrappers = Annotated[
    list[str] | None,
    typer.Option(
        OPTION,
        metavar="TEXT",
        help="Wrap the environment: NAME or NAME:JSON with arguments; may be repeated, the first "
        f"is the innermost. {NO_WRAPPER}: leave out those stored with what is named; "
        f"{WRAPPERS.listing()}.",
        show_default="those stored with what is named, else none",
    ),
]


def _loggers(text: str) -> Any:
    return registered("--logger", LOGGERS, text, default=" and ".join(DEFAULT))


Loggers = Annotated[
    list[str] | None,
    _loggers("Where episodes and evaluations are logged, in the run's folder; may be repeated."),
]
CurveLoggers = Annotated[
    list[str] | None, _loggers("Who writes the curve of --log-dir; may be repeated.")
]
