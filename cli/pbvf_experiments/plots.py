"""Figures, drawn from result files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pbvf_runs.compare.figures import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    new_figure,
    save_figure,
    shared_legend,
    thousands,
)

SHADING = "line: mean, shaded: lowest to highest seed"


def seeds_in_words(count: int, *, shaded: bool = True) -> str:
    """Return what lines and shading over so many seeds are, for a title.

    >>> seeds_in_words(5)
    'n = 5 seeds; line: mean, shaded: lowest to highest seed'
    >>> seeds_in_words(1)
    'n = 1 seed'
    """
    text = "n = 1 seed" if count == 1 else f"n = {count} seeds"
    return text if count == 1 or not shaded else f"{text}; {SHADING}"


def draw_band(axes: Any, steps: ArrayLike, values: NDArray[np.float64], **line: Any) -> None:
    """Draw the mean over the rows of ``values`` (seeds, steps), and from lowest to highest row.

    Such a band never leaves the range of possible values, which one of standard deviations does.

    Args:
        axes: Where to.
        steps: (steps,) places on the horizontal axis.
        values: (seeds, steps).
        line: Arguments of the line, such as its label.
    """
    (drawn,) = axes.plot(steps, values.mean(axis=0), **{"linewidth": 1.4, **line})
    if len(values) > 1:
        low, high = values.min(axis=0), values.max(axis=0)
        axes.fill_between(steps, low, high, color=drawn.get_color(), alpha=0.2, linewidth=0)


def draw_synthesis(result: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw the return of synthesized policies along the ascent beside the dataset's marks.

    Args:
        result: ``curve`` (``step``, ``returns``), ``returns``, ``chosen_step``,
            ``best_episode`` and ``closest``.
        path: The PNG to write.
        title: The figure's title.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    figure = new_figure(7.5, 4.5)
    axes = figure.subplots()
    steps = [point["step"] for point in result["curve"]]
    returns = np.array([point["returns"] for point in result["curve"]])
    for k in range(returns.shape[1]):
        label = "policies grown from random weights" if k == 0 else None
        axes.plot(steps, returns[:, k], color=BLUE, alpha=0.45, linewidth=1.2, label=label)
    axes.plot(steps, returns.mean(axis=1), color=BLUE, linewidth=2.5, label="their mean")
    axes.scatter(
        result["chosen_step"],
        result["returns"],
        color=BLUE,
        edgecolor="black",
        zorder=5,
        label="at the step that the critic chose",
    )
    axes.axhline(result["best_episode"], color=ORANGE, label="best episode in the dataset")
    axes.axhline(
        float(np.mean(result["closest"])),
        color=GREEN,
        linestyle="--",
        label="nearest dataset policies (mean)",
    )
    axes.set_xlabel("gradient step through the frozen critic")
    axes.set_ylabel("undiscounted return")
    axes.set_title(title)
    shared_legend(figure, axes, columns=2)
    save_figure(figure, path)


def draw_offline(results: Mapping[int, Mapping[str, Any]], path: Path) -> None:
    """Draw figure ``fig:offline`` anew: TD error above, small return curves below.

    Means over dataset seeds, and from the lowest to the highest seed.

    Raises:
        ResourceError: The disk or a permission refuses.
    """
    seeds = sorted(results)
    keys = [k for k in results[seeds[0]]["paper"] if k.startswith("plain_")]
    figure = new_figure(max(2.3 * len(keys), 7.0), 6.7)
    figure.suptitle(
        "Policies grown from scratch through PSVFs, each of a dataset of its own\n"
        f"{seeds_in_words(len(seeds))}",
        fontsize=10,
    )
    grid = figure.add_gridspec(2, len(keys))
    top = figure.add_subplot(grid[0, :])
    losses = np.array([[loss for _, loss in results[s]["paper"]["loss"]] for s in seeds])
    updates = [update for update, _ in results[seeds[0]]["paper"]["loss"]]
    draw_band(top, updates, losses, color=GREEN)
    if losses.size:
        top.set_yscale("log")
    thousands(top)
    top.set_xlabel("updates of the PSVF (one-step TD)")
    top.set_ylabel("mean squared TD error")
    best = np.mean([results[s]["best_episode"] for s in seeds])
    policy = np.mean([results[s]["best_policy"] for s in seeds])
    first = None
    for column, key in enumerate(keys):
        axes = figure.add_subplot(grid[1, column], sharey=first)
        first = first or axes
        curves = np.array(
            [
                [np.mean(point["returns"]) for point in results[s]["paper"][key]["curve"]]
                for s in seeds
            ]
        )
        steps = [point["step"] for point in results[seeds[0]]["paper"][key]["curve"]]
        draw_band(axes, steps, curves, color=BLUE, label="grown policies")
        axes.axhline(best, color=ORANGE, label="best episode of the dataset (mean)")
        axes.axhline(policy, color=RED, linestyle="--", label="best policy, whole episodes (mean)")
        axes.set_title(f"after {int(key.removeprefix('plain_')):,} updates", fontsize=9)
        axes.set_xlabel("gradient step")
        if column == 0:
            axes.set_ylabel("return")
    shared_legend(figure, first, columns=3)
    save_figure(figure, path)
