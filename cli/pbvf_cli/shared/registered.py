"""Options whose values and help are the members of a registry."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pbvf_offline.critics import CRITICS
from pbvf_offline.registry import Registry
from pbvf_offline.rollout.schedule_kinds import INDEPENDENT, SCHEDULES


def registered(
    option: str, registry: Registry[Any], text: str, *, default: str | None = None
) -> Any:
    """Return an option that takes the name of a member.

    Args:
        option: With its dashes.
        registry: Its members; none of them is imported for the help.
        text: What the option decides; the members follow.
        default: What stands for no value, if one may be left out.
    """

    def check(name: str | None) -> str | None:
        if name is not None:
            registry.choose(name, where=option)
        return name

    members = "; ".join(f"{name}: {registry.summary(name)}" for name in registry)
    return typer.Option(
        option,
        metavar="|".join(registry),
        callback=check,
        autocompletion=lambda: list(registry),
        help=f"{text} {members}.",
        show_default=default if default is not None else True,
    )


Critic = Annotated[str, registered("--critic", CRITICS, "What is fitted.")]
Schedule = Annotated[
    str | None,
    registered("--schedule", SCHEDULES, "How the parameter noise is drawn.", default=INDEPENDENT),
]
