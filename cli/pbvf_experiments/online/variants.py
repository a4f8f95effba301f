"""The paper's ablations and tuning grids of online training, as cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from pbvf_experiments.online.cells import OURS, OnlineCell, arch_title, policies_title
from pbvf_offline.online.settings import ACTOR_STATES
from pbvf_offline.presets.paper import GRIDS, TODAY

_CONTINUOUS = tuple(e for f, e in TODAY.items() if f not in ("Acrobot", "CartPole"))
_ARCHES = ("linear", "64,64")
SWIMMER, HOPPER = "Swimmer-v5", "Hopper-v5"
DISCOUNTS = (0.99, 0.995, 0.999, 0.9999)
"""Discounts tried on Swimmer; the paper's text names 0.99 and 0.999 and plots several."""

Panels = dict[str, dict[str, OnlineCell]]


def ablation_panels() -> Panels:
    """Return every panel of the ablations: title to line label to cell.

    Observation normalisation and the smaller critic for PSVF and PAVF, the discount on
    Swimmer for PSVF, PAVF and DDPG, the survival bonus on Hopper for the PSSVF, and the PAVF
    without the gradient of Q in theta on Swimmer and Hopper. Besides, where the paper and
    the authors' code differ: the states of an actor update, and how observations are
    normalised.
    """
    panels: Panels = {}
    for kind, arch, env in itertools.product(("psvf", "pavf"), _ARCHES, _CONTINUOUS):
        panels[f"Network:\n{policies_title(kind, env, arch)}"] = {
            "paper": OnlineCell(kind, env, arch),
            "no normalisation": _changed(kind, env, arch, normalization="none"),
            "critic (256, 256)": _changed(kind, env, arch, hidden=(256, 256)),
        }
    for kind, arch in itertools.product(("psvf", "pavf", "ddpg"), _ARCHES):
        panels[f"Discount:\n{policies_title(kind, SWIMMER, arch)}"] = {
            f"gamma {gamma:g}": OnlineCell(kind, SWIMMER, arch)
            if gamma == 0.999
            else _changed(kind, SWIMMER, arch, gamma=gamma)
            for gamma in DISCOUNTS
        }
    for arch in ("linear", "32", "64,64"):
        panels[f"Survival bonus:\n{policies_title('pssvf', HOPPER, arch)}"] = {
            "without the bonus": OnlineCell("pssvf", HOPPER, arch),
            "with the bonus": _changed("pssvf", HOPPER, arch, reward="raw"),
        }
    for arch, env in itertools.product(_ARCHES, (SWIMMER, HOPPER)):
        panels[f"Gradient in theta:\n{policies_title('pavf', env, arch)}"] = {
            "PAVF": OnlineCell("pavf", env, arch),
            "biased PAVF": OnlineCell("pavf", env, arch, biased=True),
        }
    for env in ("MountainCarContinuous-v0", "InvertedPendulum-v5"):
        panels[f"States of an actor update:\n{policies_title('psvf', env, 'linear')}"] = {
            f"{states:,} states": OnlineCell("psvf", env)
            if states == ACTOR_STATES
            else _changed("psvf", env, "linear", actor_states=states)
            for states in (ACTOR_STATES, 1_000, 10_000)
        }
    panels[f"Statistics:\n{policies_title('pssvf', SWIMMER, 'linear')}"] = {
        "frozen in an episode": OnlineCell("pssvf", SWIMMER),
        "moving at each step": _changed("pssvf", SWIMMER, "linear", normalization="per-step"),
    }
    return panels


def sensitivity_panels() -> Panels:
    """Return the tuning grid: one panel an algorithm, policy and environment."""
    panels: Panels = {}
    for algorithm, grid in GRIDS.items():
        for arch, (family, env) in itertools.product(("linear", "32", "64,64"), TODAY.items()):
            if algorithm in ("pavf", "ddpg") and family in ("Acrobot", "CartPole"):
                continue
            lines = {}
            for changes in _grid_changes(algorithm, grid):
                cell = OnlineCell(algorithm, env, arch, changes=changes)
                lines[cell.name] = cell
            panels[policies_title(algorithm, env, arch)] = lines
    return panels


def learning_curve_panels(cells: list[OnlineCell]) -> Panels:
    """Return cells as panels, one an environment and policy, one line an algorithm."""
    panels: Panels = {}
    for cell in cells:
        title = f"{cell.env}, {arch_title(cell.arch)}" + (
            " (last)" if cell.metric == "last" else ""
        )
        label = cell.algorithm.upper() + (" stochastic" if cell.stochastic else "")
        panels.setdefault(title, {})[label] = cell
    return panels


def panel_cells(panels: Mapping[str, Mapping[str, OnlineCell]]) -> list[OnlineCell]:
    """Return the distinct cells of panels in order."""
    return list({c.name: c for lines in panels.values() for c in lines.values()}.values())


def _grid_changes(algorithm: str, grid: Any) -> list[dict[str, Any]]:
    if algorithm == "ars":
        return [
            {"lr": lr, "directions": directions, "elite": elite, "noise": noise}
            for lr, (directions, elite), noise in itertools.product(
                grid.lr_policy, grid.directions, grid.sigma
            )
        ]
    noise = "sigma" if algorithm in OURS else "noise"
    return [
        {"lr_policy": lr_policy, "lr_critic": lr_critic, noise: sigma}
        for lr_policy, lr_critic, sigma in itertools.product(
            grid.lr_policy, grid.lr_critic, grid.sigma
        )
    ]


def _changed(algorithm: str, env: str, arch: str, **changes: Any) -> OnlineCell:
    return OnlineCell(algorithm, env, arch, changes=changes)
