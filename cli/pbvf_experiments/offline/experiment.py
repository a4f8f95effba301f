"""Section 4.4, offline learning with fragmented behaviours, over several datasets.

For each dataset seed: collect fragments, fit PSVFs, or learn the environment and fit critics to
imagined episodes, grow five fresh policies through each critic, and measure them beside the
dataset's best episode, its best policy, and controls that need no synthesis: the policies that the
critic ranks highest, those of the best fragments, cross-entropy search in the learned environment,
and offline reinforcement learning. Off-policy evaluation asks model and critic for the returns of
policies that they have not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pbvf_experiments.offline.evaluation import summary_of_evaluation
from pbvf_experiments.offline.fqe import summary_of_fqe
from pbvf_experiments.offline.one_seed import Note, OneSeed
from pbvf_experiments.offline.settings import (
    EVALUATION,
    FITS,
    FQE,
    IMAGINED,
    OFFLINE_RL,
    SEARCH,
    OfflineSettings,
)


def run_offline(
    settings: OfflineSettings, seeds: list[int], out: Path, note: Note
) -> dict[int, dict[str, Any]]:
    """Run every seed and return its result; finished cells are read back.

    A seed has a cell for its dataset and one for each recipe; every random number comes from it.
    Datasets, models, critics and policies go to the ``work`` folder of ``out``.

    Raises:
        UsageError: A recipe is to be run whose library is missing.
        ConflictError: A file is there that was made with other settings.
    """
    results = {}
    for seed in seeds:
        OneSeed(settings, seed, out, note).check()
    for seed in seeds:
        run = OneSeed(settings, seed, out, note)
        results[seed] = {**run.dataset(), **{name: run.recipe(name) for name in settings.recipes}}
    return results


def summary(results: Mapping[int, Mapping[str, Any]]) -> list[dict[str, float | str | None]]:
    """Return one row a seed and their mean: what was grown beside what the dataset holds.

    Each recipe of imagined episodes has a column by its name, the mean return of its policies.
    ``imagined`` is what the critic of ``model`` predicts of its policies, and ``said above`` the
    share of them that the learned environment takes to be above the data. ``deep best policy``
    is the best policy of the dataset of ``deep-64x64``. ``cem``, ``td3bc`` and ``iql``: mean
    return of what cross-entropy search and the baselines found. ``region``: through the first other
    critic run, inside the trust region; all these at the chosen step. ``plain peak`` and
    ``plain last``: plain ascent through that other critic, mean over its policies. What
    ``evaluation`` and ``fqe`` came to is told by :func:`summary_of_evaluation` and
    :func:`summary_of_fqe`. A number that a seed lacks is None, and the mean is over the others.
    """
    rows: list[dict[str, float | str]] = []
    for seed, result in results.items():
        row: dict[str, float | str] = {"seed": str(seed)}
        for name in IMAGINED:
            if name in result:
                row |= _summary_of_imagined(name, result[name])
        for name in (SEARCH, *OFFLINE_RL):
            if name in result:
                row[name] = float(np.mean(result[name]["returns"]))
        if EVALUATION in result:
            row |= summary_of_evaluation(result[EVALUATION])
        if FQE in result:
            row |= summary_of_fqe(result[FQE])
        fit = next((name for name in FITS if name in result), None)
        if fit is not None:
            row |= _summary_of_fit(result[fit])
        row["best episode"] = result["best_episode"]
        row["best policy"] = result["best_policy"]
        if fit is not None:
            row["top ranked"] = result[fit]["top_ranked"]
        row["best fragments"] = result["best_fragments"]
        rows.append(row)
    names = dict.fromkeys(key for row in rows for key in row if key != "seed")
    mean = {key: float(np.mean([float(row[key]) for row in rows if key in row])) for key in names}
    rows.append({"seed": "mean", **mean})
    return [{key: row.get(key) for key in ("seed", *names)} for row in rows]


def _summary_of_imagined(name: str, result: Mapping[str, Any]) -> dict[str, float | str]:
    grown = result["trust_region"]
    row: dict[str, float | str] = {name: float(np.mean(grown["returns"]))}
    if name == "model":
        row["imagined"] = float(np.mean(grown["predicted"]))
        row["said above"] = float(np.mean(grown["above_data"]))
    if "dataset" in result:
        row["deep best policy"] = result["dataset"]["best_policy"]
    return row


def _summary_of_fit(recipe: Mapping[str, Any]) -> dict[str, float | str]:
    last = max(
        (key for key in recipe if key.startswith("plain_")),
        key=lambda key: int(key.removeprefix("plain_")),
    )
    curve = [float(np.mean(point["returns"])) for point in recipe[last]["curve"]]
    return {
        "region": float(np.mean(recipe["trust_region"]["returns"])),
        "plain peak": max(curve),
        "plain last": curve[-1],
    }
