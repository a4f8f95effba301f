"""What the commands grow offline in other environments, from the data of one perturbed policy.

For each environment, architecture and seed, as in section 4.4: fragments of perturbations of one
fresh policy, then five policies grown from fresh ones, once through the default recipe, and once
through ``pbvf fit-model`` and ``pbvf fit-critic --model``. There the default recipe stands where
its critic is the better one by the cautious imagined return, and where the commands refuse to go
on, because the check of the learned environment says that it is not fit for whole episodes or
because fresh policies cannot be drawn into the trust region.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_experiments.offline.one_seed import Note, OneSeed
from pbvf_experiments.offline.settings import STANDING, ImaginedRecipe, OfflineSettings

ENVIRONMENTS = (
    "InvertedPendulum-v5",
    "MountainCarContinuous-v0",
    "Reacher-v5",
    "Hopper-v5",
    "HalfCheetah-v5",
    "CartPole-v1",
    "Acrobot-v1",
)
_DEEP = (64, 64)
_RECIPES = {
    "linear": ImaginedRecipe(compare=True),
    "64x64": ImaginedRecipe(fingerprint=64, policy=_DEEP, data=_DEEP, compare=True),
}
SETTINGS = OfflineSettings(recipes=("default",), plain_steps=0, episodes=10, top_ranked=False)
"""What decides a cell, beside its environment and architecture."""


@dataclass(frozen=True)
class EnvironmentCell:
    """An environment, and an architecture of policies.

    Attributes:
        env: The environment.
        policy: The architecture, by its name in files.
    """

    env: str
    policy: str

    @property
    def name(self) -> str:
        """What it is called in files and in ``--cells``."""
        return f"{self.env}-{self.policy}"


CELLS = tuple(EnvironmentCell(env, policy) for env in ENVIRONMENTS for policy in _RECIPES)


def run_environments(
    cells: Sequence[EnvironmentCell],
    seeds: Sequence[int],
    out: Path,
    note: Note,
    *,
    settings: OfflineSettings = SETTINGS,
    workers: int = 1,
) -> dict[str, dict[int, dict[str, Any]]]:
    """Run every seed of every cell and return its result; finished parts are read back.

    A seed has three files of results: of its ``dataset``, of the ``default`` recipe, and of what
    the ``commands`` leave standing.

    Args:
        cells: What is run.
        seeds: Seeds, from which every random number comes.
        out: Folder of results; datasets, models, critics and policies go to its ``work`` folder.
        note: Told of each stage.
        settings: What decides a cell beside its environment and architecture.
        workers: Number of processes; does not change the results.

    Raises:
        ConflictError: A file is there that was made with other settings.
    """
    results: dict[str, dict[int, dict[str, Any]]] = {}
    for cell in cells:
        recipe = _RECIPES[cell.policy]
        chosen = dataclasses.replace(settings, env=cell.env, policy=recipe.data, workers=workers)
        results[cell.name] = {}
        for seed in seeds:

            def tell(text: str, name: str = cell.name) -> None:
                note(f"{name}, {text}")

            run = OneSeed(chosen, seed, out, tell, within=cell.name)
            results[cell.name][seed] = {
                "dataset": run.dataset(),
                "default": run.recipe("default"),
                "commands": run.imagined("commands", recipe),
            }
    return results


def summary(
    results: Mapping[str, Mapping[int, Mapping[str, Any]]],
) -> list[dict[str, float | str]]:
    """Return one row a cell, with means over its seeds.

    ``commands`` and ``default``: mean return of the policies grown with a learned environment and
    without. ``best policy`` and ``best episode`` of the dataset. ``above best policy``: in how many
    seeds ``commands`` is. ``stands``: in how many seeds what is.
    """
    rows: list[dict[str, float | str]] = []
    for name, seeds in results.items():
        grown = {
            part: [float(np.mean(one[part]["trust_region"]["returns"])) for one in seeds.values()]
            for part in ("commands", "default")
        }
        data = {
            title: [float(one["dataset"][key]) for one in seeds.values()]
            for title, key in (("best policy", "best_policy"), ("best episode", "best_episode"))
        }
        above = np.greater(grown["commands"], data["best policy"])
        stands = Counter(one["commands"]["stands"] for one in seeds.values())
        rows.append(
            {
                "cell": name,
                **{key: float(np.mean(values)) for key, values in (grown | data).items()},
                "above best policy": f"{above.sum()} of {len(seeds)}",
                "stands": ", ".join(f"{what} {stands[what]}" for what in STANDING if stands[what]),
            }
        )
    return rows
