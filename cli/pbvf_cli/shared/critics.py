"""The option ``--critic``: its values and its help are those of the critics that are installed."""

from __future__ import annotations

from typing import Annotated

import typer

from pbvf_offline.critics import CRITICS
from pbvf_offline.errors import PbvfError


def _choose(name: str) -> str:
    CRITICS.choose(name, where="--critic")
    return name


def _summary(name: str) -> str:
    try:
        return CRITICS[name].summary
    except PbvfError as error:
        return error.what


Critic = Annotated[
    str,
    typer.Option(
        "--critic",
        metavar="|".join(CRITICS),
        callback=_choose,
        autocompletion=lambda: list(CRITICS),
        help="; ".join(f"{name}: {_summary(name)}" for name in CRITICS) + ".",
    ),
]
