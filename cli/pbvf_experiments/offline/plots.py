"""Figures of section 4.4 with a learned environment: recipes side by side, estimates and truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbvf_experiments.offline.settings import EVALUATION, IMAGINED, OFFLINE_RL, SEARCH
from pbvf_runs.compare.figures import BLUE, ORANGE, RED, legend_below, new_figure, save_figure

_NAMES = {
    "default": "PSVF of the data",
    "model": "PSSVF",
    "model-psvf": "PSVF",
    "model-pavf": "PAVF",
    "model-64x64": "PSSVF,\n[64,64]",
    "deep-64x64": "PSSVF,\n[64,64] data",
    SEARCH: "cross-\nentropy",
    **OFFLINE_RL,
    "best_policy": "best\npolicy",
    "best_episode": "best\nepisode",
}
_SETS = {"around": "policies around the dataset", "ascents": "policies along ascents"}


def draw_recipes(results: Mapping[int, Mapping[str, Any]], path: Path) -> None:
    """Draw one point a dataset seed and recipe, the mean return of its policies, and their mean.

    Args:
        results: By seed, those of :func:`pbvf_experiments.offline.experiment.run_offline`.
        path: The PNG to write.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    shown = {name: _returns(results, name) for name in _NAMES}
    shown = {name: values for name, values in shown.items() if values.size}
    figure = new_figure(1.0 * len(shown) + 1.5, 4.5)
    axes = figure.subplots()
    for column, (name, values) in enumerate(shown.items()):
        spread = column + np.linspace(-0.2, 0.2, len(values))
        color = ORANGE if name.startswith("best") else BLUE
        axes.scatter(spread, values, color=color, s=18, alpha=0.7, linewidth=0)
        axes.hlines(values.mean(), column - 0.3, column + 0.3, color="black", linewidth=2)
        axes.annotate(
            f"{values.mean():.0f}", (column + 0.32, values.mean()), fontsize=8, va="center"
        )
    labels = [f"{_NAMES[name]}\n(n = {len(values)})" for name, values in shown.items()]
    axes.set_xticks(range(len(shown)), labels, fontsize=8)
    axes.set_xlim(-0.6, len(shown) - 0.2)
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set_ylabel("undiscounted return")
    axes.set_title("Mean of five policies a dataset (points), mean over datasets (lines)", size=10)
    save_figure(figure, path)


def draw_estimates(results: Mapping[int, Mapping[str, Any]], path: Path) -> None:
    """Draw imagined against true returns of policies that neither model nor critic has seen.

    Args:
        results: By seed; those without an evaluation are left out.
        path: The PNG to write.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    found = [result[EVALUATION] for result in results.values() if EVALUATION in result]
    figure = new_figure(9.5, 4.8)
    for axes, (name, title) in zip(figure.subplots(1, 2), _SETS.items(), strict=True):
        sets = [evaluation[name] for evaluation in found]
        true, imagined = (_together(sets, key) for key in ("true", "imagined"))
        ends = [np.concatenate([_interval(one)[k] for one in sets]) for k in (0, 1)]
        known = ~np.isnan(ends[0])
        inside = (ends[0] <= true) & (true <= ends[1])
        for which, color, label in (
            (inside, BLUE, "true return inside the 90 % interval"),
            (known & ~inside, RED, "outside"),
            (~known, "grey", "without an interval"),
        ):
            if not which.any():
                continue
            axes.scatter(
                imagined[which],
                true[which],
                color=color,
                s=6,
                alpha=0.4,
                linewidth=0,
                label=f"{label}: {which.sum():,}",
            )
        line = [float(min(true.min(), imagined.min())), float(max(true.max(), imagined.max()))]
        axes.plot(line, line, color="black", linewidth=0.8)
        ranks = [one["metrics"]["imagined"]["rank_correlation"] for one in sets]
        ranks = [rank for rank in ranks if rank is not None]
        said = f"rank correlation {np.mean(ranks):.2f} (mean)" if ranks else "no rank correlation"
        axes.set_title(f"{title}: {len(found)} datasets,\n{said}", size=10)
        axes.set_xlabel("imagined return")
        axes.set_ylabel("true return")
        legend_below(axes, fontsize=8, markerscale=2)
    save_figure(figure, path)


def _interval(one: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the ends (2, K) of a set's intervals; NaN where there is none."""
    if one["interval"] is None:
        return np.full((2, len(one["true"])), np.nan)
    return np.array(one["interval"], np.float64)


def _together(sets: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(one[key], np.float64) for one in sets])


def _returns(results: Mapping[int, Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """Return one number a seed that has it, (n,)."""
    found = [result[name] for result in results.values() if name in result]
    if name in IMAGINED or name == "default":
        found = [one["trust_region"]["returns"] for one in found]
    elif name in (SEARCH, *OFFLINE_RL):
        found = [one["returns"] for one in found]
    return np.array([float(np.mean(one)) for one in found])
