"""Policies and environments in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pbvf_offline.errors import shorten

if TYPE_CHECKING:
    from pbvf_offline.envs.reference import EnvReference
    from pbvf_offline.policies.spec import PolicySpec

_LONGEST = 300  # characters of arguments; the rest is for --json
ROWS_SHOWN = 20
"""Lines of a table of policies that people read; the rest is for ``--json``."""


def kind_text(spec: PolicySpec) -> str:
    """Return what sort of policies a spec describes."""
    from pbvf_offline.policies.families import FAMILIES
    from pbvf_offline.policies.families.mlp import MLP

    noise = "stochastic" if spec.stochastic else "deterministic"
    if not spec.hidden and isinstance(FAMILIES[spec.family], MLP):
        return f"{noise}, linear"  # nothing lies between the layers of one
    return f"{noise}, {spec.sizes}, {FAMILIES.summary(spec.family)}"


def environment_rows(environment: EnvReference | None) -> list[tuple[str, str]]:
    """Return rows of an environment and, where it has some, of its arguments and wrappers."""
    if environment is None:
        return [("env", "not named")]
    rows = [("env", environment.name)]
    if environment.arguments:
        rows.append(("env arguments", shorten(environment.arguments, _LONGEST)))
    return rows


def actions_text(spec: PolicySpec) -> str:
    """Return the actions of policies."""
    from pbvf_offline.policies.actions import BoxActions

    if not isinstance(spec.actions, BoxActions):
        return f"{spec.actions.n} choices from {spec.actions.start}"
    low, high = min(spec.actions.low), max(spec.actions.high)
    how = "by tanh" if spec.squash == "tanh" else "clipped"
    return f"{spec.actions.dim} in [{low:g}, {high:g}] ({how}), {spec.actions.dtype}"
