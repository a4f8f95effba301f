"""What decides the architecture of a fresh policy. Imports no array library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pbvf_offline.policies.families import DEFAULT_FAMILY, FAMILIES
from pbvf_offline.records import Record, fields, setting
from pbvf_offline.setting_types import Squash, Width


@dataclass(frozen=True)
class NewPolicy(Record):
    """A fresh policy, up to the spaces of its environment; each field's help says what it is.

    Raises:
        UsageError: A value is out of range.
    """

    hidden: Annotated[
        tuple[Width, ...],
        setting(
            "The policy's architecture: linear, or sizes such as 64,64.",
            max_length=16,
            option="--policy",
            metavar="ARCH",
            default="linear",
            blank="linear",
        ),
    ] = ()
    family: Annotated[
        str, setting("The policy's network.", choices=FAMILIES, default=DEFAULT_FAMILY, since=2)
    ] = DEFAULT_FAMILY
    squash: Annotated[
        Squash,
        setting("How the policy's output becomes an action.", default="tanh; none for the LQR"),
    ] = "tanh"
    stochastic: Annotated[bool, setting("The policy draws its actions.", option="--stochastic")] = (
        False
    )

    @property
    def architecture(self) -> dict[str, Any]:
        """The fields as arguments of :func:`pbvf_offline.policies.spaces.spec_for_env`."""
        return {field.name: getattr(self, field.name) for field in fields(NewPolicy)}
